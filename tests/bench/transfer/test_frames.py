"""The wire among strangers: garbage, oversized frames, the slow, the dead; a sentence, no hang."""

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from time import monotonic

import numpy as np
import pytest

from dsv4kv.bench.transfer import frames
from dsv4kv.bench.transfer import sender as sender_module
from dsv4kv.bench.transfer.frames import DATA, Wire, admit, check_token
from dsv4kv.bench.transfer.manifest import (
    Manifest,
    MappedReader,
    Memory,
    make_manifest,
    mapped,
    parse_places,
    read_manifest,
)
from dsv4kv.bench.transfer.receiver import Peer, receive
from dsv4kv.bench.transfer.sender import Sender
from dsv4kv.cache.manager import prepare_forward
from dsv4kv.errors import ConfigError, OutOfBlocks, StoreUnavailable
from tests.bench.transfer.test_rows import cache, rows_of, running

TOKEN = "sixteen letters and more"
SOURCE = cache()
SLOT = running(SOURCE, 300)


@pytest.fixture
def sender() -> Iterator[Sender]:
    with Sender(Memory(SOURCE), token=TOKEN, timeout_s=30.0) as made:
        yield made


@pytest.fixture
def short() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "HANDSHAKE_S", 0.3)
        yield patch


def peer(sender: Sender, token: str = TOKEN) -> Peer:
    return Peer(sender.address, token=token, timeout_s=30.0)


def offered(sender: Sender) -> Manifest:
    sender.offer()[0].show(make_manifest(Memory(SOURCE), SLOT, 300))
    with peer(sender) as other:
        return other.manifest(0)


@pytest.mark.parametrize("connections", [1, 3])
def test_a_request_comes_over_tcp_as_it_is(sender: Sender, connections: int) -> None:
    target, manifest = cache(block_tokens=128), offered(sender)
    peers = [peer(sender) for _ in range(connections)]
    received = receive(Memory(target), manifest, peers)
    for each in peers:
        each.wire.close()
    assert rows_of(target, received.slot, 300) == rows_of(SOURCE, SLOT, 300)
    assert all(each.descriptors <= each.pieces for each in received.moved.values())


def test_a_token_is_needed_where_strangers_can_connect() -> None:
    for host in ("0.0.0.0", "192.168.0.7", "example.org", "::"):
        with pytest.raises(ConfigError, match="DSV4KV_TRANSFER_TOKEN"):
            check_token(host, "")
        check_token(host, TOKEN)
    check_token("127.0.0.1", "")
    with pytest.raises(ConfigError, match="16 characters"):
        check_token("127.0.0.1", "short")


def test_who_does_not_know_the_token_reads_nothing(sender: Sender) -> None:
    with pytest.raises(StoreUnavailable, match="token"):
        peer(sender, "another one of 16 letters")
    assert ["token" in problem for problem in waited(sender)] == [True]


def test_a_sender_that_does_not_know_the_token_is_not_believed() -> None:
    """Whoever answers on the port must prove that it is no stranger, either."""

    def impostor(wire: Wire) -> None:
        wire.ask({"challenge": "00"})
        wire.send_message({"answer": "00"})

    with Listening(impostor) as address, pytest.raises(StoreUnavailable, match="the token"):
        Peer(address, token=TOKEN, timeout_s=30.0)


STRANGERS: dict[str, tuple[bytes, str]] = {
    "a browser": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "does not speak"),
    "garbage": (bytes(range(256)) * 8, "does not speak"),
    "an oversized frame": (struct.pack("!4scQ", b"dkv1", b"M", 2**60), "are allowed"),
    "a frame too long for a greeting": (struct.pack("!4scQ", b"dkv1", b"M", 4097), "are allowed"),
    "data before a greeting": (struct.pack("!4scQ", b"dkv1", b"D", 8), "does not speak"),
    "no JSON": (struct.pack("!4scQ", b"dkv1", b"M", 3) + b"{]}", "no JSON"),
    "lists in lists": (struct.pack("!4scQ", b"dkv1", b"M", 4096) + b"[" * 4096, "no JSON"),
    "a list": (struct.pack("!4scQ", b"dkv1", b"M", 2) + b"[]", "no object"),
    "another greeting": (struct.pack("!4scQ", b"dkv1", b"M", 2) + b"{}", "does not greet"),
    "half a character": (
        struct.pack("!4scQ", b"dkv1", b"M", 43) + b'{"answer": "\\ud800", "challenge": "\\ud800"}',
        "no JSON",
    ),
    "silence": (b"", "in time"),
    "half a header": (b"dkv1M", "in time"),
}


@pytest.mark.parametrize("said", STRANGERS)
def test_a_stranger_on_the_port_is_hung_up_on(
    sender: Sender, said: str, short: pytest.MonkeyPatch
) -> None:
    words, sentence = STRANGERS[said]
    with socket.create_connection(sender.address, 60) as stranger:
        stranger.sendall(words)
        while stranger_reads(stranger):
            pass
    (problem,) = waited(sender)
    assert sentence in problem
    short.undo()
    offered(sender)  # and others are served


def test_strangers_that_say_nothing_take_no_place_from_receivers(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "HANDSHAKE_S", 60.0)
    with ExitStack() as silent:
        for _ in range(200):
            silent.enter_context(socket.create_connection(sender.address, 5))
        offered(sender)
        assert len(sender._strangers) <= sender_module._MOST_STRANGERS


def test_receivers_have_places_of_their_own_and_not_more(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_module, "_MOST_CONNECTIONS", 2)
    with peer(sender) as one, peer(sender) as other:
        with pytest.raises(StoreUnavailable, match="2 receivers are connected"), peer(sender) as a:
            a.manifest(0)
        for each in (one, other):
            each.read_raw(memoryview(bytearray(9)))


def stranger_reads(stranger: socket.socket) -> bytes:
    try:
        return stranger.recv(4096)
    except ConnectionResetError:
        return b""


@pytest.mark.usefixtures("short")
def test_one_byte_at_a_time_does_not_hold_a_connection(sender: Sender) -> None:
    """Slow-loris: every byte comes in time, the frame does not."""
    begun = monotonic()
    with socket.create_connection(sender.address, 60) as stranger:
        header = struct.pack("!4scQ", b"dkv1", b"M", 4000)
        for byte in header + bytes(4000):
            try:
                stranger.sendall(bytes([byte]))
            except OSError:
                break
            threading.Event().wait(0.05)
    assert monotonic() - begun < 20
    (problem,) = waited(sender)
    assert "in time" in problem or "slow" in problem


@pytest.mark.parametrize(
    ("places", "sentence"),
    [
        ([(10**6, 0, 1)], "no 1 B at 0 of region 1,000,000"),
        ([(-1, 0, 1)], "region -1"),
        ([(0, -1, 1)], "at -1"),
        ([(0, 0, 2**62)], "of region 0"),
        ([(0, 2**63 - 1, 2**63 - 1)], "of region 0"),
        ([(0, 0, -1)], "no -1 B"),
    ],
)
def test_nothing_is_read_but_the_caches_pools(
    sender: Sender, places: list[tuple[int, int, int]], sentence: str
) -> None:
    into = [memoryview(bytearray(1))]
    with peer(sender) as other, pytest.raises(StoreUnavailable):
        other.read(np.array(places), into)
    assert sentence in waited(sender)[0]
    with pytest.raises(StoreUnavailable, match=sentence):
        MappedReader(Memory(SOURCE).regions).read(np.array(places), into)


def test_regions_beyond_their_segment_are_refused() -> None:
    with pytest.raises(StoreUnavailable, match="its manifest is wrong"):
        mapped(memoryview(bytearray(100)), [96, 200])


def test_a_sender_that_dies_in_the_middle_leaves_nothing_behind() -> None:
    """Half of the bytes have come: the slot and its blocks are given back, with a sentence."""
    manifest, target = make_manifest(Memory(SOURCE), SLOT, 300), cache()

    def dies(wire: Wire) -> None:
        admit(wire, "")
        size = int(parse_places(wire.receive(frames.READ))[:, 2].sum())
        header = struct.pack("!4scQ", b"dkv1", DATA, size)
        wire._socket.sendall(header + bytes(size // 2))

    with (
        Listening(dies) as address,
        Peer(address, timeout_s=30.0) as other,
        pytest.raises(StoreUnavailable, match=r"in the middle|broke"),
    ):
        receive(Memory(target), manifest, [other])
    assert (target.num_free_slots, target.num_held_blocks) == (3, 0)


def test_a_sender_that_stops_in_the_middle_does_not_hang_the_receiver() -> None:
    manifest, target = make_manifest(Memory(SOURCE), SLOT, 300), cache()
    over = threading.Event()

    def stops(wire: Wire) -> None:
        admit(wire, "")
        wire.receive(frames.READ)
        over.wait(60)

    with Listening(stops) as address, Peer(address, timeout_s=1.0) as other:
        with pytest.raises(StoreUnavailable, match="in time"):
            receive(Memory(target), manifest, [other])
        assert not over.is_set()
        over.set()
    assert (target.num_free_slots, target.num_held_blocks) == (3, 0)


def test_where_no_blocks_are_free_nothing_is_held() -> None:
    target = cache(num_blocks=2)
    manifest = make_manifest(Memory(SOURCE), SLOT, 300)
    prepare_forward(target, [target.admit_request()], [0], [256])
    with pytest.raises(OutOfBlocks):
        receive(Memory(target), manifest, [MappedReader(Memory(SOURCE).regions)])
    assert (target.num_free_slots, target.num_held_blocks) == (2, 1)


def test_a_request_without_the_prefix_that_it_follows_is_refused() -> None:
    manifest = make_manifest(Memory(SOURCE), SLOT, 300, prefix=256)
    with pytest.raises(StoreUnavailable, match="do not follow on each other: tokens 256 to 300"):
        receive(Memory(cache()), manifest, [MappedReader(Memory(SOURCE).regions)])


WRONG: dict[str, Callable[[dict[str, object]], object]] = {
    "unknown keys": lambda m: m.update(more=1),
    "a text for a number": lambda m: m.update(tokens="300"),
    "negative rows": lambda m: m["families"]["csa"].update(first=-1),  # type: ignore[index]
    "pages beyond all": lambda m: m["families"]["csa"].update(ids=[[2**40]]),  # type: ignore[index]
    "rows beyond their page": lambda m: m["families"]["csa"]["geometry"].update(page_bytes=9),  # type: ignore[index]
}


@pytest.mark.parametrize("what", WRONG)
def test_a_manifest_that_is_none_is_refused(what: str) -> None:
    document = json.loads(make_manifest(Memory(SOURCE), SLOT, 300).model_dump_json())
    WRONG[what](document)
    with pytest.raises(StoreUnavailable, match="the manifest is none"):
        read_manifest(json.dumps(document).encode())


def test_pages_that_a_manifest_leaves_out_are_missed() -> None:
    document = json.loads(make_manifest(Memory(SOURCE), SLOT, 300).model_dump_json())
    document["families"]["csa"]["ids"] = [[0]]
    manifest = read_manifest(json.dumps(document).encode())
    with pytest.raises(StoreUnavailable, match="its manifest is wrong"):
        receive(Memory(cache()), manifest, [MappedReader(Memory(SOURCE).regions)])


class Listening:
    """A port where ``speak`` serves one connection."""

    def __init__(self, speak: Callable[[Wire], None]) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, args=(speak,))

    def __enter__(self) -> tuple[str, int]:
        self._thread.start()
        address: tuple[str, int] = self._server.getsockname()
        return address

    def __exit__(self, *error: object) -> None:
        self._thread.join()
        self._server.close()

    def _serve(self, speak: Callable[[Wire], None]) -> None:
        connection, _ = self._server.accept()
        wire = Wire(connection)
        try:
            speak(wire)
        except StoreUnavailable:
            pass
        finally:
            wire.close()


def waited(sender: Sender) -> list[str]:
    """What the sender says of its connections, as soon as it says something."""
    end = monotonic() + 60
    while not sender.problems and monotonic() < end:
        threading.Event().wait(0.01)
    return list(sender.problems)
