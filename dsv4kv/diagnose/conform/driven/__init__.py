"""What the drivers of all engines share: a sequence is run, and broken invariants are noted.

Sequences come from another process, a JSON object a line: ``settings`` and ``operations``. Out
go first what the engine is, or ``missing``: why it cannot be had; then for every sequence what
``run`` says of it: ``broken`` and ``done``.
"""

import json
import os
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import IO, Any
from unittest.mock import MagicMock


class StandIn(ModuleType):
    """A module whose every name is a class (CamelCase) or a mock."""

    __version__ = "0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        camel = name[0].isupper() and not name.isupper()
        value = type(name, (), {}) if camel else MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


def stand_in(*roots: str, real: Sequence[str] = ()) -> None:
    """Let modules below ``roots`` be stand-ins, except those at or below ``real``."""

    def find_spec(name: str, *_: Any) -> ModuleSpec | None:
        kept = (f"{name}.".startswith(f"{x}.") or x.startswith(f"{name}.") for x in real)
        if any(kept) or not any(f"{name}.".startswith(f"{root}.") for root in roots):
            return None
        return ModuleSpec(name, finder, is_package=True)  # type: ignore[arg-type]

    finder = SimpleNamespace(
        find_spec=find_spec,
        create_module=lambda spec: StandIn(spec.name),
        exec_module=lambda _: None,
    )
    sys.meta_path.insert(0, finder)


def bare_package(name: str, folder: str) -> None:
    """Let a package be found without running its ``__init__``."""
    package = ModuleType(name)
    package.__path__ = [folder]
    sys.modules[name] = package


PAGE = 256
NOTED: dict[str, str] = {}  # by invariant, how it broke first in the present sequence


class Broken(Exception):
    """An invariant that does not hold, after which the sequence cannot go on."""


def note(kind: str, says: str) -> None:
    """Record a broken invariant; the sequence continues, as others may break as well.

    Errors of the engine, and how a sequence ends, count only where nothing broke before: they may
    follow from what did.
    """
    if not NOTED or kind not in ("calls", "ends"):
        NOTED.setdefault(kind, says)


def answer(driver: Any, engine: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """Do all operations of a sequence on a new session.

    ``broken``: by invariant that broke, how, and after how many operations; ``done``: how many
    were done.
    """
    NOTED.clear()
    found: dict[str, int] = {}
    done = 0
    try:
        session = driver.Session(engine, asked["settings"])
        for operation in asked["operations"]:
            done += 1
            session.apply(operation)
            found = dict.fromkeys(NOTED, done) | found
        if not NOTED:
            session.end()
    except Broken:
        pass
    except Exception as error:  # what an engine raises is a broken invariant, too
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{frame.filename.rpartition(f'/{driver.NAME}/')[2]}, line {frame.lineno}"
        said = f": {error}" if str(error) else f" at {frame.line!r}"
        note("calls", f"{driver.NAME} raised {type(error).__name__}{said} ({place})")
    broken = {kind: (says, found.get(kind, done)) for kind, says in NOTED.items()}
    return {"broken": broken, "done": done}


class Operated(ABC):
    """An empty cache of an engine, which has ``_do_NAME`` of every operation.

    ``apply`` operations one after the other, ``end`` after the last. ``_count`` looks at the pools
    after each.
    """

    def apply(self, operation: Sequence[Any]) -> None:
        """Do one and look at the pools."""
        name, *rest = operation
        getattr(self, f"_do_{name}")(*rest)
        self._count()

    @abstractmethod
    def _count(self) -> None: ...

    def _do_serve(self, number: int, pages: list[int], tokens: int, expected: int) -> None:
        hit = self._serve(number, pages, tokens)
        if hit != expected:
            what = f"a prompt of {tokens} tokens hits {hit} of them"
            note("hits", f"{what}, where the rule says {expected}")

    @abstractmethod
    def _serve(self, number: int, pages: list[int], tokens: int) -> int: ...


def find_package(engine: str, folder: str | Path | None) -> Path:
    """The folder of an engine's package, unpacked or installed; it is imported from there."""
    if folder:
        sys.path.insert(0, str(folder))
    found = find_spec(engine)
    if found is None or not found.submodule_search_locations:
        raise ImportError(f"{engine} is not installed there")
    return Path(found.submodule_search_locations[0]).parent


def find_version(engine: str, folder: str | Path | None) -> str:
    """The engine's version, of the package's own metadata."""
    where: dict[str, Any] = {"path": [str(folder)]} if folder else {}
    return next((each.version for each in distributions(name=engine, **where)), "unknown")


def add_absent(*names: str) -> None:
    """Put stand-ins in place of packages that are not installed."""
    stand_in(*(name for name in names if find_spec(name) is None))


def check_free(held: Sequence[int], free: Sequence[int], counted: int) -> None:
    """Every block but the first is either held or free; the free are counted and once there."""
    total = len(held) - 1
    lost = total - len(free) - sum(map(bool, held))
    if len(free) != counted:
        note("blocks", f"the free queue has {len(free)} blocks and counts {counted}")
    elif len(set(free)) != len(free):
        note("blocks", "a block is free twice")
    elif any(held[number] for number in free):
        note("blocks", "a block is free and held")
    elif lost:
        note("blocks", f"{lost} of {total} blocks are lost: neither free nor held")


def check_pool(
    name: str, size: int, held: Iterable[int], free: Sequence[int], counted: int
) -> None:
    """Every part of a pool, numbered from 1, is held once or free."""
    times = [0] * (1 + size)
    for number in held:
        times[number] += 1
        if times[number] > 1:
            note("blocks", f"{name.format(number)} is held twice")
    check_free(times, free, counted)


def spell(pages: Iterable[int], tokens: int) -> list[int]:
    """The tokens of a prompt; pages 2n and 2n + 1 differ in their last token only."""
    spelled = [page // 2 * PAGE + i for page in pages for i in range(PAGE)]
    spelled[PAGE - 1 :: PAGE] = pages
    return spelled[:tokens]


def name_parts(chain: list[int], tokens: Sequence[int], size: int) -> None:
    """Name every ``size`` tokens that have no name yet; a name covers all before them, too."""
    for start in range(len(chain) * size, len(tokens) - size + 1, size):
        before = chain[-1] if chain else 0
        chain.append(hash((before, *tokens[start : start + size])))


def serve(driver: Any, folder: str | None, given: Iterable[str], answers: IO[str]) -> None:
    """Answer until there are no more questions."""

    def reply(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        engine = driver.load(folder)
        version = find_version(driver.NAME, folder)
        reply({"version": version, "traits": driver.traits(engine)})
    except Exception as error:  # whatever its import runs into
        reply({"missing": f"{error}" or type(error).__name__})
        return
    for line in given:
        reply(answer(driver, engine, json.loads(line)))


def main() -> None:
    """``python -c "...main()" ENGINE FOLDER``: questions come on standard input."""
    name, folder = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an engine prints is no answer
    os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")
    serve(import_module(f"{__package__}.{name}"), folder or None, sys.stdin, answers)
