"""Load a configuration: a shipped name or a file, overrides and sweeps; errors name the line."""

import hashlib
import itertools
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial, reduce
from operator import getitem
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, overload

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from dsv4kv import files
from dsv4kv.choices import BACKENDS, PEERS, listed
from dsv4kv.config.bench import BenchConfig, Section
from dsv4kv.config.experiments import SystemsConfig, TiersConfig, TransferConfig
from dsv4kv.config.keys import Key, Root, keys, keys_of, unknown_key
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.errors import ConfigError
from dsv4kv.units import check_points, parse_bytes, parse_count

ConfigT = TypeVar("ConfigT", bound=Section)
T = TypeVar("T")
R = TypeVar("R")
Location = tuple[str | int, ...]
"""Names and list indices from the top of a configuration to a value."""

_MOST_PROBLEMS = 20  # of a configuration that are printed
_MOST_BYTES = 1 << 18  # YAML is read slowly, and a configuration has two pages
_FOLDERS: dict[Root, str] = {
    BenchConfig: "bench",
    ReplayConfig: "replay",
    SystemsConfig: "systems",
    TiersConfig: "tiers",
    TransferConfig: "transfer",
}
_SHORT = reprlib.Repr()
_SHORT.maxstring, _SHORT.maxlevel = 60, 1


@dataclass(frozen=True)
class Loaded(Generic[ConfigT]):
    """A validated configuration with overrides, and the text that it came from without."""

    config: ConfigT
    source: str
    text: str
    sha256: str


LoadedConfig = Loaded[BenchConfig]


@dataclass(frozen=True)
class Point(Generic[ConfigT]):
    """One point of a sweep: the validated value of every swept key by dotted path, as JSON."""

    axis: dict[str, Any]
    config: ConfigT


class _Setting(NamedTuple):
    """A value, not yet validated, for one key; ``option`` is how it was given, for messages."""

    path: tuple[str, ...]
    value: Any
    option: str


def shipped_names(root: Root = BenchConfig) -> list[str]:
    """Names of the shipped configurations of a kind, sorted."""
    return files.shipped_names(_FOLDERS[root])


def find_config(source: str, root: Root = BenchConfig) -> Path:
    """Path of a configuration: the shipped one of this name, else the name as is."""
    if source in shipped_names(root):
        return files.shipped("configs") / _FOLDERS[root] / f"{source}.yaml"
    return Path(source)


@overload
def load_config(source: str | None, overrides: Sequence[str] = ...) -> LoadedConfig: ...
@overload
def load_config(
    source: str | None, overrides: Sequence[str], root: type[ConfigT]
) -> Loaded[ConfigT]: ...
def load_config(
    source: str | None, overrides: Sequence[str] = (), root: Root = BenchConfig
) -> Loaded[Any]:
    """Load a shipped configuration by name, or a file by path; null takes the default.

    ``overrides`` are ``KEY=VALUE``, the value in YAML; ``root`` is the kind of configuration.

    Raises:
        ConfigError: No such file, or not a valid configuration: all problems, a line each.
    """
    source = "default" if source is None else source
    path = find_config(source, root)
    try:
        content = files.read_document(path, _MOST_BYTES)
        text = content.decode("utf-8-sig")
    except OSError as error:
        names = shipped_names(root)
        close = get_close_matches(str(path), names, 1)
        guess = f" (did you mean {close[0]}?)" if close else ""
        raise ConfigError(
            f"configuration {str(path)!r} cannot be read ({error.strerror}){guess}: give the path "
            f"of a YAML file or a shipped name ({', '.join(names)})."
        ) from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path}:{line}: byte 0x{content[error.start]:02x} is not UTF-8: "
            "a configuration is a YAML text file."
        ) from None
    config = _Document(text, str(path), root).resolve(_overrides(root, "--set", overrides))
    return Loaded(config, source, text, hashlib.sha256(content).hexdigest())


def expand_axes(
    loaded: Loaded[ConfigT], overrides: Sequence[str], axes: Sequence[str]
) -> list[Point[ConfigT]]:
    """Expand ``KEY=VALUE,VALUE`` axes to their product, the last axis changing fastest.

    Without axes there is one point, with an empty ``axis``.

    Raises:
        ConfigError: A key that is swept twice or also set, an axis without values or with one
            value twice, too many points, or values that do not validate: all of them, a line each.
    """
    root = type(loaded.config)
    settings = _overrides(root, "--set", overrides)
    check_points([sum(text.count(",") + 1 for text in axes)])  # before they are parsed
    swept = _gather(partial(_parse, root, "--axis"), axes)
    given = {setting.path: setting.option for setting in settings}
    for path, option in ((axis[0].path, axis[0].option) for axis in swept):
        if path in given:
            raise ConfigError(
                f"{option}: {'.'.join(path)} is also given by {given[path]}: keep one."
            )
        given[path] = option
    check_points(map(len, swept))
    document = _Document(loaded.text, str(find_config(loaded.source, root)), root)

    def point(chosen: Sequence[_Setting]) -> Point[ConfigT]:
        config = document.resolve([*settings, *chosen])
        values = config.model_dump(mode="json")
        axis = {".".join(each.path): reduce(getitem, each.path, values) for each in chosen}
        return Point(axis, config)

    points = _gather(point, itertools.product(*swept))
    for number, each in enumerate(points):
        if any(each.axis == other.axis for other in points[:number]):
            values = ", ".join(f"{key}={value}" for key, value in each.axis.items())
            raise ConfigError(f"--axis {' --axis '.join(axes)}: {values} comes twice: keep one.")
    return points


def change_config(config: ConfigT, settings: Sequence[str], place: str) -> ConfigT:
    """The configuration with ``KEY=VALUE`` settings changed; ``place`` begins error messages."""
    document = _Document("{}", place, type(config))
    document.values = config.model_dump()
    changed: ConfigT = document.resolve(_overrides(type(config), place, settings))
    return changed


def _gather(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
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


def _parse(root: Root, option: str, text: str) -> list[_Setting]:
    """The setting that ``KEY=VALUE`` means; of an axis, one for every value."""
    place = f"{option} {text}"
    name, equals, value = (part.strip() for part in text.partition("="))
    if not name or not equals:
        raise ConfigError(f"{place}: write KEY=VALUE, for example cache.block_tokens=256.")
    if name not in keys(root):
        raise ConfigError(f"{place}: {unknown_key(name, root)}")
    key, path = keys(root)[name], tuple(name.split("."))
    if key.is_section:
        names = ", ".join(keys_of(name, root))
        raise ConfigError(f"{place}: {name} is a section: set one of its keys ({names}).")
    if not value:
        null = f"; write {name}=null for none" if key.nullable else ""
        raise ConfigError(f"{place}: the value is missing{null}.")
    if option != "--axis":
        return [_Setting(path, _parse_yaml(value, lambda line: place)[0], place)]
    if value.endswith(","):
        raise ConfigError(f"{place}: a value is missing after the last comma.")
    # the items of a YAML flow list: commas inside [0, 2] or "a, b" do not split
    items, _ = _parse_yaml(f"[{value}]", lambda line: place)
    return [_Setting(path, item, place) for item in items]


def _overrides(root: Root, option: str, texts: Iterable[str]) -> list[_Setting]:
    return [setting for (setting,) in _gather(partial(_parse, root, option), texts)]


class _Refused(yaml.MarkedYAMLError):
    """What is YAML and not allowed here: ``problem`` is the sentence."""


class _Loader(files.YamlLoader):
    """YAML whose keys are text and given once, without octal numbers, base 60, dates and tags."""

    yaml_implicit_resolvers: ClassVar = {  # type: ignore[misc]
        first: [(tag, form) for tag, form in rows if not tag.endswith((":int", ":timestamp"))]
        for first, rows in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                sentence = f"a {key.id} is in the place of a key: write `key: value`."
                raise _Refused(problem=sentence, problem_mark=key.start_mark)
            if key.value in lines and key.tag != f"{_TAG}merge":
                first = lines[key.value]
                sentence = f"{key.value} is given twice, first on line {first}: keep one."
                raise _Refused(problem=sentence, problem_mark=key.start_mark)
            lines[key.value] = key.start_mark.line + 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        self.flatten_mapping(node)  # << merges, which own keys override
        return {key.value: self.construct_object(value, True) for key, value in node.value}


_TAG = "tag:yaml.org,2002:"


def _construct_scalar(loader: _Loader, node: yaml.ScalarNode) -> Any:
    try:
        return files.YamlLoader.yaml_constructors[node.tag](loader, node)
    except (ValueError, KeyError):  # 0_, or hundreds of digits: text, which validation refuses
        return node.value


def _refuse_tag(loader: _Loader, node: yaml.Node) -> None:
    sentence = f"the tag {node.tag} is not allowed: write a plain value."
    raise _Refused(problem=sentence, problem_mark=node.start_mark)


_Loader.add_implicit_resolver(
    f"{_TAG}int", re.compile(r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F]+)$"), list("-+0123456789")
)
for _kind in ("null", "bool", "int", "float"):
    _Loader.add_constructor(f"{_TAG}{_kind}", _construct_scalar)
for _tag in (*(f"{_TAG}{each}" for each in ("timestamp", "binary", "omap", "pairs", "set")), None):
    _Loader.add_constructor(_tag, _refuse_tag)


def _parse_yaml(text: str, place: Callable[[int], str]) -> tuple[Any, yaml.Node | None]:
    """Values of a YAML text and its nodes; ``place`` of a line begins an error message."""
    line = 1
    try:
        node = yaml.compose(text, _Loader)
        if node is None:
            return None, None
        files.check_yaml_size(node)
        loader = _Loader("")
        return loader.construct_document(node), node
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        sentence = str(error.problem)
        if not isinstance(error, _Refused):
            reasons = ", ".join(filter(None, (error.context, error.problem)))
            tab = " (indent with spaces, not tabs)" if "'\\t'" in reasons else ""
            sentence = f"this is not YAML: {reasons}{tab}."
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        character = repr(chr(error.character))
        sentence = f"the character {character} is not allowed in YAML: is this a text file?"
    except (files.Unparsable, RecursionError) as error:
        nested = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        sentence = f"this is not a configuration: {nested}."
    raise ConfigError(f"{place(line)}: {sentence}")


class _Document:
    """A configuration file: its values, and where each of them is."""

    def __init__(self, text: str, source: str, root: Root) -> None:
        self.source, self.root = source, root
        self.values, node = _parse_yaml(text, lambda line: f"{source}:{line}")
        if not isinstance(self.values, dict):
            kind = {type(None): "empty", list: "a list"}.get(type(self.values), "a single value")
            wanted = ", ".join(keys_of("", root))
            raise ConfigError(
                f"{source}:1: the file is {kind}: a configuration is a mapping of {wanted}."
            )
        self.lines = {(): node.start_mark.line + 1, **dict(_lines(node))} if node else {}

    def resolve(self, settings: Sequence[_Setting]) -> Any:
        """Lay the file over the defaults and the settings over both, and validate the whole.

        Problems of settings are raised first, then problems of the file by line.
        """
        # a section given in part keeps its place's own defaults (output.mean is not input.mean)
        values = _merge(self.root().model_dump(), self.values)
        for setting in settings:
            _put(values, setting)
        problems: list[tuple[int, str]] = []
        backend = self.values.get("backend")
        typed = any(setting.path == ("backend",) for setting in settings)
        if isinstance(backend, str) and not typed and backend not in BACKENDS | PEERS:
            sentence = (  # code is imported for a name that was typed
                f"backend is {backend!r}: a configuration names one of "
                f"{listed(BACKENDS | PEERS)}; type any other: --backend {backend}, or --set "
                f"backend={backend}."
            )
            problems.append(self._at(("backend",), sentence))
        try:
            config = self.root.model_validate(_with_units(values, keys(self.root)))
        except ValidationError as error:
            details = sorted(
                error.errors(include_url=False),
                key=lambda each: (
                    not any(each["loc"][: len(one.path)] == one.path for one in settings),
                    self._line(each["loc"]),
                ),
            )
            # a sentence searches all keys for the nearest
            problems += [self._locate(each, settings) for each in details[:_MOST_PROBLEMS]]
            if more := details[_MOST_PROBLEMS:]:
                problems.append(self._at(more[0]["loc"], f"and {len(more):,} problems more."))
        if problems:
            raise ConfigError("\n".join(dict.fromkeys(text for _, text in sorted(problems))))
        return config

    def _locate(self, detail: ErrorDetails, settings: Sequence[_Setting]) -> tuple[int, str]:
        """The error after its place: the option that gave the value, or the line of the file."""
        sentence, location = _explain(detail, self.root), detail["loc"]
        concerned: Sequence[Location] = [location]
        if detail["type"] == "value_error":  # of several keys, which the sentence names
            prefix = f"{_dotted(location)}." if location else ""
            words = (prefix + word for word in re.findall(r"[a-z_]+(?:\.[a-z_]+)*", sentence))
            concerned = [tuple(path.split(".")) for path in words if path in keys(self.root)]
        for setting in reversed(settings):
            if any(key[: len(setting.path)] == setting.path for key in concerned):
                return 0, f"{setting.option}: {sentence}"
        given = [key for key in concerned if key in self.lines]
        return self._at(given[0] if given else location, sentence)

    def _line(self, location: Location) -> int:
        """The line of a value, or of the nearest part above it."""
        while location not in self.lines:
            location = location[:-1]
        return self.lines[location]

    def _at(self, location: Location, sentence: str) -> tuple[int, str]:
        line = self._line(location)
        return line, f"{self.source}:{line}: {sentence}"


def _lines(node: yaml.Node, location: Location = ()) -> Iterator[tuple[Location, int]]:
    """Every value's place in a document, and its line; of a key that is given twice, the last."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield (*location, key.value), key.start_mark.line + 1
            yield from _lines(value, (*location, key.value))
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield (*location, index), item.start_mark.line + 1
            yield from _lines(item, (*location, index))


def _merge(defaults: Any, given: Any) -> Any:
    if isinstance(defaults, dict) and given is None:  # a section all commented out
        return defaults
    if not isinstance(defaults, dict) or not isinstance(given, dict):
        return given
    return defaults | {name: _merge(defaults.get(name), value) for name, value in given.items()}


def _put(values: dict[str, Any], setting: _Setting) -> None:
    *sections, name = setting.path
    for section in sections:
        values = values[section]
        if not isinstance(values, dict):
            return  # the file gives no section here, which is refused with its line
    values[name] = setting.value


def _with_units(
    values: dict[str, Any], all_keys: dict[str, Key], section: str = ""
) -> dict[str, Any]:
    """Counts and sizes written as text become integers; a boolean is no number."""
    changed = dict(values)
    for name, value in values.items():
        key = all_keys.get(f"{section}{name}")
        if key is None or (key.is_section and not isinstance(value, dict)):
            continue
        if key.is_section:
            changed[name] = _with_units(value, all_keys, f"{key.path}.")
        elif isinstance(value, list):
            changed[name] = [_number(item, key) for item in value]
        else:
            changed[name] = _number(value, key)
    return changed


def _number(value: Any, key: Key) -> Any:
    if isinstance(value, bool) and key.is_numeric:
        return str(value).lower()  # pydantic would take true for 1
    if isinstance(value, str) and key.is_integer:
        try:
            return (parse_bytes if key.path.endswith("_bytes") else parse_count)(value)
        except ConfigError:
            return value  # validation refuses it and names the place
    return value


def _dotted(location: Location) -> str:
    return ".".join(part for part in location if isinstance(part, str))


def _explain(error: ErrorDetails, root: Root) -> str:
    path = _dotted(error["loc"])
    if error["type"] == "value_error":
        reason = str(error["ctx"]["error"]).rstrip(".")
        return f"{path}: {reason}." if path else f"{reason}."
    if error["type"] == "extra_forbidden":
        if path not in keys(root):
            return unknown_key(path, root)
        section, _, name = path.rpartition(".")
        return f"{path}: a dot makes no section in YAML: write {name} indented below {section}."
    index = "".join(f"[{part}]" for part in error["loc"] if isinstance(part, int))
    given = f"{path}{index} is {_shown(error['input'])}"
    key = keys(root).get(path)
    if key is None:
        return f"{_shown(error['input'])} is no key: {error['msg']}."
    if key.is_section:
        names = ", ".join(keys_of(path, root))
        return f"{given}, but it is a section: indent its keys below it ({names})."
    return f"{given}: give {key.expected}{_hint(key, error['input'])}."


def _hint(key: Key, value: Any) -> str:
    if isinstance(value, bool) or (key.is_numeric and value in ("true", "false")):
        return " (YAML reads on, off, yes and no as true or false: quote a word to keep it)"
    if key.choices and (close := get_close_matches(str(value), key.choices, 1, 0.7)):
        return f" (did you mean {close[0]}?)"
    if key.type == "text" and isinstance(value, int | float):
        return " (quote it to make it text)"
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
    return value if value in ("true", "false") else _SHORT.repr(value)
