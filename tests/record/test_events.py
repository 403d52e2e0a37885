"""Events come from sockets and files alike, and what the network lost is sent again."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import pytest

from dsv4kv.record import Veil, events
from dsv4kv.record.events import Publisher, Socket, ranks_of
from dsv4kv.record.folder import Record, Recording, read_stream
from tests.record import frames as fr
from tests.record import sockets
from tests.record.sockets import PATIENCE_S, publishing, wait_until

TOKENS = list(range(256))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a publisher that answers may take longer than is waited for elsewhere."""
    monkeypatch.setattr(events, "_ANSWER_S", PATIENCE_S)


@contextmanager
def listening(
    folder: Path, server: sockets.Publisher, *, replay: bool = True
) -> Iterator[list[Record]]:
    """Record a publisher that has this listener when the block begins; gives what was heard."""
    stop, heard = threading.Event(), list[Record]()

    def hear(stream: str, record: Record) -> None:
        if stream == "events":
            heard.append(plain(record))

    again = f"tcp://127.0.0.1:{server.replay_port}" if replay else None
    with Recording(folder, hear=hear) as recording:
        publisher = Publisher(0, recording, Veil(recording.salt))
        socket = Socket(f"tcp://127.0.0.1:{server.port}", again, publisher)
        thread = threading.Thread(target=socket.run, args=(stop,))
        thread.start()
        try:
            server.wait_for_a_listener()
            yield heard
        finally:
            stop.set()
            thread.join()


def plain(record: Record) -> Record:
    """A record without the times of this machine."""
    return {name: value for name, value in record.items() if name not in ("at", "source")}


def with_salt(folder: Path) -> Path:
    """A folder whose recording has the secret that all of this file have."""
    folder.mkdir()
    (folder / "salt").write_bytes(b"0" * 32)
    return folder


def numbers(heard: list[Record]) -> list[object]:
    return [record.get("what") or record["place"][0] for record in heard]


@fr.needs_samples
@pytest.mark.parametrize("name", fr.SAMPLES)
@pytest.mark.parametrize("lost", [(), (1, 2)])
def test_every_message_comes_also_lost(name: str, lost: tuple[int, ...], tmp_path: Path) -> None:
    messages = fr.sample(name)
    folder = with_salt(tmp_path / "live")
    with publishing() as server, listening(folder, server) as heard:
        for number, message in enumerate(messages):
            server.send(message, lose=number in lost)
        wait_until(lambda: len(heard) == len(messages))
    filed = [plain(record) for record in fr.recorded(with_salt(tmp_path / "filed"), messages)]
    assert heard == filed
    assert [plain(record) for record in read_stream(folder, "events")] == filed


def test_a_socket_that_sends_the_same_without_end_keeps_nothing_new_away(tmp_path: Path) -> None:
    with publishing() as server:
        server.endless = True
        server.send(fr.frames(0, fr.CLEARED), lose=True)
        with listening(tmp_path / "recording", server) as heard:
            wait_until(lambda: numbers(heard) == [0])
            server.send(fr.frames(1, fr.CLEARED))
            wait_until(lambda: numbers(heard) == [0, 1])
            begun_s = monotonic()
        assert monotonic() - begun_s < 5  # it ends with the recording


def test_without_a_replay_socket_what_was_lost_is_a_gap(tmp_path: Path) -> None:
    with publishing() as server, listening(tmp_path / "recording", server, replay=False) as heard:
        for number in range(3):
            server.send(fr.frames(number, fr.CLEARED), lose=number == 1)
        wait_until(lambda: numbers(heard) == [0])
    assert heard[1:] == [
        {"what": "gap", "first": 1, "last": 1},
        {"place": [2, 2.0], "ts": 2.0, "rank": 0, "events": [{"cleared": True}]},
    ]


def test_equal_blocks_have_equal_numbers_in_one_recording_and_no_other(tmp_path: Path) -> None:
    first = fr.stored([1, 2], None, TOKENS, 128)
    again = fr.stored([8, 9], 7, [*TOKENS[128:], *TOKENS[:128]], 128)
    messages = [fr.frames(0, first), fr.frames(1, again)]
    one, other = (fr.recorded(tmp_path / name, messages) for name in ("one", "other"))
    whole, swapped = (record["events"][0]["ids"] for record in one)
    assert len(set(whole)) == 4
    assert swapped == whole[2:] + whole[:2]
    assert set(whole).isdisjoint(other[0]["events"][0]["ids"])
    assert set(one[0]["events"][0]["stored"]).isdisjoint(other[0]["events"][0]["stored"])


@pytest.mark.parametrize(
    "more", [{"lora_name": "a"}, {"cache_salt": "a"}, {"extra_keys": [["a"], None]}]
)
def test_what_tells_equal_tokens_apart_does_so_here(more: Record, tmp_path: Path) -> None:
    events = [fr.stored([1, 2], None, TOKENS, 128, **fields) for fields in ({}, more)]
    (record,) = fr.recorded(tmp_path / "recording", [fr.frames(0, *events)])
    plain_ids, others = (event["ids"] for event in record["events"])
    assert plain_ids[:2] != others[:2]


def test_every_rank_publishes_a_port_above_the_last() -> None:
    assert ranks_of("tcp://host:5557", 3) == [f"tcp://host:{port}" for port in (5557, 5558, 5559)]
    assert ranks_of("tcp://[::1]:5557", 1) == ["tcp://[::1]:5557"]


def test_of_blocks_so_small_that_counting_would_tell_no_content_is_written(tmp_path: Path) -> None:
    (record,) = fr.recorded(
        tmp_path / "recording", [fr.frames(0, fr.stored([1, 2], None, [5, 6], 1))]
    )
    assert "ids" not in record["events"][0]
