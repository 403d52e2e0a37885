"""Load a bench configuration: a shipped one by name, or a file."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.document import read_document
from dsv4kv.config.overrides import parse_overrides
from dsv4kv.config.resolve import resolve
from dsv4kv.errors import ConfigError
from dsv4kv.resources import shipped

DEFAULT = "default"


@dataclass(frozen=True)
class LoadedConfig:
    """A validated configuration and the text it came from.

    Attributes:
        config: The configuration, overrides applied.
        source: Path or shipped name, as given.
        text: The file's text, before overrides.
        sha256: Digest of the file's bytes, in hexadecimal.
    """

    config: BenchConfig
    source: str
    text: str
    sha256: str


def shipped_names() -> list[str]:
    """Names of the shipped bench configurations, sorted."""
    return sorted(path.stem for path in _shipped_folder().glob("*.yaml"))


def load_config(source: str | None, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Load a shipped configuration by name, or a file by path; null takes the default.

    Raises:
        ConfigError: No such file, or not a valid configuration: all problems, a line each.
    """
    source = DEFAULT if source is None else source
    path = find_config(source)
    content = _read(path)
    text = _decode(content, path)
    config = resolve(read_document(text, str(path)), parse_overrides(overrides))
    return LoadedConfig(config, source, text, hashlib.sha256(content).hexdigest())


def find_config(source: str) -> Path:
    """Path of a configuration: a file of this name, else the shipped one, else the name as is."""
    path = Path(source)
    if source in shipped_names() and not path.is_file():
        return _shipped_folder() / f"{source}.yaml"
    return path


def _shipped_folder() -> Path:
    return shipped("configs") / "bench"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        close = get_close_matches(str(path), shipped_names(), 1)
        guess = f" (did you mean {close[0]}?)" if close else ""
        raise ConfigError(
            f"configuration {str(path)!r} cannot be read ({error.strerror}){guess}: give the path "
            f"of a YAML file or a shipped name ({', '.join(shipped_names())})."
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
