"""Flags and variables of engines that change sizes, and the inputs of ``budget`` that they mean.

Every engine's folder has its rows in ``flags.py``. A flag that means nothing changes sizes in a
way that no answer counts; its text says which.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from functools import cache, partial

from dsv4kv.engines.names import FAMILIES
from dsv4kv.errors import ConfigError

Texts = dict[str, str]
"""Values as written, by the option names of our inputs."""
_SCALE = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SCALE |= {letter.upper(): 2 ** (10 * power) for power, letter in enumerate("kmgt", 1)}
_NUMBER = re.compile(r"(-?\d[\d_,]{0,30}(?:\.\d{1,12})?)\s*([kmgtKMGT]?)(?:i?B)?")
_OFF = ("false", "0", "no", "off", "")
_NEAR = 0.885  # of two spellings' letters: one of nine differs, and two of twenty
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
    """A value as it is written."""
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
    """An engine's name for its cache dtype."""
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
"""Not inputs themselves: ``budget.flags.merge`` turns them into some."""

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
    """A flag or variable of an engine; a switch takes no value.

    Attributes:
        spellings: Its names, the usual one first; a variable is in capitals.
        effect: What it does to sizes.
        means: The inputs that a value means; None where it is not counted.
        written: A command that starts a server takes it, not only a file or a wrapper of it.
    """

    spellings: str
    effect: str
    means: Meaning | None = None
    switch: bool = False
    written: bool = True

    @property
    def name(self) -> str:
        """The usual spelling."""
        return self.spellings.split()[0]

    @property
    def is_variable(self) -> bool:
        """Whether it is a variable of the environment."""
        return self.name[0] != "-"


flag, switch = Flag, partial(Flag, switch=True)


NOTHING = Meaning(lambda _: {})
HOST = "host memory"
PART = "ranks that a request's context is spread over: refused by name"
WEIGHTS = "changes the weights: give their size with --weights"
GRAPHS = "memory of CUDA graphs, which --reserve stands for"


def flags_of(family: str) -> tuple[Flag, ...]:
    """Every flag of an engine; none where its folder has none."""
    found = FAMILIES.get(family)
    if found is None or not found.has_flags:
        return ()
    flags: tuple[Flag, ...] = found.load("flags").FLAGS
    return flags


def find_flag(family: str, spelling: str) -> Flag | None:
    """The flag of a spelling, dashes or underscores; None where the engine has no such flag."""
    return _by_spelling(family).get(_plain(spelling))


def near_flag(family: str, spelling: str) -> str:
    """The flag of sizes that an unknown spelling is a letter or two from; empty where none is."""
    decide = (each for each in flags_of(family) if each.means is not NOTHING)
    known = {_plain(each): each for flag in decide for each in flag.spellings.split()}
    found = get_close_matches(_plain(spelling), known, 1, _NEAR)
    return known[found[0]] if found else ""


@cache
def _by_spelling(family: str) -> dict[str, Flag]:
    flags = reversed(flags_of(family))  # the first of a spelling counts
    return {_plain(each): flag for flag in flags for each in flag.spellings.split()}


def flag_for(family: str, name: str) -> str:
    """An engine's flag for an input: ``--max-num-seqs`` for ``request-limit``."""
    flags = (flag for flag in flags_of(family) if flag.means and flag.means.input == name)
    return next((flag.name for flag in flags), f"--{name}")


def _plain(spelling: str) -> str:
    return spelling.replace("_", "-") if spelling.startswith("--") else spelling
