"""What a kernel does to a KV cache, by rules in ``configs/profile/``."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal, get_args

import yaml

from dsv4kv.measure.profilers.names import shorten
from dsv4kv.resources import shipped

Category = Literal["insert", "gather", "compress", "indexer", "attention", "other"]
CATEGORIES: Final[tuple[Category, ...]] = get_args(Category)
CACHE_CATEGORIES: Final[tuple[Category, ...]] = CATEGORIES[:4]
"""Those that are work on the cache: attention reads it, but would be there without."""
OTHER: Final[Category] = "other"


@dataclass(frozen=True)
class Rule:
    """Kernels of one kind.

    Attributes:
        engine: Whose they are.
        pattern: Is searched in the short name.
        category: What they do.
        operation: Operation of the toolkit that they belong to; None for those of others.
    """

    engine: str
    pattern: re.Pattern[str]
    category: Category
    operation: str | None = None


@cache
def shipped_rules() -> tuple[Rule, ...]:
    """The rules of all engines; those of the toolkit itself come first."""
    folder = shipped("configs") / "profile"
    paths = sorted(folder.glob("*.yaml"), key=lambda path: (path.stem != "dsv4kv", path.stem))
    return tuple(rule for path in paths for rule in _read(path))


def find_rule(name: str, rules: Sequence[Rule]) -> Rule | None:
    """The first rule that a kernel's name fits, None where none does."""
    short = shorten(name)
    return next((rule for rule in rules if rule.pattern.search(short)), None)


def _read(path: Path) -> list[Rule]:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [
        Rule(document["engine"], re.compile(pattern), category, operation)
        for category, listed in document["rules"].items()
        for pattern, operation in _pairs(listed)
    ]


def _pairs(listed: list[str] | dict[str, str | None]) -> list[tuple[str, str | None]]:
    """Patterns, each with its operation where the file gives one."""
    return list(listed.items()) if isinstance(listed, dict) else [(one, None) for one in listed]
