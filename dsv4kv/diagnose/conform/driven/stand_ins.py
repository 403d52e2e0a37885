# mypy: ignore-errors
# It runs in the engine's environment, where nothing is typed.
"""Stand-ins for what an engine's managers import and never call on a CPU."""

import sys
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock


class StandIn(ModuleType):
    """A module whose every name is a class (CamelCase) or a mock."""

    __path__: tuple[str, ...] = ()
    __version__ = "0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        camel = name[0].isupper() and not name.isupper()
        value = type(name, (), {}) if camel else MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class Finder:
    """Finds a stand-in for every module below ``roots`` that is not below ``real``."""

    def __init__(self, roots: Iterable[str], real: Iterable[str]) -> None:
        self._roots, self._real = tuple(roots), tuple(real)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """A stand-in's spec, or None to let others find the module."""
        below = [f"{name}.".startswith(f"{root}.") for root in self._roots]
        real = [f"{name}.".startswith(f"{each}.") for each in self._real]
        above = [each.startswith(f"{name}.") for each in self._real]
        if not any(below) or any(real) or any(above):
            return None
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """An empty module that has everything."""
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def stand_in(*roots: str, real: Iterable[str] = ()) -> None:
    """Let modules below ``roots`` be stand-ins, but for those at or below ``real``."""
    sys.meta_path.insert(0, Finder(roots, real))  # type: ignore[arg-type]


def bare_package(name: str, folder: str) -> None:
    """Let a package be found without running its ``__init__``."""
    package = ModuleType(name)
    package.__path__ = [folder]
    sys.modules[name] = package
