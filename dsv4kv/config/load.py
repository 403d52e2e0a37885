"""Load a configuration: a shipped one by name, or a file."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from dsv4kv import reading, resources
from dsv4kv.choices import BACKENDS, PEERS, listed
from dsv4kv.config.bench import BenchConfig, Section
from dsv4kv.config.document import (
    Document,
    Location,
    Problem,
    Setting,
    explain,
    mentioned_keys,
    parse_overrides,
    read_document,
    refuse,
)
from dsv4kv.config.keys import Key, Root, keys
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.config.systems import SystemsConfig
from dsv4kv.config.tiers import TiersConfig
from dsv4kv.config.transfer import TransferConfig
from dsv4kv.errors import ConfigError
from dsv4kv.resources import shipped
from dsv4kv.units import parse_bytes, parse_count

ConfigT = TypeVar("ConfigT", bound=Section)


def resolve(document: Document, settings: Sequence[Setting], root: type[ConfigT]) -> ConfigT:
    """Lay the file over the defaults and the settings over both, and validate the whole.

    Raises:
        ConfigError: Every problem of the file and of the settings, a line each.
    """
    # a section given in part keeps its place's own defaults (output.mean is not input.mean)
    values = _merge(root().model_dump(), document.values)
    for setting in settings:
        _put(values, setting)
    problems = [*document.problems, *_find_code(document, settings)]
    try:
        config = root.model_validate(_with_units(values, keys(root)))
    except ValidationError as error:
        problems += [_locate(detail, document, settings, root) for detail in error.errors()]
    if problems:
        raise refuse(problems)
    return config


def _find_code(document: Document, settings: Sequence[Setting]) -> Iterator[Problem]:
    """A backend that only a file names: code is imported for a name that was typed."""
    name = document.values.get("backend")
    typed = any(setting.path == ("backend",) for setting in settings)
    if isinstance(name, str) and not typed and name not in BACKENDS | PEERS:
        yield Problem(
            document.line(("backend",)),
            document.source,
            f"backend is {name!r}: a configuration names one of {listed(BACKENDS | PEERS)}; type "
            f"any other: --backend {name}, or --set backend={name}.",
        )


def _merge(defaults: Any, given: Any) -> Any:
    if not isinstance(defaults, dict):
        return given
    if given is None:  # a section whose keys are all commented out
        return defaults
    if not isinstance(given, dict):
        return given
    return defaults | {name: _merge(defaults.get(name), value) for name, value in given.items()}


def _put(values: dict[str, Any], setting: Setting) -> None:
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
    known = {name: all_keys.get(f"{section}{name}") for name in values}
    return values | {
        name: _with_units(values[name], all_keys, f"{key.path}.")
        if key.is_section and isinstance(values[name], dict)
        else _number(values[name], key)
        for name, key in known.items()
        if key is not None
    }


def _number(value: Any, key: Key) -> Any:
    if isinstance(value, list):
        return [item if isinstance(item, list) else _number(item, key) for item in value]
    if isinstance(value, bool) and key.is_numeric:
        return str(value).lower()  # pydantic would take true for 1
    if isinstance(value, str) and key.is_integer:
        return _parse_units(value, key.path)
    return value


def _parse_units(text: str, path: str) -> int | str:
    try:
        return parse_bytes(text) if path.endswith("_bytes") else parse_count(text)
    except ConfigError:
        return text  # validation refuses it and names the place


def _locate(
    detail: ErrorDetails, document: Document, settings: Sequence[Setting], root: Root
) -> Problem:
    """The problem with its place: the option that gave the value, or the line of the file."""
    sentence, location = explain(detail, root), detail["loc"]
    cross_field = detail["type"] == "value_error"
    concerned: Sequence[Location] = (
        mentioned_keys(location, sentence, root) if cross_field else [location]
    )
    for setting in reversed(settings):
        if any(key[: len(setting.path)] == setting.path for key in concerned):
            return Problem(0, setting.option, sentence)
    given = next(filter(document.has, concerned), location)
    return Problem(document.line(given), document.source, sentence)


DEFAULT = "default"
_MOST_BYTES = 1 << 20  # YAML is read slowly, and a configuration has two pages
_FOLDERS: dict[Root, str] = {
    BenchConfig: "bench",
    ReplayConfig: "replay",
    SystemsConfig: "systems",
    TiersConfig: "tiers",
    TransferConfig: "transfer",
}


@dataclass(frozen=True)
class Loaded(Generic[ConfigT]):
    """A validated configuration and the text it came from.

    Attributes:
        config: The configuration, overrides applied.
        source: Path or shipped name, as given.
        text: The file's text, before overrides.
        sha256: Digest of the file's bytes, in hexadecimal.
    """

    config: ConfigT
    source: str
    text: str
    sha256: str


LoadedConfig = Loaded[BenchConfig]


def shipped_names(root: Root = BenchConfig) -> list[str]:
    """Names of the shipped configurations of a kind, sorted."""
    return resources.shipped_names(_FOLDERS[root])


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

    ``root`` is the kind of configuration.

    Raises:
        ConfigError: No such file, or not a valid configuration: all problems, a line each.
    """
    source = DEFAULT if source is None else source
    path = find_config(source, root)
    content = _read(path, root)
    text = _decode(content, path)
    document = read_document(text, str(path), root)
    config = resolve(document, parse_overrides(overrides, root), root)
    return Loaded(config, source, text, hashlib.sha256(content).hexdigest())


def find_config(source: str, root: Root = BenchConfig) -> Path:
    """Path of a configuration: a file of this name, else the shipped one, else the name as is."""
    path = Path(source)
    if source in shipped_names(root) and not path.is_file():
        return _shipped_folder(root) / f"{source}.yaml"
    return path


def _shipped_folder(root: Root) -> Path:
    return shipped("configs") / _FOLDERS[root]


def _read(path: Path, root: Root) -> bytes:
    try:
        return reading.read_document(path, _MOST_BYTES)
    except OSError as error:
        names = shipped_names(root)
        close = get_close_matches(str(path), names, 1)
        guess = f" (did you mean {close[0]}?)" if close else ""
        raise ConfigError(
            f"configuration {str(path)!r} cannot be read ({error.strerror}){guess}: give the path "
            f"of a YAML file or a shipped name ({', '.join(names)})."
        ) from None


def _decode(content: bytes, path: Path) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path}:{line}: byte 0x{content[error.start]:02x} is not UTF-8: "
            "a configuration is a YAML text file."
        ) from None
