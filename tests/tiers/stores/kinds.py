"""A store of every kind, and objects for it."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from dsv4kv.choices import STORES
from dsv4kv.tiers.stores.contract import Bytes, Store
from dsv4kv.tiers.stores.namespace import Namespace
from dsv4kv.tiers.stores.place import open_store

FLASH = Namespace("deepseek-ai/DeepSeek-V4-Flash", "0731", {"entries": "fp8_ds_mla"})
KINDS = pytest.mark.parametrize("kind", STORES)
PLACES = {"memory": "memory:1GiB", "file": "file:{folder}"}
POISON = 0xA5
# around a seal's 32 bytes and the 4,096 that O_DIRECT goes by
SIZES = (0, 1, 31, 32, 4063, 4064, 4065, 4096, 40_960)


@contextmanager
def opened(kind: str, folder: Path, namespace: Namespace = FLASH) -> Iterator[Store]:
    """A store of this kind, whatever was put into it there before."""
    with closing(open_store(PLACES[kind].format(folder=folder), namespace)) as store:
        yield store


def content(number: int, size: int) -> Bytes:
    """uint8[size] that is another's for every number, where there is a byte to tell."""
    return np.random.default_rng(number).integers(0, 256, size, dtype=np.uint8)


def poisoned(size: int) -> Bytes:
    """A destination that holds what no object does."""
    return np.full(size, POISON, np.uint8)
