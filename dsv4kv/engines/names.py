"""Engines and their rules by name, from the rows of every engine's folder.

Nothing is imported but rows: ``--help`` reads these registries alone.
"""

import re
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from dsv4kv import engines
from dsv4kv.choices import Choice, choose
from dsv4kv.engines.flags import NOTHING, Flag
from dsv4kv.engines.rule import Family, Variant
from dsv4kv.errors import ConfigError, find_name

if TYPE_CHECKING:
    from dsv4kv.engines.contract import Engine

_FIRST = ("dsv4kv", "vllm", "sglang", "trtllm")
_NEAR = 0.885  # of two spellings' letters: one of nine differs, and two of twenty

_FOLDERS = [module.name for module in iter_modules(engines.__path__) if module.ispkg]
_FOLDERS.sort(key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
_MODULES = (import_module(f"dsv4kv.engines.{name}") for name in _FOLDERS)
FAMILIES: dict[str, Family] = {
    each.FAMILY.name: each.FAMILY for each in _MODULES if hasattr(each, "FAMILY")
}
"""Every engine's row, by its name without a version."""


ENGINES = {
    f"{family.name}:{version.newest}" if version else family.name: (family, version)
    for family in FAMILIES.values()
    for version in family.versions or (None,)
}
"""Whose rules size the cache, with their row; of a family, the oldest first."""


def engine_family(family: str) -> list[str]:
    """Names of all versions of an engine, the oldest first."""
    return [name for name in ENGINES if name.startswith(f"{family}:")]


IDEAL = Variant("whole blocks, least recently used, nothing else to keep")
_rules = [row for family in FAMILIES.values() for row in family.rules.items()]
RULES = {"ideal": IDEAL} | dict(sorted(_rules, key=lambda row: row[0] not in FAMILIES))
"""Prefix-cache behaviour."""

HOST_TIERS = {
    name: Choice(explains)
    for family in FAMILIES.values()
    for name, explains in family.host_tiers.items()
}
"""What keeps prefixes in host memory, for ``budget``."""
TRANSFERS = {"blocks": Choice("blocks of context and a slot, as dsv4kv's cache has them")} | {
    engine_family(name)[-1]: Choice(family.sends)
    for name, family in FAMILIES.items()
    if family.sends
}
"""What is sent of a prompt from a prefill replica to a decode replica."""


def family_of(engine: str) -> Family | None:
    """The engine of a name with or without a version; None where there is none."""
    return FAMILIES.get(engine.partition(":")[0].strip().lower())


def sends_of(engine: str) -> str:
    """The row of ``TRANSFERS`` of an engine; ``blocks`` where it has none."""
    family = engine.partition(":")[0]
    return next((name for name in engine_family(family) if name in TRANSFERS), "blocks")


def replayed_engines() -> list[str]:
    """Engines with pools of blocks and rules of their own."""
    rules = ((name, family.rules.get(name)) for name, family in FAMILIES.items())
    return [name for name, rule in rules if rule and rule.policy.index != "slots"]


def find_engine(name: str) -> "Engine":
    """The rules of ``vllm:0.31``, or of the newest ``vllm``; ``ConfigError`` for an unknown."""
    family, _, version = name.strip().lower().partition(":")
    known = engine_family(family)
    if family in RULES and family not in FAMILIES:
        raise ConfigError(
            f"{family} is a rule of hits, for dsv4kv replay --rule {family}: how it sizes its "
            "cache is not known."
        )
    if known and version:
        found = _covering(name, family, version.removeprefix("v"), known)
    else:
        found = known[-1] if known else find_name(name, list(ENGINES), "engine")
    row, release = ENGINES[found]
    module, _, made = row.sizes.partition(":")
    engine: Engine = getattr(row.load(module), made)(*filter(None, [release]))
    return engine


def _covering(name: str, family: str, version: str, known: list[str]) -> str:
    if not re.match(r"\d+(\.\d+)*", version):
        raise ConfigError(f"{name!r} names no version: give one of {', '.join(known)}.")
    wanted, oldest = _numbers(version), FAMILIES[family].versions[0].oldest
    if wanted < _numbers(oldest):
        raise ConfigError(
            f"the rules of {name} are not known, only from {oldest} on: the nearest is {known[0]}."
        )
    newest = {key: _numbers(key.partition(":")[2]) for key in known}
    same = [key for key, numbers in newest.items() if wanted[: len(numbers)] == numbers]
    if same:
        return max(same, key=lambda key: len(newest[key]))
    for key, numbers in newest.items():
        if wanted[: len(numbers)] <= numbers:
            return key
    raise ConfigError(f"the rules of {name} are not known: the nearest is {known[-1]}.")


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: ``0.5.15.post1`` is (0, 5, 15)."""
    return tuple(int(part[:9]) for part in re.findall(r"\d+", version.partition("post")[0]))


def find_rule(name: str) -> Variant:
    """A rule by name; raises ``ConfigError`` with the names there are."""
    return RULES.get(name) or choose(RULES, name, "a rule")


def chosen_rule(family: Family, kind: str, flags: dict[str, Any]) -> str:
    """The rule that an engine has for a generation of models with these settings."""
    given = {**family.assumes, **flags}
    own = {name: rule for name, rule in family.rules.items() if kind in rule.default_for}
    fitting = [name for name, rule in own.items() if rule.flags.items() <= given.items()]
    if fitting:
        return max(fitting, key=lambda name: len(own[name].flags))
    if not own:
        replayed = " or ".join(replayed_engines())
        raise ConfigError(f"server is {family.name}: requests are replayed by {replayed}.")
    asked = ", ".join(f"{name} {value}" for name, value in given.items())
    known = " or ".join(f"{name} ({rule.setting})" for name, rule in own.items())
    raise ConfigError(
        f"server has {asked}, and the rules of {family.title} are {known}: choose one of these, "
        "or name a rule."
    )


# ---- flags


def find_flag(family: str, spelling: str) -> Flag | None:
    """The flag of a spelling, dashes or underscores; None where the engine has no such flag."""
    return _by_spelling(family).get(_plain(spelling))


_LEAST_SHORT = 8  # characters: the beginning of a shorter one is rather another's


def whole_flag(family: str, spelling: str) -> str:
    """The only flag that begins with a spelling of some length, else the spelling."""
    known, plain = _by_spelling(family), _plain(spelling)
    if len(plain) < _LEAST_SHORT or plain in known or not FAMILIES[family].launch.shortens:
        return spelling
    found = {id(flag): name for name, flag in known.items() if name.startswith(plain)}
    return next(iter(found.values())) if len(found) == 1 else spelling


def near_flag(family: str, spelling: str) -> str:
    """The flag of sizes that an unknown spelling is a letter or two from; empty where none is."""
    known = {
        _plain(each): each
        for flag in FAMILIES[family].flags
        for each in flag.spellings.split()
        if flag.means is not NOTHING
    }
    found = get_close_matches(_plain(spelling), known, 1, _NEAR)
    return known[found[0]] if found else ""


def flag_for(family: str, name: str) -> str:
    """An engine's flag for an input: ``--max-num-seqs`` for ``request-limit``."""
    flags = _by_spelling(family).values()
    means = (each.name for each in flags if each.means and each.means.input == name)
    return next(means, f"--{name}")


@cache
def _by_spelling(family: str) -> dict[str, Flag]:
    found: dict[str, Flag] = {}
    for flag in FAMILIES[family].flags if family in FAMILIES else ():
        for spelling in flag.spellings.split():
            found.setdefault(_plain(spelling), flag)  # the first of a spelling counts
    return found


def _plain(spelling: str) -> str:
    return spelling.replace("_", "-") if spelling.startswith("--") else spelling
