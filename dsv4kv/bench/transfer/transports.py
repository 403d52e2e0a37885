"""How bytes get from a sender's memory into ours: one call, by descriptors.

NIXL (1.5.1, ``nixl._api``) and Mooncake's transfer engine (0.3.13, ``mooncake.engine``) read where
they are installed. NIXL's wheels ask for torch with CUDA and need neither: ``pip install --no-deps
nixl nixl-cu13``. Mooncake's protocol is TCP, or RDMA by ``MOONCAKE_PROTOCOL=rdma``. The ports of
both ask for no token.
"""

import base64
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import pairwise
from time import monotonic, sleep
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dsv4kv.bench.transfer.frames import READ, Wire
from dsv4kv.bench.transfer.manifest import Memory
from dsv4kv.errors import StoreUnavailable

Places = NDArray[np.int64]
"""int64[n, 3]: region, first byte, bytes."""

MOST_PLACES = 2**17
"""Of one frame: 3 MiB."""


class Reader(Protocol):
    """Reads a sender's memory."""

    def read(self, places: Places, into: Sequence[memoryview]) -> None:
        """Copy stretches of its memory into views of the same lengths, in order.

        Raises ``StoreUnavailable`` for places that it does not have, or where it is gone.
        """


class MappedReader:
    """Reads memory that is mapped here: a shared segment, or another cache of this process."""

    def __init__(self, regions: Sequence[memoryview]) -> None:
        """Read these."""
        self._regions = regions

    def read(self, places: Places, into: Sequence[memoryview]) -> None:
        for source, target in zip(stretches_of(self._regions, places), into, strict=True):
            target[:] = source


class WireReader:
    """Reads over a connection, whose other end serves its memory."""

    def __init__(self, wire: Wire) -> None:
        """Use a connection that has been greeted."""
        self._wire = wire

    def read(self, places: Places, into: Sequence[memoryview]) -> None:
        for first in range(0, len(places), MOST_PLACES):
            part = slice(first, first + MOST_PLACES)
            self._wire.send(READ, [memoryview(places[part].astype("<i8").tobytes())])
            self._wire.receive_into(into[part])


def mapped(segment: memoryview, offsets: Sequence[int]) -> MappedReader:
    """A reader of regions of a shared segment, each up to the next one.

    Raises ``StoreUnavailable`` where the segment is shorter.
    """
    ends = sorted({*offsets, len(segment)})
    if ends[-1] > len(segment):
        raise StoreUnavailable(
            f"the sender has a region at {ends[-1]:,} of a segment of {len(segment):,} B: its "
            "manifest is wrong."
        )
    following = dict(pairwise(ends))
    return MappedReader([segment[start : following.get(start, start)] for start in offsets])


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


_MOST = 512  # stretches at once: Mooncake's queue for a peer refuses those that find it full


class Library:
    """A library whose peers read each other's memory: a cache's pools, there and here."""

    module, called, installed_by = "", "", ""

    def __init__(self, memory: Memory, host: str) -> None:
        """Let others, who know this machine as ``host``, read a cache; raises ``NotHere``."""
        self._theirs = np.empty(0, dtype=np.int64)
        self._timeout_s = 0.0
        facts = self._open(self.load(), memory, host)
        self._facts = {"addresses": [address_of(region) for region in memory.regions], **facts}

    @classmethod
    def load(cls) -> Any:
        """The library's module; raises ``NotHere``."""
        for level in ("NIXL_LOG_LEVEL", "MC_LOG_LEVEL"):
            os.environ.setdefault(level, "ERROR")
        try:
            return import_module(cls.module)
        except (ImportError, OSError) as error:
            raise NotHere(
                f"{cls.called} is not here ({error}): {cls.installed_by}, on both sides."
            ) from None

    def describe(self) -> dict[str, Any]:
        """What a reader must know."""
        return self._facts

    def connect(self, sender: dict[str, Any], timeout_s: float) -> None:
        """Read from the peer that describes itself so; ``StoreUnavailable`` if it is none."""
        self._timeout_s = timeout_s
        with self._explained(f"the sender's {self.called} is none"):
            self._theirs = np.array(sender["addresses"], dtype=np.int64)
            self._meet(sender)

    def read(self, places: Places, into: Sequence[memoryview]) -> None:
        if not len(places):
            return
        if places[:, 0].min() < 0 or places[:, 0].max() >= len(self._theirs):
            raise StoreUnavailable("the sender has no such regions.")
        theirs = (self._theirs[places[:, 0]] + places[:, 1]).tolist()
        with self._explained(self.called):
            self._read([address_of(view) for view in into], theirs, places[:, 2].tolist())

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever its bindings raise
            raise StoreUnavailable(f"{what}: {str(error).rstrip('.')}.") from None

    def _open(self, module: Any, memory: Memory, host: str) -> dict[str, Any]:
        raise NotImplementedError

    def _meet(self, sender: dict[str, Any]) -> None:
        raise NotImplementedError

    def _read(self, ours: list[int], theirs: list[int], sizes: list[int]) -> None:
        raise NotImplementedError


class Nixl(Library):
    """NIXL: over what the machines have (RDMA, TCP, CMA)."""

    module, called = "nixl._api", "NIXL"
    installed_by = "pip install --no-deps nixl nixl-cu13 (-cu12 where torch has that)"

    def _open(self, module: Any, memory: Memory, host: str) -> dict[str, Any]:
        name = f"dsv4kv-{os.getpid()}-{os.urandom(4).hex()}"  # no other agent's
        self._agent = module.nixl_agent(name, module.nixl_agent_config(backends=["UCX"]))
        pools = [(address_of(region), len(region), 0, "") for region in memory.regions]
        self._registered = self._agent.register_memory(pools, "DRAM")
        metadata = base64.b64encode(self._agent.get_agent_metadata()).decode()
        return {"name": name, "metadata": metadata}

    def _meet(self, sender: dict[str, Any]) -> None:
        self._remote = sender["name"]
        self._agent.add_remote_agent(base64.b64decode(sender["metadata"]))

    def _read(self, ours: list[int], theirs: list[int], sizes: list[int]) -> None:
        agent, device = self._agent, [0] * len(sizes)
        left, right = (
            agent.get_xfer_descs(list(zip(each, sizes, device, strict=True)), "DRAM")
            for each in (ours, theirs)
        )
        handle = agent.initialize_xfer("READ", left, right, self._remote, b"")
        try:
            agent.transfer(handle)
            deadline = monotonic() + self._timeout_s
            while (state := agent.check_xfer_state(handle)) != "DONE":
                if state == "ERR" or monotonic() > deadline:
                    raise StoreUnavailable(f"not read in {self._timeout_s:g} s: {state}")
                sleep(0)
        finally:
            agent.release_xfer_handle(handle)


class Mooncake(Library):
    """Mooncake's transfer engine: over TCP, or RDMA by ``MOONCAKE_PROTOCOL=rdma``."""

    module, called = "mooncake.engine", "Mooncake"
    installed_by = (
        "pip install mooncake-transfer-engine-non-cuda (without that suffix where there is CUDA) "
        "and libibverbs1, librdmacm1, libnl-3-200 and libnl-route-3-200"
    )

    def _open(self, module: Any, memory: Memory, host: str) -> dict[str, Any]:
        self._engine = module.TransferEngine()
        protocol = os.environ.get("MOONCAKE_PROTOCOL", "tcp")
        failed = self._engine.initialize(host, "P2PHANDSHAKE", protocol, "")
        for region in memory.regions:
            failed = failed or self._engine.register_memory(address_of(region), len(region))
        if failed:
            raise StoreUnavailable(
                f"Mooncake cannot move this cache's memory at {host} ({failed})."
            )
        return {"at": f"{host}:{self._engine.get_rpc_port()}"}

    def _meet(self, sender: dict[str, Any]) -> None:
        self._remote = str(sender["at"])

    def _read(self, ours: list[int], theirs: list[int], sizes: list[int]) -> None:
        for first in range(0, len(sizes), _MOST):
            some = [each[first : first + _MOST] for each in (ours, theirs, sizes)]
            if self._engine.batch_transfer_sync_read(self._remote, *some):
                raise StoreUnavailable(
                    f"{self._remote} was not read in {self._timeout_s:g} s: the sender is gone, "
                    "or has no such memory"
                )


LIBRARIES: dict[str, type[Library]] = {"nixl": Nixl, "mooncake": Mooncake}


def address_of(view: memoryview) -> int:
    """Where a view begins."""
    return int(np.frombuffer(view, dtype=np.uint8).ctypes.data)
