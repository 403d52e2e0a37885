"""Every key of a configuration, as its schema describes it: type, range, default, meaning.

There are several kinds of configuration; ``root`` is the class of the one that is meant.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from typing import Any

from dsv4kv.config.bench import BenchConfig, Section

_TYPES = {
    "integer": "integer",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
}
_ARTICLES = {"integer": "an ", "number": "a ", "list of integers": "a "}
_BOUNDS = {
    "exclusiveMinimum": "above",
    "minimum": "at least",
    "maximum": "at most",
    "multipleOf": "a multiple of",
}
_CLOSE = 0.6  # difflib's own cutoff for a close match


@dataclass(frozen=True)
class Key:
    """One key of the configuration, or one section of it.

    Attributes:
        path: Dotted path, ``cache.block_tokens``.
        type: ``section``, ``integer``, ``number``, ``text``, ``choice``, ``list of integers``, …
        allowed: Range in words, ``above 0, a multiple of 128``; the choices; or nothing.
        choices: Allowed words of a ``choice``.
        nullable: Whether null is allowed too.
        default: Value where a file says nothing; null for a section.
        description: What the value means.
    """

    path: str
    type: str
    allowed: str
    choices: tuple[str, ...]
    nullable: bool
    default: Any
    description: str

    @property
    def is_section(self) -> bool:
        """Whether the key holds other keys."""
        return self.type == "section"

    @property
    def is_integer(self) -> bool:
        """Whether the value is an integer or a list of them."""
        return "integer" in self.type

    @property
    def is_numeric(self) -> bool:
        """Whether the value is a number or a list of them."""
        return self.is_integer or "number" in self.type

    @property
    def expected(self) -> str:
        """What a value must be, to end a sentence: ``an integer above 0, or null``."""
        type_ = "one of" if self.choices else _ARTICLES.get(self.type, "") + self.type
        return f"{type_} {self.allowed}".strip() + (", or null" if self.nullable else "")


Root = type[Section]


@cache
def keys(root: Root = BenchConfig) -> dict[str, Key]:
    """All keys and sections by dotted path, in the order of the schema."""
    schema = root.model_json_schema()
    defaults = root().model_dump(mode="json")
    return {key.path: key for key in _walk("", schema, schema["$defs"], defaults)}


def keys_of(section: str, root: Root = BenchConfig) -> list[str]:
    """Names of the keys in a section; ``""`` is the top level."""
    return [
        name
        for parent, _, name in (path.rpartition(".") for path in keys(root))
        if parent == section
    ]


def nearest_key(path: str, root: Root = BenchConfig) -> str | None:
    """The dotted path a misspelt or misplaced one most likely means, or null."""
    section, _, name = path.rpartition(".")

    def likeness(candidate: str) -> tuple[float, float]:
        its_section, _, its_name = candidate.rpartition(".")
        by_name = SequenceMatcher(None, name, its_name).ratio()
        return by_name + 0.2 * SequenceMatcher(None, section, its_section).ratio(), by_name

    best = max(keys(root), key=likeness)
    return best if likeness(best)[1] >= _CLOSE else None


def unknown_key(path: str, root: Root = BenchConfig) -> str:
    """The sentence about a key that does not exist: the nearest one, and what there is."""
    section = path.rpartition(".")[0]
    while section and not (section in keys(root) and keys(root)[section].is_section):
        section = section.rpartition(".")[0]
    nearest = nearest_key(path, root)
    guess = f" (did you mean {nearest}?)" if nearest else ""
    return (
        f"unknown key {path}{guess}; {section or 'the top level'} has "
        f"{', '.join(keys_of(section, root))}."
    )


def _walk(
    prefix: str, section: dict[str, Any], definitions: dict[str, Any], defaults: dict[str, Any]
) -> Iterator[Key]:
    for name, field in section["properties"].items():
        path = prefix + name
        if "$ref" in field:
            part = definitions[field["$ref"].rpartition("/")[2]]
            description = _plain(field.get("description", part["description"]))
            yield Key(path, "section", "", (), False, None, description)
            yield from _walk(f"{path}.", part, definitions, defaults[name])
        else:
            # of unions the schema has only `X | None`, which pydantic writes as anyOf [X, null]
            value, *null = field.get("anyOf", [field])
            type_, allowed, choices = _read_type(value)
            description = _plain(field["description"])
            yield Key(path, type_, allowed, choices, bool(null), defaults[name], description)


def _read_type(field: dict[str, Any]) -> tuple[str, str, tuple[str, ...]]:
    """Type, range in words, and choices of one field of a JSON schema."""
    if "enum" in field or "const" in field:
        choices = tuple(field.get("enum") or [field["const"]])
        return "choice", ", ".join(choices), choices
    if field["type"] == "array":
        type_, allowed, _ = _read_type(field["items"])
        return f"list of {type_}s", allowed, ()
    bounds = (f"{word} {field[bound]:,}" for bound, word in _BOUNDS.items() if bound in field)
    return _TYPES[field["type"]], ", ".join(bounds), ()


def _plain(description: str) -> str:
    return " ".join(description.replace("``", "").split())
