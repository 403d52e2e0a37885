"""A recording survives whatever ends it."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dsv4kv.errors import TraceError
from dsv4kv.record import folder as under_test
from dsv4kv.record.convert import describe, read_recording
from dsv4kv.record.folder import STREAMS, Record, Recording, is_recording, read_stream, segments
from dsv4kv.record.server import Follower, Live
from tests.record.frames import written

KILLS = int(os.environ.get("DSV4KV_KILLS", "3"))

_WRITER = """\
import sys
from pathlib import Path
from dsv4kv.record.folder import Recording

with Recording(Path(sys.argv[1]), rotate_bytes=4096) as recording:
    number = recording.place("events", "one") or 0
    while True:
        for number in range(number + 1, number + 50):
            recording.write("events", {"source": "one", "place": number})
        recording.sync()
        print(number, flush=True)
"""


def event(number: int) -> Record:
    return {"source": "one", "place": number}


def numbers(folder: Path) -> list[int]:
    return [record["place"] for record in read_stream(folder, "events")]


def test_a_kill_loses_nothing_that_was_synced_and_leaves_a_gap(tmp_path: Path) -> None:
    folder, pause = tmp_path / "recording", random.Random(0)
    for kill in range(KILLS):
        command = [sys.executable, "-c", _WRITER, str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(pause.random() / 20)
            process.send_signal(signal.SIGKILL)
            synced = [int(line) for line in process.stdout.read().splitlines() if line][-2:-1]
        whole = numbers(folder)
        assert all(number == at for at, number in enumerate(whole, 1))
        assert len(whole) >= max(synced, default=0)
        gaps = [note for note in read_stream(folder, "notes") if note["what"] == "gap"]
        assert len(gaps) == kill
        assert all(gap["why"] == "killed" and gap["from_s"] <= gap["at"] for gap in gaps)
    assert len(segments(folder, "events")) > 1


def test_whatever_is_left_of_the_last_line_the_others_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "recording"
    path = written(folder, "events", *map(event, (1, 2, 3)))
    whole = path.read_bytes()
    begin = whole.rstrip(b"\n").rindex(b"\n") + 1
    for end in range(begin, len(whole), 5):
        path.write_bytes(whole[:end])
        assert numbers(folder) == [1, 2]
        with Recording(folder) as recording:
            assert recording.place("events", "one") == 2
        assert path.read_bytes() == whole[:begin]


@pytest.mark.parametrize(("torn", "kept"), [(b'{"at":' + b"1" * 100, [1]), (None, [])])
def test_a_torn_line_of_any_length_is_cut_also_where_it_is_the_only_one(
    torn: bytes | None, kept: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_test, "_CUT_BYTES", 16)
    folder = tmp_path / "recording"
    path = written(folder, "events", event(1))
    path.write_bytes(path.read_bytes() + torn if torn else b'{"at":1')
    written(folder, "events", event(2))
    assert numbers(folder) == [*kept, 2]


def test_a_recording_goes_on_where_each_source_stopped(tmp_path: Path) -> None:
    folder = tmp_path / "recording"
    with Recording(folder, rotate_bytes=200) as recording:
        recording.write("events", {"source": "early", "place": [7, 1.5]})
        for number in range(30):
            recording.write("events", {"source": "late", "place": number})
            recording.sync()
    assert len(segments(folder, "events")) > 5
    last = segments(folder, "events")[-1]
    last.with_name("events.000999.jsonl").touch()  # it was begun, and killed before its first line
    with Recording(folder, rotate_bytes=200) as recording:
        assert recording.place("events", "early") == [7, 1.5]
        assert recording.place("events", "late") == 29
        assert recording.place("events", "never") is None


def test_a_source_waits_for_no_slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes, goes_on, written, write = (*(threading.Event() for _ in range(3)), os.write)

    def slow(descriptor: int, lines: bytes) -> int:
        writes.set()
        assert goes_on.wait(30)
        return write(descriptor, lines)

    def source() -> None:
        for number in range(1, 1000):
            recording.write("events", event(number))
        written.set()

    folder = tmp_path / "recording"
    with Recording(folder) as recording:
        monkeypatch.setattr(os, "write", slow)
        recording.write("events", event(0))
        syncing = threading.Thread(target=recording.sync)
        syncing.start()
        assert writes.wait(30)
        threading.Thread(target=source).start()
        assert written.wait(30)
        goes_on.set()
        syncing.join()
    assert numbers(folder) == list(range(1000))


def test_rows_that_have_no_room_are_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "_WAITING_BYTES", 100)
    with Recording(tmp_path / "recording") as recording:
        rows = [event(number) for number in range(30)]
        kept = [recording.write("events", row, waits=False) for row in rows]
        assert recording.write("events", event(30))
    few = sum(kept)
    assert kept == [True] * few + [False] * (30 - few)
    assert numbers(tmp_path / "recording") == [*range(few), 30]


@pytest.mark.parametrize("ends", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("at", ["write", "fsync", "next file"])
def test_no_line_follows_one_that_was_written_in_part(
    at: str, ends: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, folder = os.write, tmp_path / "recording"

    def write_half(descriptor: int, lines: bytes) -> int:
        if at == "next file" and b'"where"' not in lines:
            return write(descriptor, lines)
        write(descriptor, lines[: 0 if at == "next file" else len(lines) // 2])
        raise ends

    def fail(descriptor: int) -> None:
        raise ends

    with Recording(folder, rotate_bytes=200) as recording:
        recording.write("events", event(0))
        recording.sync()
        for number in range(1, 10):
            recording.write("events", event(number))
        with monkeypatch.context() as patch:
            patch.setattr(os, *(("fsync", fail) if at == "fsync" else ("write", write_half)))
            with pytest.raises((TraceError, KeyboardInterrupt)):
                recording.sync()
        sizes = [path.stat().st_size for path in segments(folder, "events")]
        assert sizes[1:] == ([0] if at == "next file" else [])
        with suppress(TraceError):
            recording.write("events", event(10))
    failed = isinstance(ends, OSError)
    kept = [*range(11 if not failed else 10 if at == "next file" else 1)]
    assert numbers(folder) == kept
    written(folder, "events", event(11))
    assert numbers(folder) == [*kept, 11]


def test_stops_and_starts_are_notes_with_the_time_between(tmp_path: Path) -> None:
    clock = iter(range(100))
    for _ in range(2):
        with Recording(tmp_path / "recording", clock=lambda: next(clock)):
            pass
    notes = list(read_stream(tmp_path / "recording", "notes"))
    assert [note["what"] for note in notes] == ["start", "stop", "gap", "start", "stop"]
    gap = notes[2]
    assert (gap["from_s"], gap["at"], gap["why"]) == (1, 2, "stopped")


def test_a_recording_is_continued_with_ids_of_its_size_only(tmp_path: Path) -> None:
    for _ in range(2):
        Recording(tmp_path / "a", about={"id_tokens": 64}).__exit__()
    Recording(tmp_path / "a").__exit__()
    with pytest.raises(TraceError, match="continue it with --id-tokens 64, or name a new folder"):
        Recording(tmp_path / "a", about={"id_tokens": 16})


def test_two_processes_do_not_record_into_one_folder(tmp_path: Path) -> None:
    with (
        Recording(tmp_path / "recording"),
        pytest.raises(TraceError, match="by another process: name another folder"),
    ):
        Recording(tmp_path / "recording")


def test_a_folder_of_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(TraceError, match="with other files: name a new one"):
        Recording(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    assert not is_recording(tmp_path)


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    folder = tmp_path / "recording"
    with Recording(folder) as recording:
        recording.write("events", event(1))
        recording.sync()
        recording.write("events", event(2))
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(TraceError, match=r"No space left on device.*is kept"):
            recording.sync()
        failure = recording.failure
        assert failure
        for _ in range(100):
            with pytest.raises(TraceError, match="is kept"):
                recording.sync()
        assert len(list(traceback.walk_tb(failure.__traceback__))) < 20
    assert numbers(folder)[:1] == [1]


ODD_ROWS = {
    "events": [
        {"events": [{"stored": [1], "parent": None, "size": 64, "chain": True, "ids": [2**64]}]},
        {"events": [{"stored": [1], "chain": True}]}, {"events": [{"removed": "x"}]},
        {"events": [3]}, {"what": "gap", "first": "x", "last": 2}, {"what": "gap", "first": 1},
        {"place": "x"}, {"what": "where", "places": 3},
    ],
    "requests": [
        {"cached_tokens": 10**30}, {"arrival_s": 1e300}, {"arrival_s": []},
        {"last_s": float("nan")}, {"input_tokens": 2**31 - 1}, {"ids": [2**64]}, {"ids": [1.5]},
        {"grain": 0}, {"status": {}}, {"session": [1]}, {"source": None, "place": [1, 2]},
    ],
    "metrics": [{"values": {"vllm:prompt_tokens": "x"}}, {"values": {"a": float("inf")}}],
    "notes": [{"from_s": "x"}, {"what": "server", "settings": {"block_size": []}}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("stream", "odd"), [(stream, odd) for stream, rows in ODD_ROWS.items() for odd in rows]
)
def test_a_row_no_source_writes_is_odd(stream: str, odd: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "recording"
    written(folder, "events")
    assert all(each.stat().st_mode & 0o077 == 0 for each in (folder, *folder.iterdir()))
    row = {"at": 1.0, "source": "one"} | odd
    row = {name: value for name, value in row.items() if value is not None}
    (path,) = segments(folder, stream)
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(TraceError, match=r"\.jsonl:1: this line is damaged"):
        list(read_stream(folder, stream))
    assert [each for name, each in Follower(folder).read() if name == stream] == []


def test_a_file_of_no_number_is_none_and_a_link_is_not_written_to(tmp_path: Path) -> None:
    folder, other = tmp_path / "recording", tmp_path / "other"
    written(folder, "events")
    (folder / "events.1e5.jsonl").write_text("{}\n")
    assert list(read_stream(folder, "events")) == []
    other.write_text("whole\nwithout an end")
    (folder / "events.000000.jsonl").unlink()
    (folder / "events.000000.jsonl").symlink_to(other)
    with pytest.raises(TraceError, match="cannot be recorded into"), Recording(folder):
        pass
    assert other.read_text() == "whole\nwithout an end"


@pytest.mark.parametrize("name", ["salt", *(f"{stream}.000000.jsonl" for stream in STREAMS)])
def test_a_pipe_in_a_recording_is_refused_without_waiting(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "recording"
    written(folder, "requests", {"source": "proxy:0", "arrival_s": 1.0, "input_tokens": 9})
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(TraceError), Recording(folder):
        pass
    if name != "salt":
        with pytest.raises(TraceError, match="it is a pipe or a device"):
            list(read_stream(folder, name.partition(".")[0]))


def test_a_prompt_without_ids_gets_no_more_of_them_than_fit(tmp_path: Path) -> None:
    rows = {"input_tokens": 2**24}, {"input_tokens": 1, "ids": [1], "grain": 1}
    written(tmp_path / "recording", "requests", *({"arrival_s": 1.0} | row for row in rows))
    with pytest.raises(TraceError, match=r"16,777,216 tokens has no ids"):
        read_recording(tmp_path / "recording")


def test_a_tail_of_zeros_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = written(tmp_path / "recording", "requests", {"arrival_s": 1.0, "input_tokens": 9})
    os.truncate(path, 2**40)
    assert [name for name, _ in Follower(tmp_path / "recording").read()].count("requests") == 1
    with pytest.raises(TraceError, match=r"\.jsonl:2: this line is damaged"):
        list(read_stream(tmp_path / "recording", "requests"))
    with pytest.raises(TraceError, match="its end is damaged"):
        Recording(tmp_path / "recording")


def test_ids_of_no_size_and_hits_beyond_a_prompt_are_not_known(tmp_path: Path) -> None:
    row = {"arrival_s": 1.0, "input_tokens": 9, "cached_tokens": 10, "ids": [1]}
    written(tmp_path / "recording", "requests", row)
    found = read_recording(tmp_path / "recording")
    assert found.cached_tokens == [None]
    assert "more hits than tokens for 1 prompt" in describe(found)[1]
    seconds = iter([0.0, 2.0, 4.0, 4.0])
    live = Live(lambda: next(seconds))
    live.hear("requests", row)
    assert "1 request (0.5/s), hit rate by the server not known" in live.line()
    assert "1 request (0.0/s)" in live.line()  # since the line before
    assert "1 request (0.2/s)" in live.line(whole=True)
    assert found.requests[0].prefix_hashes == ()
