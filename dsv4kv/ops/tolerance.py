"""How far a pooled entry may be off: a rounding step here and there, and no more.

The fast backends pool in float32, the reference in float64: a value on a rounding boundary may
land on the neighbouring step of the entry format, on both sides of a changed scale.
"""

from torch import Tensor

from dsv4kv.model.formats import EntryFormat

STEP = {"bf16": 2.0**-7, "e4m3": 2.0**-3, "e2m1": 2.0**-1}
MEAN_TOLERANCE = {"bf16": 2e-3, "e4m3": 5e-3, "e2m1": 2e-2}


def is_close(entry: EntryFormat, found: Tensor, expected: Tensor) -> bool:
    """Every value of an entry [D] within one step of how it is stored, and nearly all equal."""
    values, tail = slice(entry.value_dims), slice(entry.value_dims, None)
    return _near(entry.value, found[values], expected[values]) and (
        not entry.tail_dims or _near("bf16", found[tail], expected[tail])
    )


def _near(value: str, found: Tensor, expected: Tensor) -> bool:
    a, b = found.double(), expected.double()
    size = a.abs().maximum(b.abs())
    smallest = size.amax() * 2.0**-8  # steps below this are those of subnormals
    within = (a - b).abs() <= STEP[value] * size.clamp_min(smallest)
    mean = (a - b).abs().sum() / b.abs().sum().clamp_min(1e-30)
    return bool(within.all()) and float(mean) <= MEAN_TOLERANCE[value]
