"""Everything that can go wrong and is not a bug: one sentence for the user, one exit code.

The sentence says what was given, what is allowed, and what to do. Exit code 1 is left to
verdicts (``compare``, ``budget``) and 2 is also what the command line uses for wrong arguments.
No other package is imported here: a sentence is printed while such an import is interrupted, too.
"""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

INTERRUPTED = 130  # exit code after Ctrl-C, as shells have it
DEFECT = 70  # exit code after an unexpected error (EX_SOFTWARE of sysexits.h)
_LONGEST, _SHOWN = 8_000, 500  # characters of a sentence, and of both its ends where it is cut


class Dsv4kvError(Exception):
    """Base of all errors shown to the user as a sentence, without a traceback."""

    exit_code = 2

    def __str__(self) -> str:
        """The sentence, without the middle of one that quotes very much."""
        said = super().__str__()
        return said if len(said) <= _LONGEST else f"{said[:_SHOWN]} … {said[-_SHOWN:]}"


class ConfigError(Dsv4kvError):
    """A configuration, model file or option that cannot be used."""


class DoesNotFit(ConfigError):
    """What was asked does not fit into memory: a verdict of ``budget``'s, wherever it is found."""

    exit_code = 1


class TraceError(Dsv4kvError):
    """A trace that cannot be read or written; names file and line."""

    exit_code = 4


class CacheError(Dsv4kvError):
    """Base of the cache's refusals. The cache is unchanged after any of them."""

    exit_code = 5


class OutOfBlocks(CacheError):
    """More blocks are needed than are free."""


class OutOfSlots(CacheError):
    """More requests are running than the cache has slots for."""


class NotOwner(CacheError):
    """A block or slot is out of range, not held, named twice, or held by a newer generation."""


class ContextOverflow(CacheError):
    """A request is longer than a row of the block table."""


class StoreUnavailable(CacheError):
    """A store beyond the GPU's memory that cannot answer: a disk, a server, another machine."""


class StoreFull(StoreUnavailable):
    """A store without room for what is to be kept."""


class VerificationError(Dsv4kvError):
    """Bytes in the cache differ from the reference, or memory differs from the prediction."""

    exit_code = 6


class RecordError(Dsv4kvError):
    """A run record that cannot be read."""

    exit_code = 7


class DeviceError(Dsv4kvError):
    """A GPU, its driver or a kernel that cannot be used."""

    exit_code = 8


class CudaUnavailable(DeviceError):
    """No GPU, no driver, or a package that kernels need is not installed."""


class PeerUnavailable(DeviceError):
    """A backend of another package that is not installed, or has nothing to run here."""


class ProfileError(Dsv4kvError):
    """A profiler that is absent, fails or hangs, or a profile that cannot be read."""

    exit_code = 9


def first_problem(errors: Sequence[Mapping[str, Any]]) -> str:
    """The first of a pydantic model's errors, after its place."""
    first = errors[0]
    place, problem = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
    return f"{place}: {problem}" if place else problem


def find_name(given: str, names: Sequence[str], what: str, otherwise: str = "") -> str:
    """The known name that was meant: case, spaces and underscores do not matter.

    ``what``: kind of thing, for the sentence; ``otherwise`` ends it. Raises ``ConfigError`` for no
    such name, or the start of several; names the nearest.
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


_GIVEN = re.compile(
    r"((?:--api-key(?:=|[\"',\s]+)|\b[A-Z_]*(?:TOKEN|API_KEY|PASSWORD|SECRET)=)'?)[^\s\"'\\]+"
)
# a field of JSON, also inside a text of JSON
_FIELD = re.compile(
    r"([\"'][\w-]{0,40}(?i:password|passwd|secret|token|api_?key)"
    r"\\{0,8}[\"']\s{0,8}:\s{0,8}\\{0,8}([\"']))(?:(?!\2)[^\\])+"
)
# a word that holds "@", in text or in JSON, whose strings escape line ends
_WITH_AT = re.compile(
    r"(^|[\s\"]|\\[bfnrt])((?:[^\s\"\\@]|\\[^bfnrtu\"])++@(?:[^\s\"\\]|\\[^bfnrtu\"])*)"
)
_USER = re.compile(r"[^@]*?://(?:[^/]*|[^/:]*:.*)@|(?:[^/:@=]*=)?[^/:@]+:(?!//).+@")


def mask_secrets(text: str) -> str:
    """A text or JSON without users and passwords of addresses, and without keys of a command."""
    return _GIVEN.sub(r"\1***", _FIELD.sub(r"\1***", _WITH_AT.sub(_mask_word, text)))


def _mask_word(found: re.Match[str]) -> str:
    return found[1] + (mask_url(found[2]) if _USER.match(found[2]) else found[2])


def mask_url(url: str) -> str:
    """An address without user, password, query and fragment, also where it is wrong.

    All before the last ``@`` may be a password.
    """
    scheme, mark, rest = url.rpartition("://") if url.count("://") == 1 else ("", "", url)
    _, at, place = rest.rpartition("@")
    shown, *hidden = re.split("[?#;]", place, maxsplit=1)
    return f"{scheme}{mark}{'***@' if at else ''}{shown}{'?***' if hidden else ''}"
