"""Engines by name."""

import re
from importlib import import_module
from typing import cast

from dsv4kv.engines.contract import Engine
from dsv4kv.errors import ConfigError
from dsv4kv.names import find_name

ENGINES: dict[str, str] = {
    # name: where its rules are; of a family, the oldest first
    "dsv4kv": "own:OwnEngine",
    "vllm:0.22": "vllm.sizing:V0_22",
    "vllm:0.25": "vllm.sizing:V0_25",
    "vllm:0.26": "vllm.sizing:V0_26",
    "vllm:0.27": "vllm.sizing:V0_27",
    "vllm:0.28": "vllm.sizing:V0_28",
    "vllm:0.33": "vllm.sizing:V0_33",
    "sglang:0.5.12": "sglang.sizing:V0_5_12",
    "sglang:0.5.14": "sglang.sizing:V0_5_14",
    "sglang:0.5.19": "sglang.sizing:V0_5_19",
    "sglang:0.5.20": "sglang.sizing:V0_5_20",
    "sglang:0.5.23": "sglang.sizing:V0_5_23",
    "trtllm": "trtllm:TrtllmEngine",
}
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
    module, _, attribute = ENGINES[name].partition(":")
    found = getattr(import_module(f"dsv4kv.engines.{module}"), attribute)
    return cast(Engine, found() if isinstance(found, type) else found)
