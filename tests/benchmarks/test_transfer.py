"""Reading a request's scattered pages, against a copy and a bare socket of the same run."""

import socket
import statistics
import threading
from collections.abc import Callable, Iterator
from time import perf_counter_ns

import numpy as np
import pytest

from dsv4kv.cache.manager import KVCacheManager, prepare_forward
from dsv4kv.model.plan import plan_cache
from dsv4kv.model.presets import load_model
from dsv4kv.moving.memory import Memory, make_manifest, share
from dsv4kv.moving.receiver import Peer, plan_request, receive
from dsv4kv.moving.sender import Sender
from dsv4kv.moving.transports import MappedReader, Reader
from tests.benchmarks.medians import Measure, Remark

PAGES, PAGE_BYTES = 1024, 37_440
TOKENS = PAGES * 256
GROUP = f"read {PAGES:,} scattered pages of {PAGE_BYTES:,} B"


class Scene:
    """A request of CSA pages in no order, in a cache that is shared, and one that takes it."""

    def __init__(self) -> None:
        plan = plan_cache(
            load_model("v4-flash"),
            max_context_tokens=TOKENS,
            num_slots=2,
            num_blocks=2 * PAGES,
            block_tokens=256,
            layers=(2,),
        )
        source, target = KVCacheManager(plan), KVCacheManager(plan)
        slots = [source.admit_request() for _ in range(2)]
        for n in range(256, TOKENS + 1, 256):  # two requests in turns: no page has a neighbour
            for slot in slots:
                prepare_forward(source, [slot], [n - 256], [n])
        self.segment = share(source)
        self.memory, self.target = Memory(source, self.segment), Memory(target)
        for region in self.memory.regions:
            np.frombuffer(region, dtype=np.uint8)[:] = 7
        self.manifest = make_manifest(self.memory, slots[0], TOKENS)
        readers = [MappedReader(self.memory.regions)]
        self.received = receive(self.target, self.manifest, readers)
        read = plan_request(self.target, self.manifest, self.received, "csa", merge=True)
        self.places, self.into = read.places, read.into
        assert len(read.places) == PAGES

    def read(self, reader: Reader) -> None:
        reader.read(self.places, self.into)


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.segment.forget()


class Bare:
    """A call that is timed before every round of another: both meet the same moments."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._times_ns: list[int] = []

    def __call__(self) -> None:
        start = perf_counter_ns()
        self._call()
        self._times_ns.append(perf_counter_ns() - start)

    def tell(self, remark: Remark, what: str, ours_ns: float | None) -> None:
        if ours_ns:
            share = 100 * statistics.median(self._times_ns) / ours_ns
            rate = PAGES * PAGE_BYTES / ours_ns
            remark(f"{GROUP}: {rate:.2f} GB/s, {share:.0f} % of {what}")


def test_shared_memory(measure: Measure, remark: Remark, scene: Scene) -> None:
    """At least half of what one copy of as many bytes does."""
    offsets, size = scene.memory.offsets, PAGES * PAGE_BYTES
    regions = [
        scene.segment.bytes[start : start + len(region)]
        for start, region in zip(offsets, scene.memory.regions, strict=True)
    ]
    left, right = np.ones(size, dtype=np.uint8), np.zeros(size, dtype=np.uint8)
    bare, reader = Bare(lambda: np.copyto(right, left)), MappedReader(regions)
    ours = measure(GROUP, "shared memory", lambda: scene.read(reader), rounds=20, setup=bare)
    bare.tell(remark, "memcpy", ours)


def test_tcp(measure: Measure, remark: Remark, scene: Scene) -> None:
    """At least 70 % of two sockets that do nothing else."""
    size = PAGES * PAGE_BYTES
    data, room = b"\1" * size, bytearray(size)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0] as other,
        Sender(scene.memory) as sender,
        Peer(sender.address) as peer,
    ):
        thread = threading.Thread(target=serve, args=(other, data))
        thread.start()
        bare = Bare(lambda: fill(client, room))
        ours = measure(GROUP, "tcp", lambda: scene.read(peer.reader), rounds=20, setup=bare)
        client.shutdown(socket.SHUT_RDWR)
        thread.join()
    bare.tell(remark, "a bare socket", ours)


def serve(connection: socket.socket, data: bytes) -> None:
    while connection.recv(1):
        connection.sendall(data)


def fill(connection: socket.socket, room: bytearray) -> None:
    connection.sendall(b"?")
    view = memoryview(room)
    while view:
        view = view[connection.recv_into(view) :]
