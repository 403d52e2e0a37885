"""A receiver: reads a request out of another cache into its own, and proves that it is that."""

import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter_ns
from types import TracebackType
from typing import Any, Self

import numpy as np

from dsv4kv.cache.blocks import Ids
from dsv4kv.cache.prepare import prepare_forward
from dsv4kv.errors import CacheError, StoreUnavailable, VerificationError
from dsv4kv.tiers.families import Family, Kept
from dsv4kv.tiers.wire.frames import MESSAGE, Wire, check_token, greet
from dsv4kv.tiers.wire.manifest import (
    FamilyRows,
    Manifest,
    check_manifest,
    make_manifest,
    read_manifest,
)
from dsv4kv.tiers.wire.memory import Memory
from dsv4kv.tiers.wire.rows import Descriptors, Moved, coalesce, describe
from dsv4kv.tiers.wire.transports import MappedReader, Places, Reader, WireReader


class Peer:
    """A sender, over one connection.

    Attributes:
        wire: The connection.
        reader: Reads its memory over it.
    """

    def __init__(
        self, address: tuple[str, int], *, token: str = "", timeout_s: float = 30.0
    ) -> None:
        """Connect and greet.

        Raises:
            ConfigError: No token, and the sender is not on this machine.
            StoreUnavailable: Nobody is there, or it does not know the token.
        """
        check_token(address[0], token)
        try:
            connection = socket.create_connection(address, timeout_s)
        except OSError as error:
            raise StoreUnavailable(
                f"no sender at {address[0]}:{address[1]}: {error.strerror or error}."
            ) from None
        self.wire = Wire(connection)
        self.reader = WireReader(self.wire)
        try:
            greet(self.wire, token)
        except BaseException:
            self.wire.close()
            raise
        self.wire.trust(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(StoreUnavailable):
            self.wire.send_message({"op": "bye"})
        self.wire.close()

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Ask the sender for something of its own."""
        return self.wire.ask(message)

    def manifest(self, request: int) -> Manifest:
        """A request, as soon as it is computed."""
        self.wire.send_message({"op": "manifest", "request": request})
        return read_manifest(self.wire.receive(MESSAGE))

    def chunk(self, request: int, prefix: int) -> Manifest:
        """The pages of the chunk after ``prefix`` tokens; at last the request, complete."""
        self.wire.send_message({"op": "chunk", "request": request, "prefix": prefix})
        return read_manifest(self.wire.receive(MESSAGE))

    def wait(self, request: int, layer: int, tokens: int) -> None:
        """Wait until a layer has the rows of so many tokens."""
        self.wire.ask({"op": "wait", "request": request, "layer": layer, "tokens": tokens})

    def taken(self, request: int) -> None:
        """Everything has come, and was there until now."""
        self.wire.ask({"op": "taken", "request": request})

    def read_raw(self, into: memoryview) -> None:
        """As many bytes as fit, of nothing: what the connection gives at best."""
        self.wire.send_message({"op": "raw", "bytes": len(into)})
        self.wire.receive_into([into])


@dataclass
class Received:
    """A request that has come.

    Attributes:
        slot: Where it is.
        generation: Of the slot, to release it.
        tokens: Tokens it has.
        moved: What was read, by family.
    """

    slot: int
    generation: int
    tokens: int
    moved: Mapping[str, Moved] = field(default_factory=dict)


@dataclass(frozen=True)
class Read:
    """What is read of one family: descriptors of every layer, as places there and views here.

    Attributes:
        places: Where they are there.
        into: Where they go here.
        pieces: How many they were before neighbours were merged.
        useful_bytes: Bytes of rows, without padding.
    """

    places: Places
    into: list[memoryview]
    pieces: int
    useful_bytes: int


def receive(
    memory: Memory,
    manifest: Manifest,
    readers: Sequence[Reader],
    *,
    slot: int | None = None,
    merge: bool = True,
) -> Received:
    """Take a request in, and compare every page with its digest.

    Args:
        memory: The cache that takes it.
        manifest: The request.
        readers: Read the sender's memory; with several, families come at once.
        slot: The request's slot, where the manifest's ``prefix`` tokens are in it already.
        merge: Merge neighbouring descriptors.

    Raises:
        ConfigError: The caches differ.
        CacheError: No slot or blocks are free here.
        StoreUnavailable: The sender is gone, too slow, or says what cannot be.
        VerificationError: What has come is not what left.
        In every case the slot and its blocks are given back.
    """
    manager, prefix = memory.manager, manifest.prefix
    if slot is None:
        slot = manager.admit_request()
    received = Received(slot, manager.generation(slot), manifest.tokens)
    try:
        if manager.tokens[slot] != prefix:
            raise CacheError(
                f"the request is offered from token {prefix:,} on, and slot {slot} has "
                f"{manager.tokens[slot]:,}."
            )
        check_manifest(manifest, memory)
        prepare_forward(manager, [slot], [prefix], [manifest.tokens])
        with ThreadPoolExecutor(len(readers)) as pool:
            parts = [list(memory.families)[i :: len(readers)] for i in range(len(readers))]
            found = pool.map(
                _read_families,
                *zip(
                    *(
                        (memory, manifest, received, names, reader, merge)
                        for names, reader in zip(parts, readers, strict=True)
                    ),
                    strict=True,
                ),
            )
            received.moved = {name: each for part in found for name, each in part.items()}
        verify(memory, manifest, received)
    except BaseException:
        manager.release_request(slot, received.generation)
        raise
    return received


def receive_layers(
    memory: Memory, peer: Peer, request: int, reader: Reader, *, merge: bool = True
) -> Received:
    """Take a request in while it is computed: pages of a layer as soon as it has them.

    Windows and states come at the end, and so do the digests. Raises as ``receive``.
    """
    manager = memory.manager
    slot = manager.admit_request()
    received = Received(slot, manager.generation(slot), 0)
    moved = {name: Moved() for name in memory.families}
    try:
        while not (manifest := peer.chunk(request, received.tokens)).complete:
            _check_order(manifest, received.tokens, manifest.tokens > received.tokens)
            check_manifest(manifest, memory)
            prepare_forward(manager, [slot], [received.tokens], [manifest.tokens])
            received.tokens = manifest.tokens
            for layer in sorted({x for f in memory.families.values() for x in f.layers}):
                peer.wait(request, layer, manifest.tokens)
                for name, family in memory.families.items():
                    if family.kept is Kept.PAGES and layer in family.layers:
                        at = [family.layers.index(layer)]
                        read = plan_request(
                            memory, manifest, received, name, merge=merge, layers=at
                        )
                        moved[name].add(timed(reader, read))
        _check_order(manifest, 0, manifest.tokens == received.tokens)
        check_manifest(manifest, memory)
        for name, family in memory.families.items():
            if family.kept is not Kept.PAGES:
                moved[name].add(
                    timed(reader, plan_request(memory, manifest, received, name, merge=merge))
                )
        verify(memory, manifest, received)
    except BaseException:
        manager.release_request(slot, received.generation)
        raise
    received.moved = moved
    return received


def _check_order(manifest: Manifest, prefix: int, goes_on: bool) -> None:
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
    """What is read of a family of a request."""
    family, offered = memory.families[name], manifest.families[name]
    ids = memory.ids(family, received.slot, manifest.tokens)
    rows = range(offered.first, offered.end)
    return plan_read(memory, family, offered, ids, rows, merge=merge, layers=layers)


def timed(reader: Reader, read: Read) -> Moved:
    """Read, and say what that was and how long it took."""
    start = perf_counter_ns()
    reader.read(read.places, read.into)
    spent_ns = perf_counter_ns() - start
    return Moved(
        read.pieces, len(read.places), int(read.places[:, 2].sum()), read.useful_bytes, spent_ns
    )


def _read_families(
    memory: Memory,
    manifest: Manifest,
    received: Received,
    names: Sequence[str],
    reader: Reader,
    merge: bool,
) -> dict[str, Moved]:
    return {
        name: timed(reader, plan_request(memory, manifest, received, name, merge=merge))
        for name in names
    }


def plan_read(
    memory: Memory,
    family: Family,
    offered: FamilyRows,
    ids: Ids,
    rows: range,
    *,
    merge: bool = True,
    layers: Sequence[int] | None = None,
) -> Read:
    """Which bytes there go where here: ids int64[layers, n] of the cache that takes them.

    layers: which of the family's, by their place; None for all.
    """
    ours, first = memory.geometries[family.name], memory.numbers[family.name]
    blocks, pieces = offered.blocks(), 0
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
    useful = len(rows) * sum(offered.geometry.row_bytes) * len(places)
    return Read(np.concatenate(places), into, pieces, useful)


def verify(memory: Memory, manifest: Manifest, received: Received) -> None:
    """Hash every page's rows where decode steps read them, and compare with the sender's.

    Raises ``VerificationError`` with every family that differs.
    """
    wrong = []
    for name, family in memory.families.items():
        offered = manifest.families[name]
        ids = memory.ids(family, received.slot, manifest.tokens)
        rows = range(offered.first, offered.end)
        found = memory.digests(family, ids, rows, offered.geometry.rows)
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
