"""Shell scripts, as far as launch commands need them: statements, quotes, variables."""

import re
from collections.abc import Iterator, Mapping

from dsv4kv.errors import ConfigError

_TOKEN = re.compile(
    r"""(?P<join>\\\r?\n) | (?P<escape>\\.?) | (?P<single>'[^']*')
    | (?P<double>"(?:\\.|[^"\\])*") | (?P<comment>(?<![^\s;&|])\#[^\n]*) | (?P<end>[\n;&|])
    | (?P<blank>[^\S\n]+) | (?P<plain>[^\\'"\s;&|]+) | (?P<open>['"])""",
    re.VERBOSE | re.DOTALL,
)
_HIDDEN = "\0"  # a dollar sign within single quotes
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(
    r"\$(?:(?P<plain>\w+)|\{(?P<name>\w+)(?:(?P<how>:?[-=+?])(?P<other>[^}]*))?\})"
)
_KEYWORDS = {"exec", "sudo", "nohup", "time", "env", "then", "do", "else", "command", "$", "!"}


def split_statements(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the words of every statement with its line, quotes and comments resolved.

    Variables stay as they are written, hidden within single quotes.

    Raises:
        ConfigError: A quote that is not closed; names its line.
    """
    words: list[str] = []
    parts: list[str] = []  # of a word
    first = 1
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or ""
        if kind == "open":
            line = text.count("\n", 0, match.start()) + 1
            raise ConfigError(f"line {line}: a quote {match[0]} is opened and never closed.")
        if kind in ("blank", "end"):
            words += ["".join(parts)] if parts else []
            parts = []
            if kind == "end" and words:
                yield first, words
                words = []
        elif kind not in ("join", "comment"):
            if not words and not parts:
                first = text.count("\n", 0, match.start()) + 1
            parts.append(_unquoted(kind, match[0]))
    words += ["".join(parts)] if parts else []
    if words:
        yield first, words


def _unquoted(kind: str, token: str) -> str:
    if kind == "single":
        return token[1:-1].replace("$", _HIDDEN)
    if kind == "double":
        return re.sub(r'\\(["\\$`])', r"\1", token[1:-1].replace("\\\n", ""))
    return token[1:] if kind == "escape" else token


def fill_in(word: str, variables: Mapping[str, str]) -> str:
    """A word with its variables; those that nothing sets stay as they are written."""

    def value(match: re.Match[str]) -> str:
        name = match["plain"] or match["name"]
        found, how = variables.get(name), match["how"] or ""
        if "+" in how:
            return match["other"] if found else ""
        if found is None and how:
            return fill_in(match["other"], variables) if how[-1] in "-=" else match[0]
        return match[0] if found is None else found

    return _VARIABLE.sub(value, word).replace(_HIDDEN, "$")


def take_assignments(words: list[str], variables: dict[str, str]) -> list[str]:
    """The words after ``NAME=value`` and ``export``; what they set goes to ``variables``."""
    rest = list(words)
    while rest:
        match = _ASSIGNMENT.fullmatch(rest[0])
        if match:
            variables[match[1]] = fill_in(match[2], variables)
        elif rest[0] not in ("export", "declare", "local", "readonly", *_KEYWORDS):
            break
        rest.pop(0)
    return rest
