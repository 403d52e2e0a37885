"""Flags and variables of engines that change sizes, and the inputs of ``budget`` that they mean.

Every engine's folder has its rows. A flag that means nothing changes sizes in a way that no answer
counts; its text says which.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

from dsv4kv.errors import ConfigError

Texts = dict[str, str]
"""Values as written, by the option names of our inputs."""
_SCALE = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SCALE |= {letter.upper(): 2 ** (10 * power) for power, letter in enumerate("kmgt", 1)}
_NUMBER = re.compile(r"(-?\d[\d_,]{0,30}(?:\.\d{1,12})?)\s*([kmgtKMGT]?)(?:i?B)?")
_OFF = ("false", "0", "no", "off", "")
_PLAIN_NUMBER = re.compile(r"\d{1,20}(?:\.\d{1,12})?")


@dataclass(frozen=True)
class Meaning:
    """Reads the inputs that a value means; ``input`` is the one that takes it as it is, if any."""

    of: Callable[[str], Texts]
    input: str = ""


def scaled(text: str) -> int | None:
    """A number with the engines' suffixes: 8k is 8,000, 8K is 8,192; None for anything else."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    number = Fraction(match[1].replace(",", "").replace("_", ""))
    return int(number * _SCALE.get(match[2], 1))


def as_is(name: str) -> Meaning:
    return Meaning(lambda text: {name: text}, name)


def counted(name: str) -> Meaning:
    """A number with a suffix; ``-1`` and ``auto`` mean the engine's own."""

    def read(text: str) -> Texts:
        if text.lower() in ("auto", "none", "-1"):
            return {}
        number = scaled(text)
        if number is None:
            raise ConfigError(f"{text!r} is not a number: write 8192, 8k (8,000) or 8K (8,192).")
        return {name: str(number)}

    return Meaning(read, name)


def switched(name: str, on: str, off: str | None = None) -> Meaning:
    """The values of an input for a switch that is on, or set to off."""

    def read(text: str) -> Texts:
        value = off if text.lower() in _OFF else on
        return {} if value is None else {name: value}

    return Meaning(read)


def named(name: str) -> Meaning:
    """A name as the engine has it, or its own choice."""
    return Meaning(lambda text: {} if text.lower() in ("auto", "none", "null") else {name: text})


def cache_dtype(text: str) -> Texts:
    return {} if text == "auto" else {"cache-dtype": "bfloat16" if text == "bf16" else text}


def read_object(text: str) -> dict[str, object]:
    """A JSON object; raises ``ConfigError``."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{text[:60]!r} is not a JSON object.")
    return found


OWN_DRAFTS, OWN_TIER, SIMPLE = "own-draft-tokens", "own-host-tier", "simple-offload"
TOKENS, SLOTTED, BATCH = "kv-tokens", "slots-tokens", "batch-tokens"
KEYS, VALUES = "type-of-keys", "type-of-values"
"""Not inputs themselves: ``budget.inputs.merge`` turns them into some."""

DRAFT_LAYERS = {"dspark": 3, "mtp": 1, "eagle": 1, "nextn": 1, "deepseek": 1}
"""Layers with a window that a way to draft adds, by a part of its name."""


def find_drafts(method: str) -> Texts:
    """Draft layers of a method; raises ``ConfigError`` for one that is not counted."""
    if method.lower() in ("", "none"):
        return {}
    for part, layers in DRAFT_LAYERS.items():
        if part in method.lower():
            return {"draft-layers": str(layers)}
    raise ConfigError(f"drafts by {method!r} are not counted: mtp and dspark are.")


def in_bytes(number: object, unit: int, name: str) -> str:
    """A number of units; raises ``ConfigError`` with their ``name``."""
    if not _PLAIN_NUMBER.fullmatch(str(number)):
        raise ConfigError(f"{str(number)[:60]!r} is not a number of {name}: write 100 or 0.5.")
    return str(int(Fraction(str(number)) * unit))


@dataclass(frozen=True)
class Flag:
    """A flag or variable of an engine; a switch takes no value."""

    spellings: str  # its names, the usual one first; a variable is in capitals
    effect: str  # what it does to sizes
    means: Meaning | None = None  # the inputs that a value means; None where it is not counted
    switch: bool = False
    written: bool = True  # a command that starts a server takes it, not only a file

    @property
    def name(self) -> str:
        return self.spellings.split()[0]

    @property
    def is_variable(self) -> bool:
        return self.name[0] != "-"


def flag(
    spellings: str,
    effect: str,
    means: Meaning | Callable[[str], Texts] | str | None = None,
    *,
    switch: bool = False,
    written: bool = True,
) -> Flag:
    """A row; what it means may be the name of an input that is a number, or its reader."""
    if isinstance(means, str):
        means = counted(means)
    elif means and not isinstance(means, Meaning):
        means = Meaning(means)
    return Flag(spellings, effect, means, switch, written)


switch = partial(flag, switch=True)

NOTHING = Meaning(lambda _: {})
HOST = "host memory"
PART = "ranks that a request's context is spread over: refused by name"
WEIGHTS = "changes the weights: give their size with --weights"
GRAPHS = "memory of CUDA graphs, which --reserve stands for"
