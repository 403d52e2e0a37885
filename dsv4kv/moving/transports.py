"""How bytes get from a sender's memory into ours: one call, by descriptors.

NIXL (1.5.1, ``nixl._api``) and Mooncake's transfer engine (0.3.13, ``mooncake.engine``) read where
they are installed. NIXL's wheels ask for torch with CUDA and need neither: ``pip install --no-deps
nixl nixl-cu13``. Mooncake's protocol is TCP, or RDMA by ``MOONCAKE_PROTOCOL=rdma``. The ports of
both ask nobody for a token.
"""

import base64
import os
from collections.abc import Iterator, Sequence
from importlib import import_module
from math import ceil
from time import monotonic, sleep
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dsv4kv.errors import StoreUnavailable
from dsv4kv.moving.frames import READ, Wire
from dsv4kv.moving.memory import Memory

Places = NDArray[np.int64]
"""int64[n, 3]: region, first byte, bytes."""

MOST_PLACES = 2**17
"""Of one frame: 3 MiB."""


class Reader(Protocol):
    """Reads a sender's memory."""

    def read(self, places: Places, into: Sequence[memoryview]) -> None:
        """Copy stretches of its memory into views of the same lengths, in order.

        Raises:
            StoreUnavailable: Places that it does not have, or nobody is there any more.
        """


class MappedReader:
    """Reads memory that is mapped here: a shared segment, or another cache of this process."""

    def __init__(self, regions: Sequence[memoryview]) -> None:
        """Read these."""
        self._regions = regions

    def read(self, places: Places, into: Sequence[memoryview]) -> None:
        """See ``Reader``."""
        for source, target in zip(stretches_of(self._regions, places), into, strict=True):
            target[:] = source


class WireReader:
    """Reads over a connection, whose other end serves its memory."""

    def __init__(self, wire: Wire) -> None:
        """Use a connection that has been greeted."""
        self._wire = wire

    def read(self, places: Places, into: Sequence[memoryview]) -> None:
        """See ``Reader``."""
        for first in range(0, len(places), MOST_PLACES):
            part = slice(first, first + MOST_PLACES)
            self._wire.send(READ, [memoryview(places[part].astype("<i8").tobytes())])
            self._wire.receive_into(into[part])


def mapped(segment: memoryview, offsets: Sequence[int], lengths: Sequence[int]) -> MappedReader:
    """A reader of regions of a shared segment; raises ``StoreUnavailable`` where it is shorter."""
    for offset, length in zip(offsets, lengths, strict=True):
        if offset + length > len(segment):
            raise StoreUnavailable(
                f"the sender has {length:,} B at {offset:,} of a segment of {len(segment):,} B: "
                "its manifest is wrong."
            )
    return MappedReader([segment[o : o + n] for o, n in zip(offsets, lengths, strict=True)])


def parse_places(payload: bytes) -> Places:
    """Places of a frame; raises ``StoreUnavailable`` for what are none."""
    if len(payload) % 24:
        raise StoreUnavailable(f"a read of {len(payload):,} B is no list of places.")
    return np.frombuffer(payload, dtype="<i8").reshape(-1, 3)


def stretches_of(regions: Sequence[memoryview], places: Places) -> Iterator[memoryview]:
    """Views of places; raises ``StoreUnavailable`` for those that are in no region."""
    if not len(places):
        return iter(())
    number, start, length = places.T
    known = (number >= 0) & (number < len(regions))
    sizes = np.array([len(region) for region in regions], dtype=np.int64)
    limit = sizes[np.where(known, number, 0)] if len(sizes) else np.zeros_like(start)
    good = known & (start >= 0) & (length >= 0) & (length <= limit) & (start <= limit - length)
    if not good.all():
        bad = places[int(np.argmin(good))].tolist()
        raise StoreUnavailable(f"there are no {bad[2]:,} B at {bad[1]:,} of region {bad[0]:,}.")
    return (regions[i][a : a + n] for i, a, n in places.tolist())


class NotHere(StoreUnavailable):
    """A transport that one of the sides does not have."""


LIBRARIES = {"nixl": "nixl._api", "mooncake": "mooncake.engine"}
"""Modules of the libraries that read memory themselves."""
_INSTALLED_BY = {
    "nixl": "pip install --no-deps nixl nixl-cu13 (-cu12 where torch has that), on both sides",
    "mooncake": "pip install mooncake-transfer-engine-non-cuda (without that suffix where there "
    "is CUDA), on both sides; it needs libibverbs1, librdmacm1, libnl-3-200 and libnl-route-3-200",
}
_KIND = "DRAM"  # NIXL's name of the host's memory
_MOST = 512  # stretches at once: Mooncake's queue for a peer refuses those that find it full


def load_library(name: str) -> Any:
    """The module of ``nixl`` or ``mooncake``; raises ``NotHere``."""
    for level in ("NIXL_LOG_LEVEL", "MC_LOG_LEVEL"):
        os.environ.setdefault(level, "ERROR")
    try:
        return import_module(LIBRARIES[name])
    except (ImportError, OSError) as error:
        called = {"nixl": "NIXL"}.get(name, name.capitalize())
        raise NotHere(f"{called} is not here ({error}): {_INSTALLED_BY[name]}.") from None


def _agent(name: str, memory: Memory) -> tuple[Any, str, Any]:
    """An agent that may read a cache's pools, its name, which no other has, and its handle."""
    api = load_library("nixl")
    own = f"dsv4kv-{name}-{os.getpid()}-{os.urandom(4).hex()}"
    agent = api.nixl_agent(own, api.nixl_agent_config(backends=["UCX"]))
    pools = [(address_of(region), len(region), 0, "") for region in memory.regions]
    return agent, own, agent.register_memory(pools, _KIND)


class NixlMemory:
    """A cache's pools, for agents of others to read."""

    def __init__(self, memory: Memory) -> None:
        """Register them; raises ``NotHere``."""
        self._agent, self._name, self._registered = _agent("prefill", memory)
        self._addresses = [address_of(region) for region in memory.regions]

    def describe(self) -> dict[str, Any]:
        """What a reader must know."""
        metadata = base64.b64encode(self._agent.get_agent_metadata()).decode()
        return {"name": self._name, "metadata": metadata, "addresses": self._addresses}


class NixlReader:
    """Reads another agent's memory into a cache's own pools."""

    def __init__(self, memory: Memory, sender: dict[str, Any], timeout_s: float) -> None:
        """Connect to the agent that describes itself as ``sender``.

        Raises:
            NotHere: There is no NIXL here.
            StoreUnavailable: What it said is none of an agent's.
        """
        self._agent, _, self._registered = _agent("decode", memory)
        self._timeout_s = timeout_s
        try:
            self._addresses = np.array(sender["addresses"], dtype=np.int64)
            self._remote = sender["name"]
            self._agent.add_remote_agent(base64.b64decode(sender["metadata"]))
        except Exception as error:  # whatever its bindings raise
            raise StoreUnavailable(f"the sender's NIXL agent is none: {error}.") from None

    def read(self, places: Places, into: Sequence[memoryview]) -> None:
        """See ``Reader``."""
        if not len(places):
            return
        starts = _starts(self._addresses, places)
        theirs = np.stack([starts, places[:, 2], np.zeros_like(starts)], axis=1)
        ours = [(address_of(view), len(view), 0) for view in into]
        try:
            self._transfer(ours, [tuple(each) for each in theirs.tolist()])
        except StoreUnavailable:
            raise
        except Exception as error:  # whatever its bindings raise
            raise StoreUnavailable(f"NIXL: {error}.") from None

    def _transfer(self, ours: list[Any], theirs: list[Any]) -> None:
        agent = self._agent
        left, right = agent.get_xfer_descs(ours, _KIND), agent.get_xfer_descs(theirs, _KIND)
        handle = agent.initialize_xfer("READ", left, right, self._remote, b"")
        try:
            agent.transfer(handle)
            deadline = monotonic() + self._timeout_s
            while (state := agent.check_xfer_state(handle)) != "DONE":
                if state == "ERR" or monotonic() > deadline:
                    raise StoreUnavailable(
                        f"NIXL did not read it in {self._timeout_s:g} s: {state}."
                    )
                sleep(0)
        finally:
            agent.release_xfer_handle(handle)


def _starts(addresses: Places, places: Places) -> Places:
    """Addresses of places in the regions of a sender; ``StoreUnavailable`` for other regions."""
    if places[:, 0].min() < 0 or places[:, 0].max() >= len(addresses):
        raise StoreUnavailable("the sender has no such regions.")
    starts: Places = addresses[places[:, 0]] + places[:, 1]
    return starts


def address_of(view: memoryview) -> int:
    """Where a view begins."""
    return int(np.frombuffer(view, dtype=np.uint8).ctypes.data)


def _engine(host: str, memory: Memory) -> Any:
    """An engine that others reach at ``host``, and may read a cache's pools by."""
    engine = load_library("mooncake").TransferEngine()
    protocol = os.environ.get("MOONCAKE_PROTOCOL", "tcp")
    failed = engine.initialize(host, "P2PHANDSHAKE", protocol, "")
    for region in memory.regions:
        failed = failed or engine.register_memory(address_of(region), len(region))
    if failed:
        raise StoreUnavailable(f"Mooncake cannot move this cache's memory at {host} ({failed}).")
    return engine


class MooncakeMemory:
    """A cache's pools, for engines of others to read."""

    def __init__(self, memory: Memory, host: str) -> None:
        """Register them, for those who know this machine as ``host``."""
        self._engine = _engine(host, memory)
        self._addresses = [address_of(region) for region in memory.regions]
        self._at = f"{host}:{self._engine.get_rpc_port()}"

    def describe(self) -> dict[str, Any]:
        """What a reader must know."""
        return {"at": self._at, "addresses": self._addresses}


class MooncakeReader:
    """Reads another engine's memory into a cache's own pools."""

    def __init__(
        self, memory: Memory, sender: dict[str, Any], host: str, timeout_s: float
    ) -> None:
        """Connect to the engine that describes itself as ``sender``; to it we are at ``host``.

        Raises:
            NotHere: There is no Mooncake here.
            StoreUnavailable: What it said is none of an engine's.
        """
        os.environ["MC_TRANSFER_TIMEOUT"] = str(ceil(timeout_s))
        self._engine, self._timeout_s = _engine(host, memory), timeout_s
        try:
            self._addresses = np.array(sender["addresses"], dtype=np.int64)
            self._at = str(sender["at"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise StoreUnavailable(f"the sender's Mooncake engine is none: {error}.") from None

    def read(self, places: Places, into: Sequence[memoryview]) -> None:
        """See ``Reader``."""
        if not len(places):
            return
        theirs = _starts(self._addresses, places).tolist()
        ours = [address_of(view) for view in into]
        stretches = ours, theirs, places[:, 2].tolist()
        for first in range(0, len(places), _MOST):
            some = [each[first : first + _MOST] for each in stretches]
            if self._engine.batch_transfer_sync_read(self._at, *some):
                raise StoreUnavailable(
                    f"Mooncake did not read from {self._at} in {self._timeout_s:g} s: the sender "
                    "is gone, or has no such memory."
                )
