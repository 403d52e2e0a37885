"""From what a user writes after ``--backend`` to the object it means."""

import inspect
import os
import sys
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from dsv4kv.errors import ConfigError
from dsv4kv.model.formats import FORMATS
from dsv4kv.ops.peers.foreign import (
    PARAMETERS,
    Foreign,
    Operation,
    is_missing,
    version_of,
)
from dsv4kv.ops.table import OPERATIONS

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
    """Import what an entry point, ``module:attribute`` or ``file.py:attribute`` names, or None.

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
    module, colon, attribute = name.rpartition(":")
    if not colon:
        return None
    if module.endswith(".py"):
        return Located(_get(name, _load_file(name, Path(module)), attribute), None)
    return Located(_import(name, module, attribute), version_of(module.partition(".")[0]))


def _owner(point: EntryPoint) -> str:
    return point.dist.name if point.dist else point.value


def _import(name: str, module: str, attribute: str) -> Any:
    """The attribute path of an installed module; without one, the module itself."""
    file = module.replace(".", "/") + ".py"
    if not all(part.isidentifier() for part in module.split(".")):
        raise ConfigError(
            f"backend {name!r}: {module!r} is no module name: write my_gather.py:gather_topk for "
            "a file, my_package.my_module:my_gather for an installed module."
        )
    try:
        found = import_module(module)
    except Exception as error:
        if is_missing(module, error):
            here = f" For {file} in this folder write {file}:{attribute}."
            raise ConfigError(
                f"backend {name!r}: no module {module!r} is installed."
                f"{here if Path(file).is_file() else ''}"
            ) from None
        raise _failed(name, module, error) from error
    return _get(name, found, attribute)


def _load_file(name: str, path: Path) -> Any:
    """A module from a file; what it imports comes from installed packages."""
    if not os.path.isfile(path):  # noqa: PTH113 (is_file raises for a name that is too long)
        raise ConfigError(f"backend {name!r}: there is no file {path}.")
    path = path.resolve()
    if str(path) in sys.modules:
        return sys.modules[str(path)]
    spec = spec_from_file_location(str(path), path)
    assert spec is not None  # it ends in .py
    assert spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)  # where dataclasses look for it
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[spec.name]
        raise _failed(name, path.name, error) from error
    return module


def _failed(name: str, module: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"backend {name!r}: importing {module} failed ({type(error).__name__}: {error})."
    )


def _get(name: str, target: Any, path: str) -> Any:
    for part in filter(None, path.split(".")):
        if not hasattr(target, part):
            where = Path(getattr(target, "__name__", type(target).__name__)).name
            raise ConfigError(f"backend {name!r}: {where} has no {part!r}.")
        target = getattr(target, part)
    return target


_FORMATS = {name for formats in FORMATS.values() for name in formats}


def load_foreign(name: str) -> Foreign | None:
    """Load what ``locate`` finds for a name, with or without ``operation=``; None if nothing.

    Raises:
        ConfigError: It cannot be imported, or it is not clear which operation it is.
    """
    operation, equals, rest = name.partition("=")
    if equals and operation not in OPERATIONS:
        raise ConfigError(
            f"backend {name!r}: {operation!r} is no operation: choose {', '.join(OPERATIONS)}."
        )
    located = locate(rest if equals else name)
    if located is None:
        return None
    target = located.target
    if isinstance(target, type):
        target = _instance(name, target)
    operations = _operations(name, target, operation if equals else None)
    for each, function in operations.items():
        _check_parameters(name, each, function)
    return Foreign(operations, located.version, _formats(name, target))


def _instance(name: str, cls: type) -> Any:
    try:
        return cls()
    except Exception as error:
        raise ConfigError(
            f"backend {name!r}: {cls.__name__}() failed ({type(error).__name__}: {error}): a "
            "class is made without arguments."
        ) from error


def _operations(name: str, target: Any, operation: str | None) -> dict[str, Operation]:
    named = {
        each: getattr(target, each)
        for each in OPERATIONS
        if callable(getattr(target, each, None)) and operation in (None, each)
    }
    if named:
        return named
    if callable(target):
        return {operation or _guess(name, target): target}
    wanted = operation or f"any of {', '.join(OPERATIONS)}"
    raise ConfigError(
        f"backend {name!r} is of type {type(target).__name__}: neither a function nor something "
        f"with a function {wanted}."
    )


def _guess(name: str, function: Operation) -> str:
    """The operation of a function: its name is one, or it has the parameters of one."""
    own_name = getattr(function, "__name__", "")
    if own_name in OPERATIONS:
        return own_name
    parameters = _parameters(function)
    for operation in OPERATIONS:
        if parameters == PARAMETERS[operation]:
            return operation
    raise ConfigError(
        f"backend {name!r}: neither its name nor its parameters are those of an operation: "
        f"write operation={name} with one of {', '.join(OPERATIONS)}."
    )


def _parameters(function: Operation) -> tuple[str, ...] | None:
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # built-in functions need not say
        return None


def _check_parameters(name: str, operation: str, function: Operation) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    expected = PARAMETERS[operation]
    try:
        signature.bind(*expected)
    except TypeError:
        raise ConfigError(
            f"backend {name!r}: {operation} is called with ({', '.join(expected)}), by position, "
            f"and this function takes {signature}."
        ) from None


def _formats(name: str, target: Any) -> tuple[str, ...] | None:
    """The attribute ``formats``: names of the entry formats that are taken; without it, all."""
    formats = getattr(target, "formats", None)
    if formats is None:
        return None
    known = isinstance(formats, list | tuple | set | frozenset) and set(formats) <= _FORMATS
    if not known or not formats:
        raise ConfigError(
            f"backend {name!r}: its formats are {formats!r}: a tuple of names out of "
            f"{', '.join(sorted(_FORMATS))} is needed."
        )
    return tuple(sorted(formats))
