"""How far a pooled entry may be off: a rounding step here and there, and no more.

The fast backends pool in float32, the reference in float64: a value on a rounding boundary may
land on the neighbouring step of the entry format, on both sides of a changed scale. One that does
so before a Hadamard rotation moves all channels a little.
"""

from enum import Enum

from torch import Tensor

from dsv4kv.model.formats import EntryFormat


class Leeway(Enum):
    """What may come between an entry and the reference's."""

    NONE = "nothing: the bits are equal"
    SUM = "a sum, which each takes in its own way"
    ROTATED_SUM = "a sum that is rotated after it has been rounded"


STEP = {"bf16": 2.0**-7, "e4m3": 2.0**-3, "e2m1": 2.0**-1}
MEAN_TOLERANCE = {"bf16": 2e-3, "e4m3": 5e-3, "e2m1": 2e-2}


def is_close(
    entry: EntryFormat, found: Tensor, expected: Tensor, *, rotated: bool = False
) -> bool:
    """Every value of an entry [D] within one step of how it is stored, and nearly all equal.

    ``rotated`` entries may also be off by a bf16 step of the largest value in every channel: as
    one is where a value that outweighs all others has flipped, and each channel is rounded again.
    """
    values, tail = slice(entry.value_dims), slice(entry.value_dims, None)
    return _near(entry.value, found[values], expected[values], rotated) and (
        not entry.tail_dims or _near("bf16", found[tail], expected[tail], rotated)
    )


def _near(value: str, found: Tensor, expected: Tensor, rotated: bool) -> bool:
    a, b = found.double(), expected.double()
    size = a.abs().maximum(b.abs())
    smallest = size.amax() * 2.0**-8  # steps below this are those of subnormals
    moved = STEP["bf16"] if rotated else 0.0
    within = (a - b).abs() <= STEP[value] * size.clamp_min(smallest) + moved * size.amax()
    mean = (a - b).abs().sum() / b.abs().sum().clamp_min(1e-30)
    return bool(within.all()) and float(mean) <= MEAN_TOLERANCE[value] + 2 * moved
