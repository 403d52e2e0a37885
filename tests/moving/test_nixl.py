"""NIXL, where it is installed: the same bytes as by a socket, and a sentence for what is wrong."""

import sys
from importlib.util import find_spec

import numpy as np
import pytest

from dsv4kv.errors import StoreUnavailable
from dsv4kv.moving.memory import Memory, make_manifest
from dsv4kv.moving.receiver import receive
from dsv4kv.moving.transports import NixlMemory, NixlReader, NotHere
from tests.moving.test_rows import cache, rows_of, running

needs_nixl = pytest.mark.skipif(find_spec("nixl") is None, reason="nixl is not installed")


def test_where_nixl_is_missing_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nixl._api", None)
    with pytest.raises(NotHere, match="pip install --no-deps nixl nixl-cu13"):
        NixlMemory(Memory(cache()))


@needs_nixl
def test_a_request_comes_over_nixl_as_it_is() -> None:
    source, target = cache(), cache(block_tokens=128)
    slot = running(source, 300)
    theirs, ours = Memory(source), Memory(target)
    told = NixlMemory(theirs)
    reader = NixlReader(ours, told.describe(), 20)
    received = receive(ours, make_manifest(theirs, slot, 300), [reader])
    assert rows_of(target, received.slot, 300) == rows_of(source, slot, 300)


@needs_nixl
def test_what_nixl_cannot_read_is_a_sentence() -> None:
    source, target = Memory(cache()), Memory(cache())
    told = NixlMemory(source)
    reader, into = NixlReader(target, told.describe(), 5), [target.regions[0][:64]]
    for place in ((len(source.regions), 0, 64), (0, 2**40, 64)):
        with pytest.raises(StoreUnavailable, match=r"NIXL|no such regions"):
            reader.read(np.array([place]), into)
    with pytest.raises(StoreUnavailable, match="agent is none"):
        NixlReader(target, told.describe() | {"metadata": "AAAA"}, 5)
