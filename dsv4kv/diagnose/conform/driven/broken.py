"""What the drivers of all engines share: how an invariant is said to be broken."""

import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

from .stand_ins import stand_in


class Broken(Exception):
    """An invariant that does not hold: which, and a sentence."""

    def __init__(self, kind: str, says: str) -> None:
        super().__init__(says)
        self.kind, self.says = kind, says


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
    found = (
        distributions(name=engine, path=[str(folder)]) if folder else distributions(name=engine)
    )
    return next((each.version for each in found), "unknown")


def add_absent(*names: str) -> None:
    """Stand-ins for those of an engine's imports that are not installed."""
    stand_in(*(name for name in names if find_spec(name) is None))


@contextmanager
def called(engine: str) -> Iterator[None]:
    """What an engine raises is a broken invariant, too."""
    try:
        yield
    except Broken:
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{frame.filename.rpartition(f'/{engine}/')[2]}, line {frame.lineno}"
        said = f": {error}" if str(error) else f" at {frame.line!r}"
        sentence = f"{engine} raised {type(error).__name__}{said} ({place})"
        raise Broken("calls", sentence) from error


def check_free(held: Sequence[int], free: Sequence[int], counted: int) -> None:
    """Every block but the first is either held or free; the free are counted and once there."""
    if len(free) != counted:
        raise Broken("blocks", f"the free queue has {len(free)} blocks and counts {counted}")
    if len(set(free)) != len(free):
        raise Broken("blocks", "a block is free twice")
    if any(held[number] for number in free):
        raise Broken("blocks", "a block is free and held")
    total = len(held) - 1
    lost = total - len(free) - sum(map(bool, held))
    if lost:
        raise Broken("blocks", f"{lost} of {total} blocks are lost: neither free nor held")
