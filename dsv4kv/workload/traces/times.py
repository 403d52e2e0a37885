"""Times in the unit of a format."""

import math


def in_units(seconds: float, per_second: int) -> int | float:
    """A time that is the same number of seconds when it is read back, whole where it can be.

    Where no float is, it is the nearest.
    """
    value = seconds * per_second
    near = (round(value), value, math.nextafter(value, math.inf), math.nextafter(value, -math.inf))
    return next((one for one in near if one / per_second == seconds), value)
