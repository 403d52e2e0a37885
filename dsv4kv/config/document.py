"""A YAML document whose values know their lines."""

import re
import reprlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, TypeVar

import yaml
from pydantic_core import ErrorDetails

from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.keys import Key, Root, keys, keys_of, unknown_key
from dsv4kv.errors import ConfigError

Location = tuple[str | int, ...]
"""Names and list indices from the top of a configuration to a value."""

T = TypeVar("T")
R = TypeVar("R")
_EXPONENT = re.compile(r"[0-9]+e\+?1?[0-9]", re.IGNORECASE)
_CLOSE = 0.7  # gpu is not close to cpu
_BOOLEANS = ("true", "false")
_SHORT = reprlib.Repr()
_SHORT.maxstring, _SHORT.maxlevel = 60, 1


@dataclass(frozen=True, order=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        line: Line of the file, from 1; 0 for a command-line option.
        source: File name, or the option as given.
        sentence: What was given, what is allowed, what to do.
    """

    line: int
    source: str
    sentence: str

    def __str__(self) -> str:
        place = f"{self.source}:{self.line}" if self.line else self.source
        return f"{place}: {self.sentence}"


def refuse(problems: Iterable[Problem]) -> ConfigError:
    """One error that names all problems, a line each, in the order of the file."""
    return ConfigError("\n".join(str(problem) for problem in sorted(set(problems))))


def gather(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Apply a function to every item; where some are refused, raise one error that names all."""
    results, refusals = [], dict[str, None]()
    for item in items:
        try:
            results.append(function(item))
        except ConfigError as error:
            refusals |= dict.fromkeys(str(error).splitlines())
    if refusals:
        raise ConfigError("\n".join(refusals))
    return results


def dotted(location: Location) -> str:
    """A location as people write it: ``model.layers[1]``."""
    names = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return "".join(names).removeprefix(".")


def key_path(location: Location) -> str:
    """The dotted path of the key a location is in: list indices left out."""
    return ".".join(part for part in location if isinstance(part, str))


def mentioned_keys(
    section: Location, sentence: str, root: Root = BenchConfig
) -> list[tuple[str, ...]]:
    """Keys of a section that a cross-field validator's sentence names, in its order."""
    prefix = f"{key_path(section)}." if section else ""
    words = (prefix + word for word in re.findall(r"[a-z_]+(?:\.[a-z_]+)*", sentence))
    return [tuple(path.split(".")) for path in words if path in keys(root)]


def explain(error: ErrorDetails, root: Root = BenchConfig) -> str:
    """Turn one pydantic error into a sentence."""
    path = key_path(error["loc"])
    if error["type"] == "value_error":
        reason = str(error["ctx"]["error"]).rstrip(".")
        return f"{path}: {reason}." if path else f"{reason}."
    if error["type"] == "extra_forbidden":
        return _unknown(path, root)
    given = f"{dotted(error['loc'])} is {_shown(error['input'])}"
    key = keys(root)[path]
    if key.is_section:
        names = ", ".join(keys_of(path, root))
        return f"{given}, but it is a section: indent its keys below it ({names})."
    return f"{given}: give {key.expected}{_hint(key, error['input'])}."


def _unknown(path: str, root: Root) -> str:
    if path in keys(root):
        section, _, name = path.rpartition(".")
        return f"{path}: a dot makes no section in YAML: write {name} indented below {section}."
    return unknown_key(path, root)


def _hint(key: Key, value: Any) -> str:
    if isinstance(value, bool) or (key.is_numeric and value in _BOOLEANS):
        return " (YAML reads on, off, yes and no as true or false: quote a word to keep it)"
    if key.choices and (close := get_close_matches(str(value), key.choices, 1, _CLOSE)):
        return f" (did you mean {close[0]}?)"
    if key.type == "text" and isinstance(value, int | float):
        return " (quote it to make it text)"
    if isinstance(value, str) and _EXPONENT.fullmatch(value):
        return f" (YAML reads {value} as text: write {float(value):.0f})"
    if isinstance(value, str) and key.type == "integer":
        is_size = key.path.endswith("_bytes")
        return " (512MiB and 80GB work too)" if is_size else " (128K and 1M work too)"
    is_large = key.is_integer and isinstance(value, int) and value >= 2**63
    return " (and below 2^63)" if is_large else ""


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and value.bit_length() > 64:
        return _SHORT.repr(hex(value))  # in any length, where decimal digits have a limit
    return value if value in _BOOLEANS else _SHORT.repr(value)


_TAG = "tag:yaml.org,2002:"
_CONSTRUCTOR = yaml.constructor.SafeConstructor()
_TYPED = {
    f"{_TAG}null": _CONSTRUCTOR.construct_yaml_null,
    f"{_TAG}bool": _CONSTRUCTOR.construct_yaml_bool,
    f"{_TAG}int": _CONSTRUCTOR.construct_yaml_int,
    f"{_TAG}float": _CONSTRUCTOR.construct_yaml_float,
}
# YAML 1.1 reads 010 as octal and 1:30 as base 60; nobody means that here
_MOST_MERGED = 10_000
_OCTAL_OR_BASE_60 = re.compile(r"[-+]?0[0-9_]|.*:")
_UNFINISHED = object()

Fault = tuple[int, str]  # line, sentence


@dataclass(frozen=True)
class Document:
    """A parsed configuration file.

    Attributes:
        source: File name for messages.
        root: The composed mapping.
        values: Plain values of the mapping; all keys are text.
        problems: Duplicate keys, tags and loops; ``values`` is usable in spite of them.
    """

    source: str
    root: yaml.MappingNode
    values: dict[str, Any]
    problems: tuple[Problem, ...]

    def line(self, location: Location) -> int:
        """Line of the value, or of the nearest part above it that the file has."""
        return self._trace(location)[-1].line + 1

    def has(self, location: Location) -> bool:
        """Whether the file gives this value."""
        return len(self._trace(location)) == len(location) + 1

    def _trace(self, location: Location) -> list[yaml.Mark]:
        """Marks from the top towards a location, as far as the file goes."""
        node: yaml.Node = self.root
        marks = [node.start_mark]
        for part in location:
            found = _child(node, part)
            if found is None:
                break
            mark, node = found
            marks.append(mark)
        return marks


def read_document(text: str, source: str, root: Root = BenchConfig) -> Document:
    """Parse a configuration file.

    Raises:
        ConfigError: Broken YAML, more than one document, or anything but a mapping.
    """
    try:
        top = _compose(text)
        values, faults = _build(top)
    except _Unreadable as error:
        raise refuse([Problem(error.line, source, error.sentence)]) from None
    if not isinstance(top, yaml.MappingNode):
        kind = {type(None): "empty", list: "a list"}.get(type(values), "a single value")
        wanted = ", ".join(keys_of("", root))
        sentence = f"the file is {kind}: a configuration is a mapping of {wanted}."
        raise refuse([Problem(1, source, sentence)])
    problems = tuple(Problem(line, source, sentence) for line, sentence in faults)
    return Document(source, top, values, problems)


def read_value(text: str, option: str) -> Any:
    """Parse the value of a command-line option as YAML.

    Raises:
        ConfigError: Broken YAML, duplicate keys, tags or loops.
    """
    try:
        value, faults = _build(_compose(text))
    except _Unreadable as error:
        raise refuse([Problem(0, option, error.sentence)]) from None
    if faults:
        raise refuse(Problem(0, option, sentence) for _, sentence in faults)
    return value


class _Unreadable(Exception):
    def __init__(self, line: int, sentence: str) -> None:
        super().__init__(sentence)
        self.line, self.sentence = line, sentence


def _compose(text: str) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        raise _not_yaml(error) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        character = repr(chr(error.character))
        sentence = f"the character {character} is not allowed in YAML: is this a text file?"
        raise _Unreadable(line, sentence) from None
    except RecursionError:
        raise _Unreadable(1, "the values are nested too deeply.") from None


def _build(root: yaml.Node | None) -> tuple[Any, list[Fault]]:
    builder = _Builder()
    try:
        return (None if root is None else builder.build(root)), builder.faults
    except yaml.MarkedYAMLError as error:
        raise _not_yaml(error) from None


def _not_yaml(error: yaml.MarkedYAMLError) -> _Unreadable:
    mark = error.problem_mark or error.context_mark
    reasons = ", ".join(filter(None, (error.context, error.problem)))
    tab = " (indent with spaces, not tabs)" if "'\\t'" in reasons else ""
    return _Unreadable(mark.line + 1 if mark else 1, f"this is not YAML: {reasons}{tab}.")


class _Builder:
    """Plain values from nodes: a node with several aliases is built once, a loop is refused."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self._values: dict[int, Any] = {}
        self._counts: dict[int, int] = {}

    def build(self, node: yaml.Node) -> Any:
        if id(node) not in self._values:
            self._values[id(node)] = _UNFINISHED
            self._values[id(node)] = self._value(node)
        elif self._values[id(node)] is _UNFINISHED:
            self._report(
                node, "an alias refers to the value that contains it: write the value out."
            )
            return None
        return self._values[id(node)]

    def _value(self, node: yaml.Node) -> Any:
        if not node.tag.startswith(_TAG) or node.tag.startswith(f"{_TAG}python/"):
            self._report(node, f"the tag {node.tag} is not allowed: write a plain value.")
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node)
        return [self.build(item) for item in node.value]

    def _mapping(self, node: yaml.MappingNode) -> dict[str, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._report(key, f"a {key.id} is in the place of a key: write `key: value`.")
            elif key.value in lines and key.tag != f"{_TAG}merge":
                first = lines[key.value]
                self._report(key, f"{key.value} is given twice, first on line {first}: keep one.")
            else:
                lines[key.value] = key.start_mark.line + 1
        if self._count(node) > _MOST_MERGED:
            self._report(node, f"more than {_MOST_MERGED:,} keys are merged (<<): write them out.")
            return {}
        _CONSTRUCTOR.flatten_mapping(node)  # << merges, which own keys override
        pairs = ((key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode))
        return {key.value: self.build(value) for key, value in pairs}

    def _count(self, node: yaml.Node) -> int:
        """Keys of a mapping once its merges are written out; of a list the keys of all."""
        if id(node) not in self._counts:
            self._counts[id(node)] = 0  # what merges itself is refused elsewhere
            if isinstance(node, yaml.MappingNode):
                merged = [value for key, value in node.value if key.tag == f"{_TAG}merge"]
                self._counts[id(node)] = len(node.value) + sum(map(self._count, merged))
            elif isinstance(node, yaml.SequenceNode):
                self._counts[id(node)] = sum(map(self._count, node.value))
        return self._counts[id(node)]

    def _report(self, node: yaml.Node, sentence: str) -> None:
        self.faults.append((node.start_mark.line + 1, sentence))


def _scalar(node: yaml.ScalarNode) -> Any:
    if node.tag not in _TYPED or _OCTAL_OR_BASE_60.match(node.value):
        return node.value
    try:
        return _TYPED[node.tag](node)
    except (ValueError, KeyError):
        return node.value


def _child(node: yaml.Node, part: str | int) -> tuple[yaml.Mark, yaml.Node] | None:
    """Where a key or a list item begins, and its value."""
    if isinstance(node, yaml.MappingNode):
        found = [(key.start_mark, value) for key, value in node.value if key.value == part]
        return found[-1] if found else None
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part].start_mark, node.value[part]
    return None


@dataclass(frozen=True)
class Setting:
    """A value for one key.

    Attributes:
        path: Names from the top of the configuration to the key.
        value: The value, not yet validated.
        option: The option as given, for messages.
    """

    path: tuple[str, ...]
    value: Any
    option: str


class Placed(str):
    """``KEY=VALUE`` as ``--set`` takes it, which messages give by its place."""

    place: str

    def __new__(cls, text: str, place: str) -> "Placed":
        """``place`` begins a sentence: ``fleet.decode: …``."""
        made = super().__new__(cls, text)
        made.place = place
        return made


def parse_overrides(texts: Sequence[str], root: Root = BenchConfig) -> list[Setting]:
    """Parse ``--set`` options; the value is YAML, and of two for one key the last one counts.

    Raises:
        ConfigError: Not ``KEY=VALUE``, no such key, or a value that is not YAML; all of them,
            a line each.
    """
    return gather(partial(_parse_override, root), texts)


def _parse_override(root: Root, text: str) -> Setting:
    option = text.place if isinstance(text, Placed) else f"--set {text}"
    path, value = split_option(option, text, root)
    return Setting(path, read_value(value, option), option)


def split_option(option: str, text: str, root: Root = BenchConfig) -> tuple[tuple[str, ...], str]:
    """Split ``KEY=VALUE`` and check that the key exists and takes a value.

    Raises:
        ConfigError: It does not; ``option`` is named.
    """
    path, equals, value = (part.strip() for part in text.partition("="))
    if not path or not equals:
        raise ConfigError(f"{option}: write KEY=VALUE, for example cache.block_tokens=256.")
    if path not in keys(root):
        raise ConfigError(f"{option}: {unknown_key(path, root)}")
    if keys(root)[path].is_section:
        names = ", ".join(keys_of(path, root))
        raise ConfigError(f"{option}: {path} is a section: set one of its keys ({names}).")
    if not value:
        null = f"; write {path}=null for none" if keys(root)[path].nullable else ""
        raise ConfigError(f"{option}: the value is missing{null}.")
    return tuple(path.split(".")), value
