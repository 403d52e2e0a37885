"""From what a user writes after ``--backend`` to the object it means."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module, invalidate_caches
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from dsv4kv.errors import ConfigError
from dsv4kv.ops.peers.installed import is_missing, version_of

GROUP = "dsv4kv.backends"
"""Entry points of installed packages that are backends."""


@dataclass(frozen=True)
class Located:
    """What a name stands for.

    Attributes:
        target: A function, or an object with functions.
        version: Of the package it comes from, where known.
    """

    target: Any
    version: str | None


def list_entry_points() -> list[str]:
    """Names of the installed backends."""
    return sorted(entry_points(group=GROUP).names)


def locate(name: str) -> Located | None:
    """Import what an entry point or ``module:attribute`` names; None where it is neither.

    Modules may lie in the current folder, as with ``python -m``.

    Raises:
        ConfigError: It cannot be imported, has no such attribute, or two packages have it.
    """
    found = entry_points(group=GROUP, name=name)
    if len(found) > 1:
        owners = " and ".join(sorted(_owner(point) for point in found))
        raise ConfigError(
            f"{owners} both bring a backend {name!r}: name the function itself, as "
            "my_package.my_module:my_gather."
        )
    for point in found:
        version = point.dist.version if point.dist else None
        return Located(_import(name, point.module, point.attr or ""), version)
    module, colon, attribute = name.partition(":")
    if not colon:
        return None
    return Located(_import(name, module, attribute), version_of(module.partition(".")[0]))


def _owner(point: EntryPoint) -> str:
    return point.dist.name if point.dist else point.value


def _import(name: str, module: str, attribute: str) -> Any:
    """The attribute path of a module; without one, the module itself."""
    target: Any = _import_module(name, module)
    for part in filter(None, attribute.split(".")):
        if not hasattr(target, part):
            where = getattr(target, "__name__", type(target).__name__)
            raise ConfigError(f"backend {name!r}: {where} has no {part!r}.")
        target = getattr(target, part)
    return target


def _import_module(name: str, module: str) -> Any:
    if not all(part.isidentifier() for part in module.split(".")):
        raise ConfigError(
            f"backend {name!r}: {module!r} is no module name: write "
            "my_package.my_module:my_gather, with dots and without .py."
        )
    try:
        with _current_folder_first():
            return import_module(module)
    except Exception as error:
        if is_missing(module, error):
            raise ConfigError(
                f"backend {name!r}: there is no module {module!r}, neither in {Path.cwd()} nor "
                "installed."
            ) from None
        raise ConfigError(
            f"backend {name!r}: importing {module} failed ({type(error).__name__}: {error})."
        ) from error


@contextmanager
def _current_folder_first() -> Iterator[None]:
    here = str(Path.cwd())
    sys.path.insert(0, here)
    invalidate_caches()
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove(here)
