"""Engines by name."""

import re
from typing import cast

from dsv4kv.choices import ENGINES
from dsv4kv.engines.contract import Engine
from dsv4kv.errors import ConfigError, find_name

_OLDEST = {"vllm": "0.20", "sglang": "0.5.12"}


def engine_family(family: str) -> list[str]:
    """Names of all known rules of ``vllm`` or ``sglang``, the oldest first."""
    return [key for key in ENGINES if key.startswith(f"{family}:")]


def find_engine(name: str) -> Engine:
    """The rules of an engine: ``vllm:0.33``, a version between two, or ``vllm`` for the newest.

    Raises:
        ConfigError: No such engine, or a version outside those whose rules are known; names the
            nearest.
    """
    family, _, version = name.strip().lower().partition(":")
    known = engine_family(family)
    if known and version:
        return _load(_covering(name, family, version.removeprefix("v"), known))
    return _load(known[-1] if known else find_name(name, list(ENGINES), "engine"))


def _covering(name: str, family: str, version: str, known: list[str]) -> str:
    """The oldest rules that are not older than the version."""
    if not re.match(r"\d+(\.\d+)*", version):
        raise ConfigError(f"{name!r} names no version: give one of {', '.join(known)}.")
    wanted = _numbers(version)
    newest = [_numbers(key.partition(":")[2]) for key in known]
    if wanted < _numbers(_OLDEST[family]):
        raise ConfigError(
            f"the rules of {name} are not known, only from {_OLDEST[family]} on: "
            f"the nearest is {known[0]}."
        )
    for key, numbers in zip(known, newest, strict=True):
        if wanted[: len(numbers)] <= numbers:
            return key
    raise ConfigError(f"the rules of {name} are not known: the nearest is {known[-1]}.")


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: ``0.5.15.post1`` is (0, 5, 15)."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("post")[0]))


def _load(name: str) -> Engine:
    found = ENGINES[name].load()
    return cast(Engine, found() if isinstance(found, type) else found)
