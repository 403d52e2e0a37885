import torch

torch.set_num_threads(1)  # the machine is shared, and results must not depend on it
