"""Load a configuration: a shipped one by name, or a file."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Generic, overload

from dsv4kv import reading
from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.document import read_document
from dsv4kv.config.keys import Root
from dsv4kv.config.overrides import parse_overrides
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.config.resolve import ConfigT, resolve
from dsv4kv.errors import ConfigError
from dsv4kv.resources import shipped

DEFAULT = "default"
_MOST_BYTES = 1 << 20  # YAML is read slowly, and a configuration has two pages
_FOLDERS: dict[Root, str] = {BenchConfig: "bench", ReplayConfig: "replay"}


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
    return sorted(path.stem for path in _shipped_folder(root).glob("*.yaml"))


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
