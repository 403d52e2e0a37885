"""Kernel names as people say them."""

import re

_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|<unnamed>::")
_DECLARATION = re.compile(r"<|\w\(")
_OPEN, _CLOSE = "<(", ">)"


def shorten(name: str) -> str:
    """``void at::native::(anonymous namespace)::fill<int>(int*)`` is ``fill``.

    A name that is no C++ name (of a copy, of a marked range) stays as it is.
    """
    plain = _ANONYMOUS.sub("", name)
    if not _DECLARATION.search(plain):
        return plain if " " in plain else plain.rsplit("::", 1)[-1]
    words = _outside_brackets(plain).split()
    return words[-1].rsplit("::", 1)[-1] if words else name


def _outside_brackets(name: str) -> str:
    """The name without template arguments and parameters."""
    depth, kept = 0, []
    for letter in name:
        depth += letter in _OPEN
        if not depth:
            kept.append(letter)
        depth -= letter in _CLOSE and depth > 0
    return "".join(kept)
