"""Whether the GPUs that bear a replay hold its weights and its cache."""

from math import ceil

from dsv4kv.config.replay import CostSection
from dsv4kv.errors import DoesNotFit
from dsv4kv.replay.memory import MemoryPlan
from dsv4kv.replay.weights_model import WeightModel
from dsv4kv.sizing.gpus import load_gpu
from dsv4kv.sizing.inputs import Inputs
from dsv4kv.units import counted, format_bytes

_SPARE = Inputs()  # what dsv4kv budget keeps of every GPU unless told otherwise


def check_fit(cost: CostSection, memory: MemoryPlan, weights: WeightModel) -> None:
    """Refuse GPUs that cannot hold their equal shares of weights and cache.

    Only a GPU whose datasheet tells the times has a known memory: not one that is given, or
    measured, as a bandwidth.

    Raises:
        DoesNotFit: With the fewest that would.
    """
    if cost.gpu is None or cost.bandwidth_gbps is not None or cost.peaks is not None:
        return
    gpu = load_gpu(cost.gpu)
    usable = int(gpu.memory_bytes * _SPARE.memory_fraction) - _SPARE.reserve
    held = weights.held_bytes + memory.held_bytes
    if held <= usable * cost.gpus:
        return
    raise DoesNotFit(
        f"{format_bytes(weights.held_bytes)} of weights and {format_bytes(memory.held_bytes)} of "
        f"cache do not fit on {counted(cost.gpus, 'GPU')} of {gpu.name}: every GPU lacks "
        f"{format_bytes(-(-held // cost.gpus) - usable)} ({format_bytes(usable)} of its "
        f"{format_bytes(gpu.memory_bytes)} can be used: {float(_SPARE.memory_fraction):.0%} less "
        f"{format_bytes(_SPARE.reserve)}, as dsv4kv budget has it). {ceil(held / usable)} are the "
        "fewest that do: give cost.gpus (--gpus), or less cache.memory_bytes. A bandwidth "
        "(--bandwidth) in place of a GPU is not asked for its memory."
    )
