"""Names people type: normalised, and with the nearest known one where there is no such name."""

import re
from collections.abc import Sequence
from difflib import get_close_matches

from dsv4kv.errors import ConfigError


def find_name(given: str, names: Sequence[str], what: str, otherwise: str = "") -> str:
    """The known name that was meant: case, spaces and underscores do not matter.

    Args:
        given: As typed.
        names: What there is.
        what: Kind of thing, for the sentence: ``GPU``.
        otherwise: What else can be given, to end the sentence.

    Raises:
        ConfigError: No such name, or the start of several; names the nearest.
    """
    key = re.sub(r"[\s_]+", "-", given.strip().lower())
    if key in names:
        return key
    variants = [name for name in names if name.startswith(f"{key}-")]
    if len(variants) == 1:
        return variants[0]
    if variants:
        raise ConfigError(f"{given!r} is more than one {what}: give {' or '.join(variants)}.")
    close = get_close_matches(key, names, 2, cutoff=0.5)
    guess = f" (did you mean {' or '.join(close)}?)" if close else ""
    raise ConfigError(f"no {what} {given!r}{guess}: give one of {', '.join(names)}{otherwise}.")
