"""Mooncake's transfer engine, where it is installed: bytes as by a socket, faults as sentences."""

import sys
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest

from dsv4kv.errors import StoreUnavailable
from dsv4kv.moving import transports
from dsv4kv.moving.memory import Memory, make_manifest
from dsv4kv.moving.receiver import receive
from dsv4kv.moving.transports import MooncakeMemory, MooncakeReader, NotHere
from tests.moving.test_rows import cache, rows_of, running

HERE = "127.0.0.1"


def has_mooncake() -> bool:
    """Whether the package is here with all libraries that it needs."""
    try:
        return find_spec("mooncake") is not None and bool(import_module("mooncake.engine"))
    except ImportError:
        return False


NEEDS_MOONCAKE = pytest.mark.skipif(
    not has_mooncake(),
    reason="mooncake is not here: pip install mooncake-transfer-engine-non-cuda, and libibverbs",
)


def test_where_mooncake_is_missing_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mooncake.engine", None)
    with pytest.raises(NotHere, match="pip install mooncake-transfer-engine-non-cuda"):
        MooncakeMemory(Memory(cache()), HERE)


@NEEDS_MOONCAKE
def test_a_request_comes_over_mooncake_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """In several calls: its queue takes so many stretches at once."""
    monkeypatch.setattr(transports, "_MOST", 5)
    source, target = cache(), cache(block_tokens=128)
    slot = running(source, 300)
    theirs, ours = Memory(source), Memory(target)
    told = MooncakeMemory(theirs, HERE)
    reader = MooncakeReader(ours, told.describe(), HERE, 20)
    received = receive(ours, make_manifest(theirs, slot, 300), [reader])
    assert rows_of(target, received.slot, 300) == rows_of(source, slot, 300)


@NEEDS_MOONCAKE
def test_what_mooncake_cannot_read_is_a_sentence() -> None:
    source, target = Memory(cache()), Memory(cache())
    told = MooncakeMemory(source, HERE)
    reader, into = MooncakeReader(target, told.describe(), HERE, 5), [target.regions[0][:64]]
    for place in ((len(source.regions), 0, 64), (0, 2**40, 64)):
        with pytest.raises(StoreUnavailable, match=r"Mooncake|no such regions"):
            reader.read(np.array([place]), into)
    nobody = MooncakeReader(target, told.describe() | {"at": f"{HERE}:1"}, HERE, 5)
    with pytest.raises(StoreUnavailable, match="the sender is gone"):
        nobody.read(np.array([(0, 0, 64)]), into)
    with pytest.raises(StoreUnavailable, match="engine is none"):
        MooncakeReader(target, {}, HERE, 5)
