"""Logs are followed while they grow, and no line is read twice or left out."""

import gzip
import json
import os
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import pytest

from dsv4kv.errors import TraceError
from dsv4kv.record import Veil
from dsv4kv.record.folder import Record, Recording, read_stream
from dsv4kv.record.logs import RequestLog


def line(number: int) -> str:
    """A lookup of LMCache's that is so many tokens long."""
    row = {"request_id": f"r{number}", "timestamp": float(number), "chunk_size": 256}
    return json.dumps(row | {"seq_len": number, "chunk_hashes": []}) + "\n"


def lines(*numbers: int) -> str:
    return "".join(map(line, numbers))


def add(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def read(folder: Path, log: Path, said: list[str] | None = None) -> list[int]:
    """Read what is there now; everything that was recorded."""
    with Recording(folder) as recording:
        veil, heard = Veil(recording.salt), [] if said is None else said
        source = RequestLog(0, log, recording, veil, follow=False, warn=heard.append)
        source.run(threading.Event())
    return [record["input_tokens"] for record in read_stream(folder, "requests")]


Steps = Sequence[Callable[[], object]]


def follow(folder: Path, log: Path, steps: Steps) -> list[int]:
    """Read what each step adds, as a log that is followed; everything that was recorded."""
    stop = threading.Event()
    with Recording(folder) as recording:
        source = RequestLog(0, log, recording, Veil(recording.salt))
        for step in steps:
            source._read(stop)
            step()
        stop.set()
        source.run(stop)
    return [record["input_tokens"] for record in read_stream(folder, "requests")]


def test_what_is_not_read_is_read_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsv4kv.record.logs.LAST_S", 0.0)
    log, folder, stop = tmp_path / "log", tmp_path / "recording", threading.Event()
    said = list[str]()
    log.write_text(lines(*range(1, 10)))

    def hear(stream: str, record: Record) -> None:
        if record.get("input_tokens") == 4:
            stop.set()

    for follows in (True, False):
        with Recording(folder, hear=hear) as recording:
            veil = Veil(recording.salt)
            RequestLog(0, log, recording, veil, follow=follows, warn=said.append).run(stop)
    assert said == [f"--requests {log}: not read to its end; the same command reads on."] * 2
    assert read(folder, log) == [*range(1, 10)]


@pytest.mark.parametrize(
    ("first", "then", "whole"),
    [
        (lines(1, 2) + "of something else\n", lines(1, 2) + "of something else\n" + line(3), 3),
        (lines(1), lines(2, 3), 3),  # a log that began anew with its inode
        (lines(1), lines(1, 2).rstrip(), 2),  # without an end, where nothing is waited for
    ],
)
def test_a_log_is_read_on_from_there(first: str, then: str, whole: int, tmp_path: Path) -> None:
    log, folder = tmp_path / "log", tmp_path / "recording"
    log.write_text(first)
    before = read(folder, log)
    log.write_text(then)
    assert read(folder, log) == [*range(1, whole + 1)]
    assert before == [*range(1, len(before) + 1)]


def test_a_line_longer_than_any_is_odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def rotate(log: Path) -> None:
    add(log, line(2))
    log.rename(log.with_suffix(".1"))
    log.write_text(line(3))


def become_a_pipe(log: Path) -> None:
    log.unlink()
    os.mkfifo(log)


def become_a_file(log: Path) -> None:
    log.unlink()
    log.write_text(line(2))


GROWING: dict[str, list[Callable[[Path], object]]] = {
    "lines come whole": [lambda log: add(log, line(2)[:10]), lambda log: add(log, line(2)[10:])],
    "it is rotated, and read to its end first": [rotate],
    "it is emptied": [lambda log: add(log, line(2)), lambda log: log.write_text(line(3))],
    "it is emptied, and is longer again at once": [
        lambda log: add(log, line(2)),
        lambda log: log.write_text(lines(3, 4, 5, 6)),
    ],
    "it becomes a pipe, which is not waited for": [become_a_pipe, become_a_file],
}


@pytest.mark.parametrize("name", GROWING)
def test_every_line_is_read_once_while_a_log_grows(name: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(line(1))
    steps: Steps = [lambda step=step: step(log) for step in GROWING[name]]  # type: ignore[misc]
    found = follow(tmp_path / "recording", log, steps)
    whole = 6 if "longer again" in name else 3 if "rotated" in name or "emptied" in name else 2
    assert found == [*range(1, whole + 1)]


def test_a_log_whose_inode_had_another_name_before_is_read_on_by_its_own(tmp_path: Path) -> None:
    log, folder = tmp_path / "logs" / "log", tmp_path / "recording"
    old = log.with_suffix(".1")
    log.parent.mkdir()
    log.write_text(line(1))
    read(folder, log.parent)
    log.rename(old)
    add(old, line(2))
    read(folder, log.parent)
    old.write_text(line(3))  # in place, as a file system gives an inode again
    old.rename(log)
    for _ in range(2):
        assert sorted(read(folder, log.parent)) == [1, 2, 3]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs"


@pytest.mark.parametrize("most_open", [64, 1])
def test_logs_that_are_renamed_in_a_folder_are_not_read_again(
    most_open: int, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsv4kv.record.logs._MOST_OPEN", most_open)
    names = [logs / name for name in ("a.log", "a.log.1", "a.log.2", "a.log.3")]

    def rotate_all(number: int) -> None:
        for old, new in pairwise(reversed(names)):
            if new.exists():
                new.replace(old)
        names[0].write_text(line(2 * number))

    steps = list[Callable[[], object]]()
    for number in range(5):
        steps.append(lambda n=number: rotate_all(n))  # type: ignore[misc]
        steps.append(lambda n=number: add(names[0], line(2 * n + 1)))  # type: ignore[misc]
    assert sorted(follow(tmp_path / "recording", logs, steps)) == [*range(10)]


def test_few_logs_stay_open(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsv4kv.record.logs._MOST_OPEN", 3)
    for number in range(20):
        (logs / f"{number:02}.log").write_text(line(number))

    def open_now() -> int:
        return len([*Path("/dev/fd").iterdir()])

    def grow() -> None:
        for number in (0, 19):
            add(logs / f"{number:02}.log", line(100 + number))

    def delete() -> None:
        assert open_now() - before < 15
        for path in logs.iterdir():
            path.unlink()

    def look() -> None:
        assert open_now() - before < 12

    before = open_now()
    found = follow(tmp_path / "recording", logs, [grow, delete, look])
    assert sorted(found) == [*range(20), 100, 119]


def test_a_compressed_log_is_read_as_far_as_it_is_written(tmp_path: Path) -> None:
    log, numbers, said = tmp_path / "log.gz", [*range(200)] * 50, list[str]()
    whole = gzip.compress(lines(*numbers).encode())
    log.write_bytes(whole[: len(whole) // 2])
    before = read(tmp_path / "other", log, said)
    assert before == numbers[: len(before)]
    assert [each.partition(" (")[0] for each in said] == [
        f"--requests {log}: log.gz: no whole gzip"
    ]

    def grow() -> None:
        reading.stop()
        log.write_bytes(whole)

    reading = patch("gzip.GzipFile.read", side_effect=AssertionError)
    assert follow(tmp_path / "recording", log, [reading.start, grow]) == numbers
    assert read(tmp_path / "other", log) == numbers


def test_a_log_of_which_no_line_is_understood_is_an_error(tmp_path: Path) -> None:
    log, folder = tmp_path / "log", tmp_path / "recording"
    log.write_text("INFO started\n" * 3)
    with pytest.raises(TraceError, match="3 lines read, and none is of a log of requests"):
        read(folder, log)
    log.write_text(line(1))
    assert read(folder, log) == [1]
    add(log, "INFO nothing to do\n")
    assert read(folder, log) == [1]
    log.write_text("")
    assert read(tmp_path / "other", log) == []
    (tmp_path / "log.gz").write_bytes(b"\x1f\x8b\b\0\0\0\0\0")
    with pytest.raises(TraceError, match="0 lines read"):
        read(tmp_path / "other", tmp_path / "log.gz")
