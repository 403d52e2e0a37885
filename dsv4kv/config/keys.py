"""Every key of a configuration: type, range, default, meaning; and a configuration as YAML.

There are several kinds of configuration; ``root`` is the class of the one that is meant.
"""

import re
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from typing import Any

import yaml

from dsv4kv.config.bench import BenchConfig, Section

_TYPES = {"integer": "integer", "number": "number", "string": "text", "boolean": "true or false"}
_ARTICLES = {"integer": "an ", "number": "a ", "list of integers": "a "}
_BOUNDS = {
    "exclusiveMinimum": "above",
    "minimum": "at least",
    "maximum": "at most",
    "multipleOf": "a multiple of",
}


@dataclass(frozen=True)
class Key:
    """One key of the configuration, or one section of it, by dotted path."""

    path: str
    # ``section``, ``integer``, ``number``, ``text``, ``choice``, ``list of integers``, …
    type: str
    allowed: str = ""  # range in words, ``above 0, a multiple of 128``; or the choices
    choices: tuple[str, ...] = ()
    nullable: bool = False
    default: Any = None
    description: str = ""

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
    found = _walk("", schema, schema["$defs"], root().model_dump(mode="json"))
    return {key.path: key for key in found}


def _walk(
    prefix: str, section: dict[str, Any], definitions: dict[str, Any], defaults: dict[str, Any]
) -> Iterator[Key]:
    for name, field in section["properties"].items():
        path = prefix + name
        part = definitions.get(field.get("$ref", "").rpartition("/")[2])
        # pydantic leaves it out where the section's docstring is the same
        description = field.get("description") or (part or {})["description"]
        description = " ".join(description.replace("``", "").split())
        if part is not None:
            yield Key(path, "section", description=description)
            yield from _walk(f"{path}.", part, definitions, defaults[name])
        else:
            # of unions the schema has only `X | None`, which pydantic writes as anyOf [X, null]
            value, *null = field.get("anyOf", [field])
            yield Key(path, *_read_type(value), bool(null), defaults[name], description)


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


def keys_of(section: str, root: Root = BenchConfig) -> list[str]:
    """Names of the keys in a section; ``""`` is the top level."""
    parts = (path.rpartition(".") for path in keys(root))
    return [name for parent, _, name in parts if parent == section]


def nearest_key(path: str, root: Root = BenchConfig) -> str | None:
    """The dotted path that a misspelt or misplaced one most likely means, or null."""

    def likeness(key: str) -> tuple[float, float]:
        (section, _, name), (known, _, own) = path.rpartition("."), key.rpartition(".")
        by_name = SequenceMatcher(None, name, own).ratio()
        return by_name + 0.2 * SequenceMatcher(None, section, known).ratio(), by_name

    best = max(keys(root), key=likeness)
    return best if likeness(best)[1] >= 0.6 else None


def unknown_key(path: str, root: Root = BenchConfig) -> str:
    """The sentence about a key that does not exist: the nearest one, and all keys."""
    section = path.rpartition(".")[0]
    while section and not (section in keys(root) and keys(root)[section].is_section):
        section = section.rpartition(".")[0]
    nearest = nearest_key(path, root)
    guess = f" (did you mean {nearest}?)" if nearest else ""
    shown = path if re.fullmatch(r"[\w.-]*[\w-]", path) else reprlib.repr(path)
    return (
        f"unknown key {shown}{guess}; {section or 'the top level'} has "
        f"{', '.join(keys_of(section, root))}."
    )


def render_yaml(config: Section) -> str:
    """Every key with its description as a comment; loading the text gives an equal config."""
    lines = []
    values: Any
    for key in keys(type(config)).values():
        *sections, name = key.path.split(".")
        indent, values = "  " * len(sections), config
        for part in sections:
            values = getattr(values, part)
        value = "" if key.is_section else f" {on_one_line(getattr(values, name))}"
        lines += [f"{indent}# {key.description}", f"{indent}{name}:{value}"]
    return "\n".join(lines) + "\n"


def on_one_line(value: Any) -> str:
    """A value as YAML on one line."""
    # double quotes escape line breaks, which other styles write as such
    style = '"' if isinstance(value, str) and not value.isprintable() else None
    value = list(value) if isinstance(value, tuple) else value
    text = yaml.safe_dump(
        value, default_flow_style=True, default_style=style, allow_unicode=True, width=10**9
    )
    return text.removesuffix("...\n").rstrip("\n")
