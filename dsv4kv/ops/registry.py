"""The backends by name: our own, other packages', and what users bring.

What a user writes after ``--backend``: ``module:attribute`` of an installed module, or
``file.py:attribute`` of a file. The attribute is named as an operation, or has such functions.
"""

import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch

from dsv4kv.choices import BACKENDS, PEERS, choose, listed
from dsv4kv.errors import ConfigError, Dsv4kvError, PeerUnavailable, VerificationError
from dsv4kv.model.formats import FORMATS
from dsv4kv.ops.spec import OPERATIONS, Backend, Choice, write_in_turn
from dsv4kv.ops.storage import Entries, PageStore
from dsv4kv.processes import version_of

Function = Callable[..., None]
_OWN = f"{Path(__file__).parents[1]}/"


@dataclass(frozen=True)
class Foreign:
    """Operations from elsewhere, which take their arguments by position."""

    operations: Mapping[str, Function]  # by name in the table of operations
    version: str | None  # of the package they come from, where known
    formats: tuple[str, ...] | None = None  # entry formats they take; None takes all


def find_function(
    peer: str, packages: Mapping[str, str], places: Sequence[str]
) -> tuple[Callable[..., Any], str]:
    """Import the first of several places that an installed package has; and its distribution.

    peer: name of the backend, for errors; packages: as in ``import`` and ``pip install``, the
    first installed one counts; places: ``module:function``, newest first. ``PeerUnavailable``
    where no package is installed, it cannot be imported, or has none of them.
    """
    package = next((name for name in packages if find_spec(name)), next(iter(packages)))
    distribution = packages[package]
    if find_spec(package) is None:
        raise PeerUnavailable(
            f"backend {peer} needs the package {package}, which is not installed: "
            f"pip install {distribution}."
        )
    version = version_of(distribution) or "as installed"
    for place in places:
        module, _, function = place.partition(":")
        try:
            found = getattr(import_module(module), function, None)
        except BaseException as error:
            if _is_missing(module, error):
                continue
            raise PeerUnavailable(
                f"backend {peer}: {package} {version_of(package) or 'as installed'} cannot be "
                f"imported here ({describe_raised(error)})."
            ) from error
        if callable(found):
            return found, distribution
    raise PeerUnavailable(
        f"backend {peer}: {package} {version} has no {' and no '.join(places)}: install a version "
        "that has one."
    )


def describe_raised(error: BaseException) -> str:
    """Type, line and message of what foreign code raised, SystemExit too; Ctrl-C is passed on."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    try:
        message = str(error)
    except BaseException as second:
        message = f"its message cannot be read: {type(second).__name__}"
    theirs = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not re.search(rf"^<|^{re.escape(_OWN)}|/torch/|/importlib/", frame.filename)
    ]
    at = f" in {Path(theirs[-1].filename).name}:{theirs[-1].lineno}" if theirs else ""
    return f"{type(error).__name__}{at}: {message or 'no message'}"


def load_foreign(name: str) -> Foreign | None:
    """Load the functions at a place; None if the name is not a place, or ``ConfigError``."""
    place, colon, attribute = name.rpartition(":")
    if not colon:
        return None
    try:
        if place.endswith(".py"):
            target, version = _get(_load_file(Path(place)), attribute), None
        else:
            target, version = _import(place, attribute), version_of(place.partition(".")[0])
        operations = _operations(target, attribute.rpartition(".")[2])
        return Foreign(operations, version, _formats(target))
    except ConfigError as error:
        raise ConfigError(f"backend {name!r}: {error}") from error.__cause__


def _import(module: str, attribute: str) -> Any:
    """The attribute path of an installed module; without one, the module itself."""
    if not all(part.isidentifier() for part in module.split(".")):
        raise ConfigError(
            f"{module!r} is no module name: write my_gather.py:gather_topk for a file, "
            "my_package.my_module:gather_topk for an installed module."
        )
    try:
        return _get(import_module(module), attribute)
    except ConfigError:
        raise
    except BaseException as error:
        if not _is_missing(module, error):
            raise _failed(module, error) from error
        file = module.replace(".", "/") + ".py"
        here = f" For {file} in this folder write {file}:{attribute}."
        raise ConfigError(
            f"no module {module!r} is installed.{here if Path(file).is_file() else ''}"
        ) from None


def _is_missing(module: str, error: BaseException) -> bool:
    """Whether importing failed because there is no such module, and not inside of it."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return False
    return f"{module}.".startswith(f"{error.name}.")


def _load_file(path: Path) -> Any:
    """A module from a file; what it imports comes from installed packages."""
    if not os.path.isfile(path):  # noqa: PTH113 (is_file raises for a name that is too long)
        raise ConfigError(f"there is no file {path}.")
    path = path.resolve()
    if str(path) in sys.modules:
        return sys.modules[str(path)]
    spec = spec_from_file_location(str(path), path)
    assert spec is not None  # it ends in .py
    assert spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)  # where dataclasses look for it
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[spec.name]
        raise _failed(path.name, error) from error
    return module


def _failed(module: str, error: BaseException) -> ConfigError:
    return ConfigError(f"importing {module} failed ({describe_raised(error)}).")


def _get(target: Any, path: str) -> Any:
    for part in filter(None, path.split(".")):
        try:
            target = getattr(target, part)
        except Exception as error:  # a module's own __getattr__ raises anything
            where = Path(getattr(target, "__name__", type(target).__name__)).name
            why = "" if isinstance(error, AttributeError) else f" ({describe_raised(error)})"
            raise ConfigError(f"{where} has no {part!r}{why}.") from None
    return target


def _operations(target: Any, name: str) -> dict[str, Function]:
    """The function that is named as an operation, or those that the target has."""
    named = {each: getattr(target, each, None) for each in OPERATIONS}
    found = {name: target} if name in OPERATIONS else named
    operations = {each: function for each, function in found.items() if callable(function)}
    if not operations:
        raise ConfigError(
            f"{name or 'it'} has no operation's name: name it one of {', '.join(OPERATIONS)}."
        )
    for each, function in operations.items():
        _check_parameters(each, function)
    return operations


def _check_parameters(operation: str, function: Function) -> None:
    expected = OPERATIONS[operation].names
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # built-in functions need not say
        return
    try:
        signature.bind(*expected)
    except TypeError:
        raise ConfigError(
            f"{operation} is called with ({', '.join(expected)}), by position, and this function "
            f"takes {signature}."
        ) from None


def _formats(target: Any) -> tuple[str, ...] | None:
    """The attribute ``formats``: names of the entry formats that are taken; without it, all."""
    known = {each for formats in FORMATS.values() for each in formats}
    formats = getattr(target, "formats", None)
    if formats is None:
        return None
    is_list = isinstance(formats, list | tuple | set | frozenset) and formats
    if not is_list or not all(isinstance(each, str) and each in known for each in formats):
        raise ConfigError(
            f"its formats are {formats!r}: a tuple of names out of {', '.join(sorted(known))} is "
            "needed."
        )
    return tuple(sorted(formats))


@dataclass(frozen=True)
class ResolvedBackend:
    """A backend and where its operations come from."""

    name: str  # as it was asked for
    backend: Backend  # every operation; those that are not foreign are the base backend's
    foreign: tuple[str, ...] = ()  # operations that come from elsewhere
    version: str | None = None  # of the package they come from, where known
    # entry formats the foreign operations take; None takes all. On pages of other formats the base
    # backend works
    formats: tuple[str, ...] | None = None
    # of the operations that have several and are not foreign
    variants: Choice = field(default_factory=dict)

    def serves(self, operation: str, format_name: str | None) -> bool:
        """Whether an operation is foreign on pages of a format; None for no pages."""
        takes = self.formats is None or format_name is None or format_name in self.formats
        return operation in self.foreign and takes


def load_backend(name: str) -> Backend:
    """Import one of our own backends; raises ``ConfigError`` naming the choices."""
    return cast(Backend, choose(BACKENDS, name, "a backend of ours").load())


def resolve_backend(name: str, base: str, variants: Choice | None = None) -> ResolvedBackend:
    """Find a backend: our own, a known package, or a function by its place.

    ``base`` is our own backend for all operations that ``name`` does not bring, ``variants`` how
    it does them; None where each has one way. Raises ``ConfigError``, or ``PeerUnavailable`` for a
    known package that is not installed or has no such operation.
    """
    if name in BACKENDS and name != base:
        return ResolvedBackend(name, load_backend(name))
    if name == base:
        return combine(name, base, Foreign({}, None), variants or {})
    foreign = PEERS[name].load()() if name in PEERS else load_foreign(name)
    if foreign is None:
        raise ConfigError(
            f"no backend {name!r}: choose {listed(BACKENDS | PEERS)}, or a function, as "
            "my_gather.py:gather_topk or my_package.my_module:gather_topk."
        )
    return combine(name, base, foreign, variants or {})


def combine(name: str, base: str, foreign: Foreign, variants: Choice) -> ResolvedBackend:
    """Foreign operations, and the base backend's for all others."""
    own, brought = load_backend(base), foreign.operations
    functions = {operation: getattr(own, operation) for operation in OPERATIONS}
    for operation in variants.keys() & functions.keys():
        functions[operation] = partial(functions[operation], variant=variants[operation])
    left = {key: each for key, each in variants.items() if key not in brought}
    for operation, function in brought.items():
        functions[operation] = partial(
            _call, operation, function, functions[operation], foreign.formats
        )
    pieces = ("window_insert", "state_append", "flush")  # ``step_write`` fuses them
    if "step_write" not in brought and brought.keys() & set(pieces):  # or no step calls them
        functions["step_write"] = partial(write_in_turn, *(functions[each] for each in pieces))
        left |= {"step_write": "separate"} if variants else {}
    backend = cast(Backend, SimpleNamespace(**functions)) if brought or variants else own
    return ResolvedBackend(name, backend, tuple(brought), foreign.version, foreign.formats, left)


def _call(
    name: str,
    function: Function,
    other: Function,
    formats: tuple[str, ...] | None,
    **arguments: Any,
) -> None:
    """``function``, by position, on pages of these formats; ``other`` on all others."""
    stores = (each.store if isinstance(each, Entries) else each for each in arguments.values())
    held = {each.layout.format.name for each in stores if isinstance(each, PageStore)}
    if formats is None or held <= set(formats):
        try:
            function(*(arguments[each] for each in OPERATIONS[name].names))
        except (Dsv4kvError, torch.OutOfMemoryError):
            raise
        except BaseException as error:  # SystemExit would end this program as if all was well
            raise VerificationError(f"{name} raised {describe_raised(error)}") from error
    else:
        other(**arguments)
