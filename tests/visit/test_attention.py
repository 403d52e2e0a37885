"""Attention as the visit times it: its variants attend to the same entries."""

import torch
from torch import Tensor

from tests.gpu_twin import twin_device, twin_gpu
from tests.kernels.shim import twin
from visit import workloads
from visit.place import TWIN, Place

SHAPE = 2, 2, 512


def attended(variant: str) -> Tensor:
    """What the first call of two requests and heads gives, which comes after its queries."""
    torch.manual_seed(0)  # of queries and entries
    with twin_gpu() as gpu:
        place = Place(twin_device(gpu), TWIN, small=True)
        work = workloads.attend(place, 2, 32, 2, variant=variant)
        for launch in work.calls[0]:
            twin.run(launch)
    tensors = [each for each in work.calls[0][0].arguments if isinstance(each, Tensor)]
    _, out = (each for each in tensors if each.shape == SHAPE)
    return out.float()


def test_every_way_of_attention_gives_what_the_others_give() -> None:
    warps = attended("warps")
    assert warps.abs().max() > 0
    for variant in ("groups", "cluster"):
        assert (warps - attended(variant)).abs().max() <= 2.0**-6 * warps.abs().max()
