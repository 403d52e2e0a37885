"""Logs are followed while they grow, and no line is read twice or left out."""

import gzip
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from time import sleep
from unittest.mock import patch

import pytest

from dsv4kv.errors import ConfigError, TraceError
from dsv4kv.record import Veil
from dsv4kv.record.folder import Record, Recording, read_stream
from dsv4kv.record.logs import RequestLog
from tests.record.sockets import wait_until


def line(number: int) -> str:
    """A lookup of LMCache's that is so many tokens long."""
    row = {"request_id": f"r{number}", "timestamp": float(number), "chunk_size": 256}
    return json.dumps(row | {"seq_len": number, "chunk_hashes": []}) + "\n"


def read(folder: Path, log: Path) -> list[int]:
    """Read what is there now; everything that was recorded."""
    with Recording(folder) as recording:
        source = RequestLog(0, log, recording, Veil(recording.salt), follow=False)
        source.run(threading.Event())
    return [record["input_tokens"] for record in read_stream(folder, "requests")]


@contextmanager
def following(folder: Path, log: Path) -> Iterator[list[int]]:
    """Follow a log; gives what was read."""
    stop, heard = threading.Event(), list[int]()

    def hear(stream: str, record: Record) -> None:
        if stream == "requests":
            heard.append(record["input_tokens"])

    with Recording(folder, hear=hear) as recording:
        source = RequestLog(0, log, recording, Veil(recording.salt))
        thread = threading.Thread(target=source.run, args=(stop,))
        thread.start()
        try:
            yield heard
        finally:
            stop.set()
            thread.join()


def test_what_is_not_read_when_a_recording_is_stopped_is_said_and_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsv4kv.record.logs.LAST_S", 0.0)
    log, folder, stop = tmp_path / "log", tmp_path / "recording", threading.Event()
    said = list[str]()
    log.write_text("".join(map(line, range(1, 10))))

    def hear(stream: str, record: Record) -> None:
        if record.get("input_tokens") == 4:
            stop.set()

    for follow in (True, False):
        with Recording(folder, hear=hear) as recording:
            veil = Veil(recording.salt)
            RequestLog(0, log, recording, veil, follow=follow, warn=said.append).run(stop)
    assert said == [f"--requests {log}: not read to its end; the same command reads on."] * 2
    assert read(folder, log) == [*range(1, 10)]


def test_a_log_is_read_on_where_it_was_left(tmp_path: Path) -> None:
    log, folder = tmp_path / "log", tmp_path / "recording"
    log.write_text(line(1) + "of something else\n" + line(2))
    assert read(folder, log) == [1, 2]
    with log.open("a") as file:
        file.write(line(3))
    assert read(folder, log) == [1, 2, 3]


def test_a_line_that_is_longer_than_any_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, most = tmp_path / "log", 1_000
    monkeypatch.setattr("dsv4kv.record.logs._MOST_BYTES", most)
    monkeypatch.setattr("dsv4kv.record.logs._LONGEST_LINE", 5 * most)
    log.write_text(line(1) + "a" * most + line(2) + "b" * (most - 1) + "\n" + line(3))
    assert read(tmp_path / "recording", log) == [1, 3]
    for number, path in enumerate((log, tmp_path / "log.gz")):
        opened = gzip.open if number else open
        with opened(path, "wb") as file:
            file.write(b"\0" * 7 * most)
        with pytest.raises(TraceError, match="a line is longer than 1 GiB, so this is no log"):
            read(tmp_path / f"recording-{number}", path)


def test_what_comes_is_read_whole_lines_only(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(line(1))
    with following(tmp_path / "recording", log) as heard, log.open("a") as file:
        file.write(line(2)[:10])
        file.flush()
        wait_until(lambda: heard == [1])
        file.write(line(2)[10:])
        file.flush()
        wait_until(lambda: heard == [1, 2])


def test_a_log_that_is_rotated_is_read_to_its_end_and_then_the_next(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(line(1))
    with following(tmp_path / "recording", log) as heard:
        wait_until(lambda: heard == [1])
        with log.open("a") as file:
            file.write(line(2))
        log.rename(tmp_path / "log.1")
        log.write_text(line(3))
        wait_until(lambda: heard == [1, 2, 3])


@pytest.mark.parametrize("most_open", [64, 1])
def test_logs_that_are_renamed_in_a_folder_are_not_read_again(
    most_open: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsv4kv.record.logs._MOST_OPEN", most_open)
    logs, stop = tmp_path / "logs", threading.Event()
    logs.mkdir()
    names = [logs / name for name in ("a.log", "a.log.1", "a.log.2", "a.log.3")]
    with Recording(tmp_path / "recording") as recording:
        source = RequestLog(0, logs, recording, Veil(recording.salt))
        for number in range(5):
            for old, new in pairwise(reversed(names)):
                if new.exists():
                    new.replace(old)
            names[0].write_text(line(2 * number))
            source._read(stop)
            with names[0].open("a") as file:
                file.write(line(2 * number + 1))
        stop.set()
        source.run(stop)
    rows = read_stream(tmp_path / "recording", "requests")
    assert sorted(row["input_tokens"] for row in rows) == [*range(10)]


def test_a_log_that_is_emptied_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(line(1) + line(2))
    with following(tmp_path / "recording", log) as heard:
        wait_until(lambda: heard == [1, 2])
        log.write_text(line(3))
        wait_until(lambda: heard == [1, 2, 3])


def test_a_log_that_began_anew_with_its_inode_is_read_from_its_beginning(tmp_path: Path) -> None:
    log, folder = tmp_path / "log", tmp_path / "recording"
    log.write_text(line(1))
    assert read(folder, log) == [1]
    log.write_text(line(2) + line(3))
    assert read(folder, log) == [1, 2, 3]


def test_files_that_come_into_a_folder_are_read(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "log_10").write_text(line(1))
    with following(tmp_path / "recording", logs) as heard:
        wait_until(lambda: heard == [1])
        (logs / "log_11").write_text(line(2))
        wait_until(lambda: heard == [1, 2])
    (logs / "log_11").write_text(line(2) + line(3))
    assert read(tmp_path / "recording", logs) == [1, 2, 3]


def test_a_log_that_is_deleted_from_a_folder_is_read_to_its_end(tmp_path: Path) -> None:
    logs, stop = tmp_path / "logs", threading.Event()
    logs.mkdir()
    log = logs / "log"
    log.write_text(line(1))
    with Recording(tmp_path / "recording") as recording:
        source = RequestLog(0, logs, recording, Veil(recording.salt))
        source._read(stop)
        with log.open("a") as file:
            file.write(line(2))
            log.unlink()
        source._read(stop)
        assert not source._open
    rows = read_stream(tmp_path / "recording", "requests")
    assert [row["input_tokens"] for row in rows] == [1, 2]


def test_of_many_logs_few_are_open_and_deleted_ones_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsv4kv.record.logs._MOST_OPEN", 3)
    logs = tmp_path / "logs"
    logs.mkdir()
    for number in range(20):
        (logs / f"{number:02}.log").write_text(line(number))
    before = len([*Path("/dev/fd").iterdir()])
    with following(tmp_path / "recording", logs) as heard:
        wait_until(lambda: len(heard) == 20)
        for number in (0, 19):
            with (logs / f"{number:02}.log").open("a") as file:
                file.write(line(100 + number))
        wait_until(lambda: len(heard) == 22)
        assert len([*Path("/dev/fd").iterdir()]) - before < 15
        for path in logs.iterdir():
            path.unlink()
        wait_until(lambda: len([*Path("/dev/fd").iterdir()]) - before < 12)
    assert sorted(heard) == [*range(20), 100, 119]


def test_what_comes_before_a_log_is_left_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsv4kv.record.logs._MOST_OPEN", 1)
    logs, heard = tmp_path / "logs", list[int]()
    logs.mkdir()
    for number in (1, 2):
        (logs / f"{number}.log").write_text(line(number))

    def hear(stream: str, record: Record) -> None:
        heard.extend([record["input_tokens"]] if stream == "requests" else [])
        if heard == [1, 2]:
            with (logs / "1.log").open("a") as file:
                file.write(line(3))

    with Recording(tmp_path / "recording", hear=hear) as recording:
        source = RequestLog(0, logs, recording, Veil(recording.salt))
        source._read(threading.Event())
        stop = threading.Event()
        stop.set()
        source.run(stop)
    assert heard == [1, 2, 3]


def test_a_log_that_becomes_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(line(1))
    with following(tmp_path / "recording", log) as heard:
        wait_until(lambda: heard == [1])
        log.unlink()
        os.mkfifo(log)
        sleep(1)
        log.unlink()
        log.write_text(line(2))
        wait_until(lambda: heard == [1, 2])


def test_a_compressed_log_is_read_as_far_as_it_is_written(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl.gz"
    whole = gzip.compress((line(1) * 2000 + line(2)).encode())
    log.write_bytes(whole[: len(whole) // 2])
    before = read(tmp_path / "recording", log)
    log.write_bytes(whole)
    assert before[:1] in ([], [1])
    assert read(tmp_path / "recording", log) == [1] * 2000 + [2]


def test_half_a_gzip_is_not_read_again_before_it_grows(tmp_path: Path) -> None:
    log, stop, numbers = tmp_path / "log.gz", threading.Event(), [*range(200)] * 50
    whole = gzip.compress("".join(map(line, numbers)).encode())
    log.write_bytes(whole[: len(whole) // 2])
    with Recording(tmp_path / "recording") as recording:
        source = RequestLog(0, log, recording, Veil(recording.salt))
        source._read(stop)
        with patch("gzip.GzipFile.readline", side_effect=AssertionError):
            source._read(stop)
        log.write_bytes(whole)
        stop.set()
        source.run(stop)
    rows = read_stream(tmp_path / "recording", "requests")
    assert [row["input_tokens"] for row in rows] == numbers


def test_a_line_without_end_is_read_where_nothing_more_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(line(1) + line(2).rstrip())
    assert read(tmp_path / "recording", tmp_path / "log") == [1, 2]


def test_a_log_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with (
        Recording(tmp_path / "recording") as recording,
        pytest.raises(ConfigError, match="there is no such log"),
    ):
        RequestLog(0, tmp_path / "log", recording, Veil(recording.salt))


def test_a_log_of_which_no_line_is_understood_is_an_error(tmp_path: Path) -> None:
    log, folder = tmp_path / "log", tmp_path / "recording"
    log.write_text("INFO started\n" * 3)
    with pytest.raises(TraceError, match="3 lines read, and none is of a log of requests"):
        read(folder, log)
    log.write_text(line(1))
    assert read(folder, log) == [1]
    with log.open("a") as file:
        file.write("INFO nothing to do\n")
    assert read(folder, log) == [1]
    log.write_text("")
    assert read(tmp_path / "other", log) == []


@pytest.mark.parametrize("content", [b"x", b"plain text\n", b"\x1f\x8b\b\0\0\0\0\0"])
def test_a_gzip_of_which_nothing_can_be_read_is_an_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "log.gz").write_bytes(content)
    with pytest.raises(TraceError, match="0 lines read"):
        read(tmp_path / "recording", tmp_path / "log.gz")


def test_half_a_gzip_is_said_to_be_no_whole_one(tmp_path: Path) -> None:
    log, said = tmp_path / "log.gz", list[str]()
    whole = gzip.compress("".join(map(line, range(1, 10_000))).encode())
    log.write_bytes(whole[: len(whole) // 2])
    with Recording(tmp_path / "recording") as recording:
        source = RequestLog(
            0, log, recording, Veil(recording.salt), follow=False, warn=said.append
        )
        source.run(threading.Event())
    assert said == [f"--requests {log}: log.gz: no whole gzip"]
