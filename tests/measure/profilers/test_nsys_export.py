"""Exports of nsys: steps, phases, names and sizes, whatever tables and columns there are."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from dsv4kv.errors import ProfileError
from dsv4kv.measure.profilers.nsys_export import read_nsys
from dsv4kv.measure.profilers.trace import KINDS, NONE, LaunchShape, Trace
from tests.measure.profilers.exports import (
    GLOBAL_PID,
    START_END,
    Export,
    two_replays,
)

SHAPE = LaunchShape(grid=(64, 2, 1), block=(256, 1, 1), registers=40, shared_bytes=1040)


def read(export: Export, folder: Path, step: str = "step") -> Trace:
    return read_nsys(export.save(folder / "step.sqlite"), step)


def told(trace: Trace) -> list[tuple[str, str, int, str | None]]:
    """Kind, name, step and phase of every piece of work, in the order of its begin."""
    work = trace.work
    return [
        (
            KINDS[work.kind[i]],
            trace.names[work.name[i]],
            int(work.step[i]),
            None if work.phase[i] == NONE else trace.names[work.phase[i]],
        )
        for i in np.argsort(work.start_ns)
    ]


def test_two_replays_are_two_steps_with_their_kernels_copies_and_fills(tmp_path: Path) -> None:
    trace = read(two_replays(), tmp_path)
    a_step = [
        ("memcpy", "memcpy host to device", "inputs"),
        ("memset", "memset", "replay"),
        ("kernel", "void dsv::window_insert<int>(int*)", "replay"),
        ("kernel", "void dsv::flush<int>(int*)", "replay"),
        ("kernel", "void dsv::gather_topk<int>(int*)", "replay"),
    ]
    steps = [(kind, name, step, phase) for step in (0, 1) for kind, name, phase in a_step]
    assert told(trace) == steps
    assert trace.steps_ns.tolist() == [[0, 20_000], [100_000, 120_000]]
    assert (trace.warnings, trace.notes) == ([], [])


def test_launch_shapes_nodes_and_sizes_are_kept(tmp_path: Path) -> None:
    trace = read(two_replays(), tmp_path)
    kernels = trace.work.kind == 0
    assert {trace.shapes[i] for i in trace.work.shape[kernels]} == {SHAPE}
    assert trace.work.node[kernels].tolist() == [900, 901, 902] * 2
    assert trace.work.bytes.tolist() == [NONE] * 6 + [4096] * 2 + [512] * 2


def test_calls_that_launch_are_told_with_their_step(tmp_path: Path) -> None:
    calls = read(two_replays(), tmp_path).calls
    found = zip(calls.start_ns.tolist(), calls.end_ns.tolist(), calls.step.tolist(), strict=True)
    assert sorted(found) == [
        (1_500, 2_500, 0),
        (5_000, 8_000, 0),
        (101_500, 102_500, 1),
        (105_000, 108_000, 1),
    ]


@pytest.mark.parametrize("registered", [False, True])
def test_plain_and_registered_names_of_ranges_are_the_same(
    registered: bool, tmp_path: Path
) -> None:
    export = Export()
    export.range("step", 0, 100, registered=registered)
    export.call(1, 10, 20)
    export.kernel("flush", 1, 30, 40)
    assert read(export, tmp_path).work.step.tolist() == [0]


def test_start_end_ranges_are_ranges_and_marks_are_not(tmp_path: Path) -> None:
    export = Export()
    export.range("step", 0, 100, kind=START_END)
    export.range("step", 50, None, kind=34)
    assert len(read(export, tmp_path).steps_ns) == 1


def test_a_range_that_the_capture_cut_off_lasts_to_its_end(tmp_path: Path) -> None:
    export = Export()
    export.range("step", 0, None)
    export.call(1, 10, 20)
    export.kernel("flush", 1, 30, 40)
    assert read(export, tmp_path).work.step.tolist() == [0]


def test_steps_of_other_domains_do_not_count_beside_our_own(tmp_path: Path) -> None:
    export = two_replays()
    export.range("step", 0, 400_000, domain=0)
    assert len(read(export, tmp_path).steps_ns) == 2


def test_any_domain_will_do_where_none_is_ours(tmp_path: Path) -> None:
    export = Export()
    export.range("step", 0, 100, domain=0)
    export.domain("other", number=5)
    export.range("step", 200, 300, domain=5)
    assert len(read(export, tmp_path).steps_ns) == 2


def test_a_range_of_another_name_can_be_the_step(tmp_path: Path) -> None:
    export = Export()
    export.range("execute_model", 0, 100, domain=0)
    export.call(1, 10, 20)
    export.kernel("flush", 1, 30, 40)
    assert read(export, tmp_path, "execute_model").work.step.tolist() == [0]


def test_kernels_outside_any_range_have_no_step(tmp_path: Path) -> None:
    export = two_replays()
    export.call(77, 500_000, 501_000)
    export.kernel("flush", 77, 502_000, 503_000)
    export.kernel("never_launched", 78, 504_000, 505_000)
    assert told(read(export, tmp_path))[-2:] == [
        ("kernel", "void dsv::flush<int>(int*)", NONE, None),
        ("kernel", "void dsv::never_launched<int>(int*)", NONE, None),
    ]


def test_without_ranges_every_launch_of_a_graph_is_a_step(tmp_path: Path) -> None:
    export = two_replays()
    del export.rows["NVTX_EVENTS"]
    trace = read(export, tmp_path)
    kernels = trace.work.kind == 0
    assert trace.work.step[kernels].tolist() == [0, 0, 0, 1, 1, 1]
    assert trace.steps_ns.tolist() == [[5_000, 8_000], [105_000, 108_000]]
    assert trace.notes == ["no range is named 'step': every launch of a graph is one"]


def test_without_ranges_and_graphs_there_are_no_steps(tmp_path: Path) -> None:
    export = two_replays(nodes=False)
    del export.rows["NVTX_EVENTS"]
    trace = read(export, tmp_path)
    assert len(trace.steps_ns) == 0
    assert set(trace.work.step.tolist()) == {NONE}
    assert trace.notes == ["no range is named 'step': there are no steps"]


def test_graphs_traced_as_a_whole_are_told_and_warned_of(tmp_path: Path) -> None:
    export = two_replays()
    del export.rows["CUPTI_ACTIVITY_KIND_KERNEL"]
    for step in (0, 1):
        begin = 30_000 + step * 100_000
        place = {"deviceId": 0, "streamId": 7, "correlationId": 100 + step}
        export.columns["CUPTI_ACTIVITY_KIND_GRAPH_TRACE"].append("globalPid")
        times = {"start": begin, "end": begin + 34_000}
        export.add("GRAPH_TRACE", **times, **place, graphId=1, globalPid=GLOBAL_PID)
    export.columns["CUPTI_ACTIVITY_KIND_GRAPH_TRACE"] = list(
        dict.fromkeys(export.columns["CUPTI_ACTIVITY_KIND_GRAPH_TRACE"])
    )
    trace = read(export, tmp_path)
    graphs = [one for one in told(trace) if one[0] == "graph"]
    assert graphs == [
        ("graph", "CUDA graph 1", 0, "replay"),
        ("graph", "CUDA graph 1", 1, "replay"),
    ]
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


@pytest.mark.parametrize("table", sorted(set(two_replays().rows)))
def test_any_table_may_be_missing(table: str, tmp_path: Path) -> None:
    export = two_replays()
    del export.rows[table]
    trace = read(export, tmp_path)
    left = sum(
        len(rows)
        for name, rows in export.rows.items()
        if name.endswith(("KERNEL", "MEMCPY", "MEMSET"))
    )
    assert len(trace.work) == left


def test_an_empty_database_has_nothing_and_says_so(tmp_path: Path) -> None:
    trace = read(Export(), tmp_path)
    assert len(trace.work) == 0
    assert "no GPU kernels" in trace.warnings[0]


OLD = ("graphNodeId", "globalPid", "demangledName", "dynamicSharedMemory", "domainId")


@pytest.mark.parametrize("missing", [*OLD, "registersPerThread", "streamId", "copyKind"])
def test_columns_that_older_versions_lack_are_done_without(missing: str, tmp_path: Path) -> None:
    export = two_replays()
    export.columns = {
        table: [name for name in names if name != missing]
        for table, names in export.columns.items()
    }
    trace = read(export, tmp_path)
    assert trace.work.step.tolist() == [0, 0, 0, 1, 1, 1, 0, 1, 0, 1]


def test_short_names_stand_for_full_ones_that_are_missing(tmp_path: Path) -> None:
    export = two_replays()
    export.columns["CUPTI_ACTIVITY_KIND_KERNEL"].remove("demangledName")
    assert "flush" in read(export, tmp_path).names


def test_columns_that_newer_versions_add_do_no_harm(tmp_path: Path) -> None:
    export = two_replays()
    for names in export.columns.values():
        names[:0] = ["somethingNew"]
    assert told(read(export, tmp_path)) == told(read(two_replays(), _folder(tmp_path)))


def _folder(parent: Path) -> Path:
    (parent / "second").mkdir()
    return parent / "second"


def test_kernels_whose_name_was_not_kept_have_a_number(tmp_path: Path) -> None:
    export = two_replays()
    del export.rows["StringIds"]
    names = [name for kind, name, *_ in told(read(export, tmp_path)) if kind == "kernel"]
    assert len(set(names)) == 3
    assert all(name.startswith("kernel ") for name in names)


def test_the_version_of_the_export_is_told(tmp_path: Path) -> None:
    export = two_replays()
    export.add("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value="3.19.1")
    assert read(export, tmp_path).version == "export schema 3.19.1"


def test_secrets_that_a_report_keeps_are_not_read(tmp_path: Path) -> None:
    export = two_replays()
    export.add("TARGET_INFO_SYSTEM_ENV", name="HF_TOKEN", value="hf_secret")
    assert "hf_secret" not in repr(read(export, tmp_path))


@pytest.mark.parametrize("name", ["a b.sqlite", "it's.sqlite", "50%?#.sqlite"])
def test_names_of_files_may_have_blanks_quotes_and_signs(name: str, tmp_path: Path) -> None:
    assert len(read_nsys(two_replays().save(tmp_path / name)).work) == 10


@pytest.mark.parametrize("content", [b"", b"not a database", b"SQLite format 3\0" + b"\0" * 200])
def test_what_is_no_database_is_refused_with_a_sentence(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.sqlite"
    path.write_bytes(content)
    if content:
        with pytest.raises(ProfileError, match=r"broken\.sqlite cannot be read as an export"):
            read_nsys(path)
    else:  # an empty file is an empty database
        assert len(read_nsys(path).work) == 0


def test_a_missing_file_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="does not exist"):
        read_nsys(tmp_path / "gone.sqlite")
    assert list(tmp_path.iterdir()) == []


def test_text_where_a_number_belongs_is_refused_with_a_sentence(tmp_path: Path) -> None:
    export = two_replays()
    export.rows["CUPTI_ACTIVITY_KIND_KERNEL"][0]["start"] = "soon"
    with pytest.raises(ProfileError, match="cannot be read as an export"):
        read(export, tmp_path)


def test_a_row_needs_less_than_500_bytes_of_memory(tmp_path: Path) -> None:
    """So that a million of them stay below 500 MB."""
    export, rows = Export(), 40_000
    export.string("void flush()")
    for row in range(rows):
        at = row * 100
        if row % 100 == 0:
            export.range("step", at, at + 50)
        export.call(row, at, at + 10)
        export.kernel("flush", row, at + 10, at + 90, gridX=row % 7, graphNodeId=row % 100 + 1)
    path = export.save(tmp_path / "step.sqlite")
    del export
    tracemalloc.start()
    trace = read_nsys(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(trace.work) == rows
    assert np.all(trace.work.step[trace.work.node == 1] >= 0)
    assert peak / rows < 500
