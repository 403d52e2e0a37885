"""Which operations of the contract an object offers."""

import inspect
from typing import Any

from dsv4kv.errors import ConfigError
from dsv4kv.model.formats import FORMATS
from dsv4kv.ops.peers.foreign import OPERATIONS, PARAMETERS, Foreign, Operation
from dsv4kv.ops.peers.locate import locate

_FORMATS = {name for formats in FORMATS.values() for name in formats}


def load_foreign(name: str) -> Foreign | None:
    """Load an entry point, ``module:attribute`` or ``operation=`` one of them; None if neither.

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
        f"backend {name!r}: which operation it is, neither its name nor its parameters tell: "
        f"write operation={name} with one of {', '.join(OPERATIONS)}."
    )


def _parameters(function: Operation) -> tuple[str, ...] | None:
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # built-in functions need not tell
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
