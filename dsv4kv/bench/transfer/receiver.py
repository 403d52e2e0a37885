"""A receiver: reads a request out of another cache into its own, and proves that it is that."""

import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from time import perf_counter_ns
from typing import Protocol, Self

import numpy as np

from dsv4kv.bench.tiers.objects import Descriptors, coalesce, describe
from dsv4kv.bench.transfer.frames import MESSAGE, READ, Wire, check_token, greet
from dsv4kv.bench.transfer.manifest import (
    Manifest,
    MappedReader,
    Memory,
    Places,
    check_manifest,
    make_manifest,
    read_manifest,
)
from dsv4kv.cache.manager import KVCacheManager, prepare_forward
from dsv4kv.errors import StoreUnavailable, VerificationError
from dsv4kv.model.families import Kept
from dsv4kv.runs.statistics import Estimate

_MOST_PLACES = 2**17  # of one frame: 3 MiB


class Reader(Protocol):
    """Reads a sender's memory."""

    def read(self, places: Places, into: Sequence[memoryview]) -> None:
        """Copy stretches of its memory into views of the same lengths, in order.

        Raises ``StoreUnavailable`` for places that it does not have, or where it is gone.
        """


class Peer:
    """A sender, over one connection, which also reads its memory."""

    def __init__(
        self, address: tuple[str, int], *, token: str = "", timeout_s: float = 30.0
    ) -> None:
        """Connect and greet.

        Raises ``ConfigError`` without a token for another machine, and ``StoreUnavailable``.
        """
        check_token(address[0], token)
        try:
            connection = socket.create_connection(address, timeout_s)
        except OSError as error:
            raise StoreUnavailable(
                f"no sender at {address[0]}:{address[1]}: {error.strerror or error}."
            ) from None
        self.wire = Wire(connection)
        self.ask = self.wire.ask
        try:
            greet(self.wire, token)
        except BaseException:
            self.wire.close()
            raise
        self.wire.trust(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(StoreUnavailable):
            self.wire.send_message({"op": "bye"})
        self.wire.close()

    def manifest(self, request: int, prefix: int | None = None) -> Manifest:
        """A request as soon as it is computed, or the pages of its chunk after ``prefix`` tokens.

        After the last chunk it is the whole request, complete.
        """
        self.wire.send_message({"op": "manifest", "request": request, "prefix": prefix})
        payload = self.wire.receive(MESSAGE)
        if payload.startswith(b'{"error"'):
            self.wire.check(payload)
        return read_manifest(payload)

    def wait(self, request: int, layer: int, tokens: int) -> None:
        """Wait until a layer has the rows of ``tokens`` tokens."""
        self.wire.ask({"op": "wait", "request": request, "layer": layer, "tokens": tokens})

    def read(self, places: Places, into: Sequence[memoryview]) -> None:
        for first in range(0, len(places), _MOST_PLACES):
            part = slice(first, first + _MOST_PLACES)
            self.wire.send(READ, [memoryview(places[part].astype("<i8").tobytes())])
            self.wire.receive_into(into[part])

    def read_raw(self, into: memoryview) -> None:
        """As many bytes as fit, of nothing: what the connection gives at best."""
        self.wire.send_message({"op": "raw", "bytes": len(into)})
        self.wire.receive_into([into])


@dataclass(frozen=True)
class Moved:
    """What was read of one family, and how fast in the rounds that were timed."""

    pieces: int = 0  # descriptors before neighbours were merged
    descriptors: int = 0
    bytes: int = 0
    useful_bytes: int = 0  # of rows alone, without padding
    read_ns: int = 0
    gbps: Estimate | None = None

    def __add__(self, other: "Moved") -> "Moved":
        counts = ("pieces", "descriptors", "bytes", "useful_bytes", "read_ns")
        return Moved(*(getattr(self, name) + getattr(other, name) for name in counts))


@dataclass
class Received:
    """A request that has come: its slot, the slot's generation, its tokens, and what was read."""

    slot: int
    generation: int
    tokens: int
    moved: dict[str, Moved] = field(default_factory=dict)  # by family


@dataclass(frozen=True)
class Read:
    """Descriptors of every layer of a family, as places there and views here."""

    places: Places
    into: list[memoryview]
    moved: Moved  # once it is read


@contextmanager
def _arriving(manager: KVCacheManager, tokens: int) -> Iterator[Received]:
    """A request in a new slot, which is given back if the request does not come."""
    slot = manager.admit_request()
    received = Received(slot, manager.generation(slot), tokens)
    try:
        yield received
    except BaseException:
        manager.release_request(slot, received.generation)
        raise


def receive(
    memory: Memory, manifest: Manifest, readers: Sequence[Reader], *, merge: bool = True
) -> Received:
    """Take a request in, and compare every page with its digest.

    Several readers read families in parallel; ``merge`` merges neighbouring descriptors.

    Raises:
        ConfigError: The caches differ.
        CacheError: No slot or blocks are free here.
        StoreUnavailable: The sender is gone, too slow, or says what cannot be.
        VerificationError: Received bytes differ from sent bytes.
        In every case the slot and its blocks are given back.
    """
    manager, names = memory.manager, list(memory.families)
    with _arriving(manager, manifest.tokens) as received:
        _check_order(manifest, 0, goes_on=True)
        check_manifest(manifest, memory)
        prepare_forward(manager, [received.slot], [0], [manifest.tokens])

        def read_some(number: int) -> None:
            for name in names[number :: len(readers)]:
                read = plan_request(memory, manifest, received, name, merge=merge)
                received.moved[name] = timed(readers[number], read)

        with ThreadPoolExecutor(len(readers)) as pool:
            list(pool.map(read_some, range(len(readers))))
        received.moved = {name: received.moved[name] for name in names}
        verify(memory, manifest, received)
    return received


def receive_layers(
    memory: Memory, peer: Peer, request: int, reader: Reader, *, merge: bool = True
) -> Received:
    """Take a request in while it is computed: pages of a layer as soon as it has them.

    Windows and states come at the end, and so do the digests. Raises as ``receive``.
    """
    manager, families = memory.manager, memory.families
    with _arriving(manager, 0) as received:
        received.moved = {name: Moved() for name in families}

        def read(name: str, manifest: Manifest, layers: Sequence[int] | None = None) -> None:
            plan = plan_request(memory, manifest, received, name, merge=merge, layers=layers)
            received.moved[name] += timed(reader, plan)

        while not (manifest := peer.manifest(request, received.tokens)).complete:
            goes_on = manifest.tokens > received.tokens
            _check_order(manifest, received.tokens, goes_on=goes_on)
            check_manifest(manifest, memory)
            prepare_forward(manager, [received.slot], [received.tokens], [manifest.tokens])
            received.tokens = manifest.tokens
            for layer in sorted({x for family in families.values() for x in family.layers}):
                peer.wait(request, layer, manifest.tokens)
                for name, family in families.items():
                    if family.kept is Kept.PAGES and layer in family.layers:
                        read(name, manifest, [family.layers.index(layer)])
        _check_order(manifest, 0, goes_on=manifest.tokens == received.tokens)
        check_manifest(manifest, memory)
        for name, family in families.items():
            if family.kept is not Kept.PAGES:
                read(name, manifest)
        verify(memory, manifest, received)
    return received


def _check_order(manifest: Manifest, prefix: int, *, goes_on: bool) -> None:
    """Chunks follow on each other, and the whole is all of them."""
    if manifest.prefix != prefix or not goes_on:
        raise StoreUnavailable(
            f"the sender has chunks that do not follow on each other: tokens {manifest.prefix:,} "
            f"to {manifest.tokens:,}."
        )


def plan_request(
    memory: Memory,
    manifest: Manifest,
    received: Received,
    name: str,
    *,
    merge: bool,
    layers: Sequence[int] | None = None,
) -> Read:
    """Which bytes of a family there go where here; ``layers`` by their place, None for all."""
    family, offered, ours = memory.families[name], manifest.families[name], memory.geometries[name]
    ids, rows = memory.units(family, received.slot, manifest.tokens), offered.rows()
    blocks, first, pieces = offered.blocks(), memory.numbers[name], 0
    places, into = list[Places](), list[memoryview]()
    found: Descriptors | None = None
    for i in range(len(family.layers)) if layers is None else layers:
        if found is None or len(offered.ids) > 1 or (ids[i] != ids[i - 1]).any():
            each = describe(offered.geometry, blocks[i], ours, ids[i], rows)
            found = coalesce(each) if merge else each
        pieces += len(each)
        number = np.full(len(found), offered.regions + i)
        places.append(np.stack([number, found.source, found.lengths], axis=1))
        pool = memory.regions[first + i]
        starts, ends = found.target.tolist(), (found.target + found.lengths).tolist()
        into += [pool[start:end] for start, end in zip(starts, ends, strict=True)]
    merged = np.concatenate(places)
    size, useful = int(merged[:, 2].sum()), len(rows) * sum(offered.geometry.row_bytes)
    return Read(merged, into, Moved(pieces, len(merged), size, useful * len(places)))


def timed(reader: Reader, read: Read) -> Moved:
    """Read, and return the read's counts and duration."""
    start = perf_counter_ns()
    reader.read(read.places, read.into)
    return replace(read.moved, read_ns=perf_counter_ns() - start)


def verify(memory: Memory, manifest: Manifest, received: Received) -> None:
    """Hash every page's rows where decode steps read them, and compare with the sender's.

    Raises ``VerificationError`` with every family that differs.
    """
    wrong = []
    for name, family in memory.families.items():
        offered = manifest.families[name]
        ids = memory.units(family, received.slot, manifest.tokens)
        found = memory.digests(family, ids, offered.rows(), offered.geometry.rows)
        unlike = sum(a != b for a, b in zip(found, offered.digests, strict=False))
        unlike += abs(len(found) - len(offered.digests))
        if unlike:
            wrong.append(f"{name}: {unlike:,} of {len(found):,} pages")
    if wrong:
        raise VerificationError(
            "What has come is not what left, by its digests: " + "; ".join(wrong) + "."
        )


def fan_out(source: Memory, received: Received, ranks: Sequence[Memory]) -> list[Received]:
    """Copy a request to further ranks of its machine: all ranks hold the same bytes.

    The wire is crossed once for all of them. Raises as ``receive``.
    """
    manifest = make_manifest(source, received.slot, received.tokens)
    return [receive(rank, manifest, [MappedReader(source.regions)]) for rank in ranks]
