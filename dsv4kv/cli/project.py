"""Settings of a project: ``dsv4kv.yaml``, or ``[tool.dsv4kv]`` of a pyproject.toml.

They are looked for from a folder upwards, to the top of its repository, the home folder or the
edge of its file system, and not in folders above that everybody can write to, such as ``/tmp``.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from stat import S_IWOTH
from typing import Any

from dsv4kv.errors import ConfigError

YAML, TOML = "dsv4kv.yaml", "pyproject.toml"
_TABLE = "tool.dsv4kv"
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Leaf:
    """A value of a project's settings.

    Attributes:
        value: As it was read, not checked.
        place: Where it is written, for messages: ``dsv4kv.yaml:4``.
    """

    value: Any
    place: str


@dataclass(frozen=True)
class Project:
    """Settings by dotted path, and the file that they are of."""

    path: Path
    leaves: Mapping[str, Leaf]

    def path_of(self, name: str) -> Path:
        """A path that the settings name, from the current folder."""
        return Path(os.path.relpath(self.path.parent / name))


def find_project(start: Path) -> Project | None:
    """Settings of the nearest folder that has any, from ``start``, which is absolute, upwards.

    Raises:
        ConfigError: They cannot be read.
    """
    for folder in _folders(start):
        if (folder / YAML).is_file():
            return _read_yaml(folder / YAML)
        if (folder / TOML).is_file() and (found := _read_toml(folder / TOML)):
            return found
    return None


def _folders(start: Path) -> Iterator[Path]:
    device = start.stat().st_dev
    for folder in (start, *start.parents):
        status = folder.stat()
        if folder != start and (status.st_dev != device or status.st_mode & S_IWOTH):
            return
        yield folder
        if (folder / ".git").exists() or folder == _home():
            return


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:  # a container's user without one
        return None


def _read_yaml(path: Path) -> Project:
    from dsv4kv.config.document import read_mapping

    name = shown(path)
    document = read_mapping(
        _read(path), name, lambda: "settings are a mapping, for example gpu: h200"
    )
    if document.problems:
        raise ConfigError("\n".join(map(str, document.problems)))
    return Project(path, _leaves(document.values, lambda names: f"{name}:{document.line(names)}"))


def _read_toml(path: Path) -> Project | None:
    """None if it is about other programs."""
    import tomllib

    text, name = _read(path), shown(path)
    if "dsv4kv" not in text:
        return None  # whether it is TOML is for others to say
    try:
        table = tomllib.loads(text).get("tool", {}).get("dsv4kv")
    except (ValueError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"{name}: this is not TOML ({error}): mend it, or add --no-settings."
        ) from None
    if table is None:
        return None
    if not isinstance(table, dict):
        raise ConfigError(
            f'{name}: {_TABLE} is {table!r}: write a table, with gpu = "h200" in it.'
        )
    return Project(path, _leaves(table, lambda names: f"{name}: {'.'.join((_TABLE, *names))}"))


def _read(path: Path) -> str:
    from dsv4kv import reading

    try:
        return reading.read_document(path, _MOST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        reason = "not UTF-8"
    except OSError as error:
        reason = str(error.strerror)
    raise ConfigError(f"{shown(path)} cannot be read ({reason}): mend it, or add --no-settings.")


def _leaves(
    values: Mapping[str, Any],
    place: Callable[[tuple[str, ...]], str],
    above: tuple[str, ...] = (),
) -> dict[str, Leaf]:
    """Values that are no mappings, by dotted path."""
    found: dict[str, Leaf] = {}
    for name, value in values.items():
        names = (*above, name)
        if isinstance(value, dict):
            found |= _leaves(value, place, names)
        else:
            found[".".join(names)] = Leaf(value, place(names))
    return found


def shown(path: Path) -> str:
    """A path as it is shorter, from the current folder or from the top."""
    return min(os.path.relpath(path), str(path), key=len)
