"""NIXL and Mooncake, where they are installed: bytes as by a socket, faults as sentences."""

import sys
from ctypes import memmove
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsv4kv.bench.transfer import transports
from dsv4kv.bench.transfer.manifest import Memory, make_manifest
from dsv4kv.bench.transfer.receiver import receive
from dsv4kv.bench.transfer.transports import Library, Mooncake, Nixl, NotHere
from dsv4kv.errors import StoreUnavailable
from tests.bench.transfer.test_rows import cache, rows_of, running

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


NEEDS_NIXL = pytest.mark.skipif(find_spec("nixl") is None, reason="nixl is not installed")
HERE_WITH = pytest.mark.parametrize(
    "library", [pytest.param(Nixl, marks=NEEDS_NIXL), pytest.param(Mooncake, marks=NEEDS_MOONCAKE)]
)


@pytest.mark.parametrize("library", [Nixl, Mooncake])
def test_where_a_library_is_missing_there_is_a_sentence(
    library: type[Library], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library.module, None)
    with pytest.raises(NotHere, match=r"is not here .*: pip install .*, on both sides\."):
        library(Memory(cache()), HERE)


@HERE_WITH
def test_a_request_comes_over_a_library_as_it_is(
    library: type[Library], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In several calls: Mooncake's queue takes so many stretches at once."""
    monkeypatch.setattr(transports, "_MOST", 5)
    source, target = cache(), cache(block_tokens=128)
    slot = running(source, 300)
    theirs, ours = Memory(source), Memory(target)
    sender, reader = library(theirs, HERE), library(ours, HERE)
    reader.connect(sender.describe(), 20)
    received = receive(ours, make_manifest(theirs, slot, 300), [reader])
    assert rows_of(target, received.slot, 300) == rows_of(source, slot, 300)


@HERE_WITH
def test_what_a_library_cannot_read_is_a_sentence(library: type[Library]) -> None:
    source, target = Memory(cache()), Memory(cache())
    sender, reader = library(source, HERE), library(target, HERE)
    reader.connect(sender.describe(), 5)
    into = [target.regions[0][:64]]
    for place in ((len(source.regions), 0, 64), (0, 2**40, 64)):
        with pytest.raises(StoreUnavailable, match=f"{library.called}|no such regions"):
            reader.read(np.array([place]), into)
    with pytest.raises(StoreUnavailable, match="is none"):
        reader.connect({}, 5)


@NEEDS_MOONCAKE
def test_a_sender_that_is_gone_is_a_sentence() -> None:
    source, target = Memory(cache()), Memory(cache())
    nobody = Mooncake(target, HERE)
    nobody.connect(Mooncake(source, HERE).describe() | {"at": f"{HERE}:1"}, 5)
    with pytest.raises(StoreUnavailable, match="the sender is gone"):
        nobody.read(np.array([(0, 0, 64)]), [target.regions[0][:64]])


def move(targets: Any, sources: Any) -> None:
    for (target, size, *_), (source, length, *_) in zip(targets, sources, strict=True):
        assert size == length
        memmove(target, source, size)


def move_batch(at: str, targets: list[int], sources: list[int], sizes: list[int]) -> int:
    move(zip(targets, sizes, strict=True), zip(sources, sizes, strict=True))
    return 0


AGENT = SimpleNamespace(
    register_memory=lambda *_: None,
    get_agent_metadata=lambda: b"metadata",
    add_remote_agent=lambda metadata: {b"metadata": None}[metadata],
    get_xfer_descs=lambda stretches, kind: stretches,
    initialize_xfer=lambda how, ours, theirs, *_: (ours, theirs),
    transfer=lambda handle: move(*handle),
    check_xfer_state=lambda handle: "DONE",
    release_xfer_handle=lambda handle: None,
)
ENGINE = SimpleNamespace(
    initialize=lambda *_: 0,
    register_memory=lambda address, size: 0,
    get_rpc_port=lambda: 7,
    batch_transfer_sync_read=move_batch,
)
MODULES = {
    Nixl: SimpleNamespace(nixl_agent_config=dict, nixl_agent=lambda *_: AGENT),
    Mooncake: SimpleNamespace(TransferEngine=lambda: ENGINE),
}
"""What stands for the libraries: both sides are of this process."""


@pytest.mark.parametrize(("library", "module"), MODULES.items())
def test_what_a_library_is_asked_for_are_the_rows_of_the_request(
    library: type[Library], module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library.module, module)
    monkeypatch.setattr(transports, "import_module", lambda _: module)
    source, target = cache(), cache(block_tokens=128)
    slot = running(source, 300)
    theirs, ours = Memory(source), Memory(target)
    sender, reader = library(theirs, HERE), library(ours, HERE)
    reader.connect(sender.describe(), 5)
    received = receive(ours, make_manifest(theirs, slot, 300), [reader])
    assert rows_of(target, received.slot, 300) == rows_of(source, slot, 300)
