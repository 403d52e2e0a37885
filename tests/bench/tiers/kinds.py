"""A store of every kind, and objects for it."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from dsv4kv.bench.library import Bytes, FileStore, MemoryStore, Store

POISON = 0xA5
SIZES = (0, 1, 31, 32, 33, 64, 40_960)
KINDS = pytest.mark.parametrize("kind", ["memory", "file"])


@contextmanager
def opened(kind: str, folder: Path) -> Iterator[Store]:
    """A store of this kind; of files, whatever was put there before."""
    store: Store = FileStore(folder) if kind == "file" else MemoryStore()
    with closing(store):
        yield store


def file_of(store: FileStore, name: str) -> Path:
    return next(store.folder.glob(f"*/{name}.kv"))


def content(number: int, size: int) -> Bytes:
    """uint8[size] that is another's for every number, where there is a byte to tell."""
    return np.random.default_rng(number).integers(0, 256, size, dtype=np.uint8)


def poisoned(size: int) -> Bytes:
    """A destination that holds what no object does."""
    return np.full(size, POISON, np.uint8)
