"""How much of a property a run tries: ``make full`` all of it, ``make check`` enough of it."""

import os
from typing import Any

from hypothesis import settings

FULL = bool(os.environ.get("DSV4KV_FULL"))
"""Whether nothing is left out."""

WHOLE = 100
"""Examples of every property in ``make full``; ``tests/conftest.py`` sets those of the others."""


def examples(whole: int, **others: Any) -> settings:
    """Settings for a property that ``make full`` tries ``whole`` times, others their part of it.

    Args:
        whole: ``make check`` draws a fifth of them, ``make check-fast`` a tenth; at least 2.
        others: Further settings by name.
    """
    return settings(max_examples=max(2, whole * settings().max_examples // WHOLE), **others)
