"""What a kernel does to a KV cache, by rules in ``configs/profile/``."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import yaml

from dsv4kv.files import shipped
from dsv4kv.ops.spec import OPERATIONS
from dsv4kv.runs.profile import OTHER, Category

_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|<unnamed>::")
_DECLARATION = re.compile(r"<|\w\(")
_OPEN, _CLOSE = "<(", ">)"
_WRAPPER = re.compile(r"(?:device_kernel|Kernel2?|enable_sm\w+|kentry)")
_FIRST_ARGUMENT = (
    r"\b{}<(?:[\s\d,]|[\w:]*\bgfx\w+,)*([A-Za-z_][\w:]*)"  # after sizes, and AMD's GPU
)
_MANGLED = re.compile(r"_Z(?:NK?)?(?=\d)")
_MANGLED_ARGUMENT = re.compile(r"I(?:L[ij]\d+E)*N?(?:S\w?_|St)?(?=\d)")  # S1_: named before
_LENGTH = re.compile(r"\d{1,9}")


def shorten(name: str) -> str:
    """``void at::native::(anonymous namespace)::fill<int>(int*)`` is ``fill``.

    CUTLASS and AMD's ck_tile launch everything through a few functions: of those it is what they
    were made for, ``device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<…>>>`` is
    ``FlashAttnFwdSm90``. A name that is no C++ name (of a copy, of a marked range) stays as it is.
    """
    if _MANGLED.match(name):
        return _last_of_mangled(name)
    plain = _ANONYMOUS.sub("", name)
    if not _DECLARATION.search(plain):
        return plain if " " in plain else plain.rsplit("::", 1)[-1]
    words = _outside_brackets(plain).split()
    return _wrapped(plain, words[-1].rsplit("::", 1)[-1]) if words else name


def _wrapped(name: str, short: str) -> str:
    while _WRAPPER.fullmatch(short):
        found = re.search(_FIRST_ARGUMENT.format(short), name)
        if found is None:
            break
        name, short = name[found.start(1) :], found[1].rsplit("::", 1)[-1]
    return short


def _last_of_mangled(name: str) -> str:
    """``_ZN4vllm4copyIiEEvPT_`` is ``copy``: profilers fail to demangle the longest names."""
    begin = _MANGLED.match(name)
    at, last = begin.end() if begin else 0, name
    while True:
        while found := _LENGTH.match(name, at):
            at = found.end() + int(found[0])
            last = name[found.end() : at]
        inner = _MANGLED_ARGUMENT.match(name, at)
        if inner is None or not _WRAPPER.fullmatch(last):
            return last
        at = inner.end()


def _outside_brackets(name: str) -> str:
    depth, kept = 0, []
    for letter in name:
        depth += letter in _OPEN
        if not depth:
            kept.append(letter)
        depth -= letter in _CLOSE and depth > 0
    return "".join(kept)


@dataclass(frozen=True)
class Rule:
    """Kernels of one kind."""

    engine: str  # whose they are
    pattern: re.Pattern[str]  # is searched in the short name
    category: Category  # what they do
    operation: str | None = None
    """Operation of the toolkit that they belong to; None for kernels of others."""


@cache
def shipped_rules() -> tuple[Rule, ...]:
    """The rules of all engines, after the toolkit and its operations."""
    folder = shipped("configs") / "profile"
    paths = sorted(folder.glob("*.yaml"), key=lambda path: (path.stem != "dsv4kv", path.stem))
    rules: list[Rule] = []
    for document in (yaml.safe_load(path.read_text(encoding="utf-8")) for path in paths):
        for category, listed in document["rules"].items():
            operations = listed if isinstance(listed, dict) else dict.fromkeys(listed)
            rules += [
                Rule(document["engine"], re.compile(pattern), category, operation)
                for pattern, operation in operations.items()
            ]
    own = [
        Rule("dsv4kv", re.compile(f"^{operation}$"), OTHER, operation)
        for operation in OPERATIONS
        if find_rule(operation, rules) is None
    ]
    return (*own, *rules)


def find_rule(name: str, rules: Sequence[Rule]) -> Rule | None:
    """The first rule that a kernel's name fits, None where none does."""
    short = shorten(name)
    return next((rule for rule in rules if rule.pattern.search(short)), None)
