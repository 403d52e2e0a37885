"""The kernel table: sums, shares, gaps, bytes and steps, from whichever profiler."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.profile.nsys import read_nsys
from dsv4kv.profile.table import build_table, shipped_rules
from dsv4kv.profile.trace import KERNEL, NONE, Column, Trace, constant, make_work
from dsv4kv.runs.parts import KernelRow, KernelTable
from tests.profile.exports import two_replays
from tests.profile.kernel_profiles import from_kineto, from_nsys
from tests.profile.traces import event

Piece = tuple[int, int, int, int]
"""Step, device, begin and end."""


def table_of(*pieces: Piece, tool: str = "nsys") -> KernelTable:
    """Of kernels of one name."""
    step, device, start, end = np.array(pieces, dtype=np.int64).reshape(-1, 4).T
    name, kind = constant(len(step), 0), constant(len(step), KERNEL)
    work = make_work(name, kind, start, end, device=device, step=step)
    spans: Column = np.tile(np.array([[0, 5]]), (int(step.max(initial=NONE)) + 1, 1))
    trace = Trace(tool, ["flush"], work, spans)
    return build_table(trace, shipped_rules(), {"flush": 1_000})


def row(table: KernelTable, part: str) -> KernelRow:
    (found,) = [one for one in table.kernels if part in one.name]
    return found


def test_a_profile_without_a_clock_has_no_steps_and_gaps() -> None:
    table = table_of((0, 0, 0, 10), (0, 0, 30, 40), tool="ncu")
    assert table.steps is None
    assert row(table, "flush").gap_ns is None


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(1, 60)), min_size=1, max_size=12))
def test_busy_time_is_the_length_of_the_union(pieces: list[tuple[int, int]]) -> None:
    steps = table_of(*[(0, 0, start, start + length) for start, length in pieces]).steps
    assert steps is not None
    covered = {moment for start, length in pieces for moment in range(start, start + length)}
    assert steps.busy_ns == [len(covered)]
    assert steps.span_ns == [max(covered) + 1 - min(covered)]


def test_bytes_go_to_kernels_that_are_an_operation_alone(tmp_path: Path) -> None:
    export = two_replays()
    export.kernel("flush_finish", 100, 70_000, 71_000)
    table = from_nsys(tmp_path, export)
    assert row(table, "gather_topk").useful_bytes == 80_000
    assert row(table, "::flush<").useful_bytes is None
    (flush,) = [one for one in table.operations if one.name == "flush"]
    assert (flush.useful_bytes, flush.total_ns, flush.calls) == (40_000, 21_000, 2)


def test_what_stands_in_the_models_place_is_told_apart(tmp_path: Path) -> None:
    events = [
        event("user_annotation", "step", 0, 100), event("user_annotation", "inputs", 10, 40),
        event("cpu_op", "aten::randn", 20, 10), event("cpu_op", "aten::add", 60, 15),
    ]  # fmt: skip
    steps = from_kineto(tmp_path, events).steps
    assert steps is not None
    assert (steps.inputs_ns, steps.busy_ns, steps.launch_ns) == ([40_000], [15_000], [0])
    assert steps.gap_ns == [45_000]


def test_of_many_kernels_the_longest_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = read_nsys(two_replays().save(tmp_path / "step.sqlite"))
    whole = build_table(trace, shipped_rules())
    monkeypatch.setattr("dsv4kv.profile.table.MOST_KERNELS", 2)
    made = build_table(trace, shipped_rules())
    assert [row.name for row in made.kernels] == [row.name for row in whole.kernels[:2]]
    note = made.notes[-1]
    assert re.fullmatch(r"omitted: \d kernels of the least time, \d+\.\d % of all", note)


def test_operations_of_torch_do_what_the_operation_around_them_does(tmp_path: Path) -> None:
    events = [
        event("user_annotation", "step", 0, 300),
        event("user_annotation", "gather_topk csa", 10, 80),
        event("cpu_op", "aten::copy_", 20, 50),
        event("user_annotation", "window_insert swa", 100, 80),
        event("cpu_op", "aten::copy_", 120, 30), event("cpu_op", "aten::copy_", 200, 20),
    ]  # fmt: skip
    table = from_kineto(tmp_path, events)
    copies = {one.category: one.total_ns for one in table.kernels if one.name == "aten::copy_"}
    assert copies == {"gather": 50_000, "insert": 30_000, "other": 20_000}
    assert {one.name: one.total_ns for one in table.operations} == {
        "gather_topk csa": 80_000,
        "window_insert swa": 80_000,
    }


def test_steps_that_launch_nothing_on_a_gpu_do_not_count(tmp_path: Path) -> None:
    """As those of a process that only schedules."""
    export = two_replays()
    for begin in (30_000, 60_000):
        export.range("step", begin, begin + 10)
    table = from_nsys(tmp_path, export)
    assert table.num_steps == 2
    assert table.notes == ["omitted: 2 steps without work"]


def test_what_a_profile_says_is_told_at_bounded_length(tmp_path: Path) -> None:
    export = two_replays()
    export.add("DIAGNOSTIC_EVENT", severity=3, text="x" * 10_000)
    trace = read_nsys(export.save(tmp_path / "step.sqlite"))
    trace = replace(trace, devices={0: "x" * 10_000}, version="x" * 10_000)
    table = build_table(trace, shipped_rules())
    assert table.tool_version is not None
    assert 1 < len(table.devices[0]) < 1_000
    assert max(map(len, (*table.devices, table.tool_version, *table.warnings))) < 1_000
