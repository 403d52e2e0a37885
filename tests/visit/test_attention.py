"""Attention as the visit times it: its variants attend to the same entries."""

import torch

from tests.gpu_twin import twin_device, twin_gpu
from tests.kernels.shim import twin
from visit import workloads
from visit.place import TWIN, Place


def test_both_ways_of_attention_give_what_the_other_gives() -> None:
    outputs = []
    with twin_gpu() as gpu:
        place = Place(twin_device(gpu), TWIN, small=True)
        for variant in ("warps", "groups"):
            torch.manual_seed(0)  # of queries and entries
            work = workloads.attend(place, 2, 32, 2, variant=variant)
            for launch in work.calls[0]:
                twin.run(launch)
            (out,) = (
                each
                for each in work.calls[0][-1].arguments
                if isinstance(each, torch.Tensor) and each.shape == (2, 2, 512)
                if each.data_ptr() != work.calls[0][0].arguments[7].data_ptr()
            )
            outputs.append(out.float())
    assert outputs[0].abs().max() > 0
    assert (outputs[0] - outputs[1]).abs().max() <= 2.0**-6 * outputs[0].abs().max()
