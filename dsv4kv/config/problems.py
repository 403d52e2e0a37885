"""What is wrong with a configuration, in sentences that name a place and a remedy."""

import re
import reprlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic_core import ErrorDetails

from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.keys import Key, Root, keys, keys_of, unknown_key
from dsv4kv.errors import ConfigError

Location = tuple[str | int, ...]
"""Names and list indices from the top of a configuration to a value."""

T = TypeVar("T")
R = TypeVar("R")
_EXPONENT = re.compile(r"[0-9]+e\+?1?[0-9]", re.IGNORECASE)
_CLOSE = 0.7  # gpu is not close to cpu
_BOOLEANS = ("true", "false")
_SHORT = reprlib.Repr()
_SHORT.maxstring, _SHORT.maxlevel = 60, 1


@dataclass(frozen=True, order=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        line: Line of the file, from 1; 0 for a command-line option.
        source: File name, or the option as given.
        sentence: What was given, what is allowed, what to do.
    """

    line: int
    source: str
    sentence: str

    def __str__(self) -> str:
        place = f"{self.source}:{self.line}" if self.line else self.source
        return f"{place}: {self.sentence}"


def refuse(problems: Iterable[Problem]) -> ConfigError:
    """One error that tells all problems, a line each, in the order of the file."""
    return ConfigError("\n".join(str(problem) for problem in sorted(set(problems))))


def gather(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Apply a function to every item; where some are refused, raise one error that tells all."""
    results, refusals = [], dict[str, None]()
    for item in items:
        try:
            results.append(function(item))
        except ConfigError as error:
            refusals |= dict.fromkeys(str(error).splitlines())
    if refusals:
        raise ConfigError("\n".join(refusals))
    return results


def dotted(location: Location) -> str:
    """A location as people write it: ``model.layers[1]``."""
    names = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return "".join(names).removeprefix(".")


def key_path(location: Location) -> str:
    """The dotted path of the key a location lies in: list indices left out."""
    return ".".join(part for part in location if isinstance(part, str))


def mentioned_keys(
    section: Location, sentence: str, root: Root = BenchConfig
) -> list[tuple[str, ...]]:
    """Keys of a section that a cross-field validator's sentence names, in its order."""
    prefix = f"{key_path(section)}." if section else ""
    words = (prefix + word for word in re.findall(r"[a-z_]+(?:\.[a-z_]+)*", sentence))
    return [tuple(path.split(".")) for path in words if path in keys(root)]


def explain(error: ErrorDetails, root: Root = BenchConfig) -> str:
    """Turn one pydantic error into a sentence."""
    path = key_path(error["loc"])
    if error["type"] == "value_error":
        reason = str(error["ctx"]["error"]).rstrip(".")
        return f"{path}: {reason}." if path else f"{reason}."
    if error["type"] == "extra_forbidden":
        return _unknown(path, root)
    given = f"{dotted(error['loc'])} is {_shown(error['input'])}"
    key = keys(root)[path]
    if key.is_section:
        names = ", ".join(keys_of(path, root))
        return f"{given}, but it is a section: indent its keys below it ({names})."
    return f"{given}: give {key.expected}{_hint(key, error['input'])}."


def _unknown(path: str, root: Root) -> str:
    if path in keys(root):
        section, _, name = path.rpartition(".")
        return f"{path}: a dot makes no section in YAML: write {name} indented below {section}."
    return unknown_key(path, root)


def _hint(key: Key, value: Any) -> str:
    if isinstance(value, bool) or (key.is_numeric and value in _BOOLEANS):
        return " (YAML reads on, off, yes and no as true or false: quote a word to keep it)"
    if key.choices and (close := get_close_matches(str(value), key.choices, 1, _CLOSE)):
        return f" (did you mean {close[0]}?)"
    if key.type == "text" and isinstance(value, int | float):
        return " (quote it to make it text)"
    if isinstance(value, str) and _EXPONENT.fullmatch(value):
        return f" (YAML reads {value} as text: write {float(value):.0f})"
    if isinstance(value, str) and key.type == "integer":
        is_size = key.path.endswith("_bytes")
        return " (512MiB and 80GB work too)" if is_size else " (128K and 1M work too)"
    return ""


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return value if value in _BOOLEANS else _SHORT.repr(value)
