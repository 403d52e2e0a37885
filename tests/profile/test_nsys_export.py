"""Exports of nsys: steps, phases, names and sizes, whatever tables and columns there are."""

import os
import re
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsv4kv.errors import ProfileError
from dsv4kv.profile.nsys import open_database, read_nsys
from dsv4kv.profile.trace import NONE, Trace
from tests.profile.exports import GLOBAL_PID, MARK, PID, START_END, THREAD, Export, two_replays
from tests.profile.traces import told


def read(export: Export, folder: Path, step: str = "step") -> Trace:
    """Of a file whose name has blanks, quotes and signs."""
    path = folder / f"it's 50%?# {len(list(folder.iterdir()))}.sqlite"
    return read_nsys(export.save(path), step)


def test_copies_and_fills_have_bytes_and_the_phase_that_launched_them(tmp_path: Path) -> None:
    trace = read(two_replays(), tmp_path)
    copy = ("memcpy", "memcpy host to device", 0, "inputs")
    assert told(trace)[:2] == [copy, ("memset", "memset", 0, "replay")]
    assert (trace.warnings, trace.notes) == ([], [])
    assert trace.work.bytes.tolist() == [NONE] * 6 + [4096] * 2 + [512] * 2


@pytest.mark.parametrize(
    ("step", "steps", "ranges"),
    [
        ("step", 1, [("step", {"kind": START_END}), ("step", {"kind": MARK})]),
        ("step", 2, [("step", {}), ("step", {})]),
        ("ProfilerStep#*", 2, [("ProfilerStep#1", {}), ("ProfilerStep#22", {}), ("Step#3", {})]),
        ("step[DECODE bs=8]", 1, [("step[DECODE bs=8]", {}), ("stepD", {})]),
        ("(a.c)", 1, [("(a.c)", {}), ("abc", {})]),
    ],
)
def test_which_ranges_are_the_steps(
    step: str, steps: int, ranges: list[tuple[str, dict[str, Any]]], tmp_path: Path
) -> None:
    export = Export()
    for number, (name, options) in enumerate(ranges):
        at = number * 1_000
        export.range(name, at, None if options.get("kind") == MARK else at + 900, **options)
        export.call(number, at + 10, at + 20)
        export.kernel("flush", number, at + 30, at + 40)
    trace = read(export, tmp_path, step)
    assert len(trace.steps_ns) == steps
    assert np.count_nonzero(trace.work.step == NONE) == len(ranges) - steps


def test_work_without_a_call_is_in_no_step(tmp_path: Path) -> None:
    export = two_replays()
    export.add("RUNTIME", start=10, end=20, globalTid=THREAD, correlationId=None)
    export.kernel("of unified memory", None, 90_000, 90_010)
    assert np.count_nonzero(read(export, tmp_path).work.step == NONE) == 1


def test_ranges_that_repeat_are_named_where_none_is_the_step(tmp_path: Path) -> None:
    export = Export()
    for number in range(3):
        at = number * 1_000
        export.range(f"execute_context_0(0)_generation_{number}({number})", at, at + 900)
        export.range("sample", at + 100, at + 200)
    export.range("whole run", 0, 10_000)
    (note,) = read(export, tmp_path).notes
    assert note.endswith(
        "for --step: 'execute_context_*(*)_generation_*(*)' (3 times), 'sample' (3 times)"
    )


def test_steps_in_which_nothing_was_launched_are_warned_of(tmp_path: Path) -> None:
    export = two_replays()
    export.range("elsewhere", 0, 900_000, thread=THREAD + (1 << 24))
    (warning,) = read(export, tmp_path, "elsewhere").warnings
    assert "no work was launched inside of ranges named 'elsewhere'" in warning
    assert read(export, tmp_path).warnings == []


def test_graphs_traced_as_a_whole_are_told_and_warned_of(tmp_path: Path) -> None:
    export = two_replays()
    del export.rows["CUPTI_ACTIVITY_KIND_KERNEL"]
    for step in (0, 1):
        begin = 30_000 + step * 100_000
        place = {"deviceId": 0, "streamId": 7, "correlationId": 100 + step}
        times = {"start": begin, "end": begin + 34_000}
        export.add("GRAPH_TRACE", **times, **place, graphId=1, globalPid=GLOBAL_PID)
    trace = read(export, tmp_path)
    graphs = [one for one in told(trace) if one[0] == "graph"]
    assert graphs == [("graph", "CUDA graph 1", step, "replay") for step in (0, 1)]
    (warning,) = trace.warnings
    assert "--cuda-graph-trace=node" in warning


def test_diagnostics_worth_telling_are_warnings_the_worst_first(tmp_path: Path) -> None:
    export = two_replays()
    for severity, text in [(1, "all is well"), (2, "a bit was lost"), (3, "all was lost")]:
        export.add("DIAGNOSTIC_EVENT", timestamp=0, severity=severity, text=text)
    export.add("DIAGNOSTIC_EVENT", timestamp=9, severity=2, text="a bit was lost")
    warnings = read(export, tmp_path).warnings
    assert warnings == ["nsys: all was lost", "nsys: a bit was lost"]


def test_several_gpus_and_processes_are_kept_apart(tmp_path: Path) -> None:
    """Correlation ids count in every process anew: the second's must not find the first's."""
    export, other = Export(), GLOBAL_PID + (5 << 24)
    for device, pid in enumerate((GLOBAL_PID, other)):
        begin = device * 1_000
        export.range("step", begin, begin + 100, thread=pid | 9)
        export.call(1, begin + 10, begin + 20, thread=pid | 9)
        export.kernel("flush", 1, begin + 30, begin + 40, deviceId=device, globalPid=pid)
        export.add("TARGET_INFO_GPU", id=device, name=f"GPU number {device}")
    trace = read(export, tmp_path)
    assert trace.work.device.tolist() == [0, 1]
    assert trace.work.step.tolist() == [0, 1]
    assert trace.devices == {0: "GPU number 0", 1: "GPU number 1"}


def test_cuda_devices_of_processes_are_the_gpus_of_the_machine(tmp_path: Path) -> None:
    """Workers that see one GPU each call it 0, all of them."""
    export, other = Export(), PID + 5
    for gpu, pid in ((2, PID), (3, other)):
        export.kernel("flush", 1, 30, 40, deviceId=0, globalPid=(1 << 56) | (pid << 24))
        export.add("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=0, pid=pid)
        export.add("TARGET_INFO_GPU", id=gpu, name=f"GPU number {gpu}", cuDevice=9)
    trace = read(export, tmp_path)
    assert trace.work.device.tolist() == [2, 3]
    assert trace.devices == {2: "GPU number 2", 3: "GPU number 3"}


@pytest.mark.parametrize(
    ("start", "end"),
    [(70_000, None), (70_000, 0), (70_000, 20), (None, 9), (-(2**63), 2**63 - 1), (5, 2**62)],
)
def test_what_has_no_time_is_told(start: int | None, end: int | None, tmp_path: Path) -> None:
    export, is_call = two_replays(), start is None or end in (2**63 - 1, 2**62)
    export.add("KERNEL", start=start, end=end, correlationId=100, globalPid=GLOBAL_PID)
    named = {"eventType": START_END, "text": "step", "globalTid": THREAD}
    export.add("NVTX_EVENTS", start=start, end=end, **named)
    export.add("RUNTIME", start=start, end=end, globalTid=THREAD, correlationId=100)
    trace = read(export, tmp_path)
    assert (len(trace.work), len(trace.steps_ns), len(trace.calls.step)) == (10, 2, 4)
    left_out = ["1 piece of work", *["1 call"] * is_call, "1 range"]
    assert trace.notes == [f"omitted: {each} without a valid time" for each in left_out]


@pytest.mark.parametrize("table", sorted(set(two_replays().rows)))
def test_any_table_may_be_missing(table: str, tmp_path: Path) -> None:
    export = two_replays()
    del export.rows[table]
    trace = read(export, tmp_path)
    assert len(trace.work) == sum(
        len(rows) for name, rows in export.rows.items() if re.search("KERNEL|MEMCPY|MEMSET", name)
    )


ENDLESS = "WITH RECURSIVE r(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM r)"


@pytest.mark.parametrize(
    "trick",
    [
        f"VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {ENDLESS} SELECT start FROM r",
        "VIRTUAL TABLE CUPTI_ACTIVITY_KIND_KERNEL USING fts4(start)",
        'TABLE CUPTI_ACTIVITY_KIND_KERNEL (id, start AS (hex(zeroblob(1e9))), "end" AS (1))',
    ],
)
def test_tables_that_compute_what_they_say_are_not_read(trick: str, tmp_path: Path) -> None:
    export = two_replays()
    del export.rows["CUPTI_ACTIVITY_KIND_KERNEL"]
    path = export.save(tmp_path / "step.sqlite")
    with sqlite3.connect(path) as database:
        database.execute(f"CREATE {trick}")
    database.close()
    trace = read_nsys(path)
    assert set(trace.work.kind.tolist()) == {1, 2}  # copies and fills are told as before


def test_a_database_that_leads_in_a_circle_ends_with_a_sentence(tmp_path: Path) -> None:
    path = two_replays().save(tmp_path / "step.sqlite")
    with pytest.raises(ProfileError, match="interrupted"), open_database(path) as database:
        database._connection.execute(f"{ENDLESS} SELECT COUNT(*) FROM r")


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_nothing_beside_a_database_is_opened_or_made(mode: str, tmp_path: Path) -> None:
    path = two_replays().save(tmp_path / "step.sqlite")
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA journal_mode = {mode}")
    os.mkfifo(pipe := tmp_path / f"step.sqlite-{'wal' if mode == 'WAL' else 'journal'}")
    before = set(tmp_path.iterdir())
    with os.fdopen(os.open(pipe, os.O_RDWR), "wb", buffering=0) as held:  # else opening it waits
        held.write(b"x")
        assert len(read_nsys(path).steps_ns) == 2
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize("mode", ["PERSIST", "WAL"])
def test_a_database_that_is_being_written_is_refused(mode: str, tmp_path: Path) -> None:
    path = two_replays().save(tmp_path / "step.sqlite")
    with closing(sqlite3.connect(path)) as writer:
        writer.execute(f"PRAGMA journal_mode = {mode}")
        writer.execute("CREATE TABLE more (id)")
        writer.execute("INSERT INTO more VALUES (1)")
        with pytest.raises(ProfileError, match=r"still being written.* step\.sqlite-(wal|jour)"):
            read_nsys(path)


def test_texts_of_many_megabytes_are_refused_with_a_sentence(tmp_path: Path) -> None:
    export = two_replays()
    export.range("x" * (1 << 25), 0, 10)
    with pytest.raises(ProfileError, match="too big"):
        read(export, tmp_path)


@pytest.mark.parametrize("value", ["'{}'", "x'{}'"], ids=["text", "bytes"])
def test_a_long_default_of_a_column_does_not_multiply(value: str, tmp_path: Path) -> None:
    export = two_replays()
    del export.rows["StringIds"]
    path = export.save(tmp_path / "step.sqlite")
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE IF EXISTS StringIds")
        database.execute("CREATE TABLE StringIds (id INTEGER)")
        database.executemany("INSERT INTO StringIds VALUES (?)", ((i,) for i in range(100)))
        long = value.format("61" * 2**17)
        database.execute(f"ALTER TABLE StringIds ADD COLUMN value TEXT DEFAULT {long}")
    database.close()
    with suppress(ProfileError), open_database(path) as found:
        assert not any(found.strings)


OLD = ("graphNodeId", "globalPid", "demangledName", "copyKind", "eventType")


@pytest.mark.parametrize("missing", OLD)
def test_columns_that_older_versions_lack_are_done_without(missing: str, tmp_path: Path) -> None:
    export = two_replays()
    for names in export.columns.values():
        names[:] = [name for name in names if name != missing]
    trace = read(export, tmp_path)
    assert trace.work.step.tolist() == [0, 0, 0, 1, 1, 1, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "without any table"),
        (b"SQLite format 3\0" + b"\0" * 200, "cannot be read as an export"),
        (None, "cannot be read as an export"),  # text where a number belongs
    ],
)
def test_what_is_no_export_is_told(content: bytes | None, sentence: str, tmp_path: Path) -> None:
    path, export = tmp_path / "broken.sqlite", two_replays()
    export.rows["CUPTI_ACTIVITY_KIND_KERNEL"][0]["start"] = "soon"
    export.save(path) if content is None else path.write_bytes(content)
    with pytest.raises(ProfileError, match=rf"broken\.sqlite.* {sentence}"):
        read_nsys(path)
