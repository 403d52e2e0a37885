"""How steps are found, and that what lies in them and what does not add up to the capture."""

import random
from pathlib import Path
from time import process_time

import numpy as np
import pytest

from dsv4kv.profile.read import read_profile
from dsv4kv.profile.table import build_table, shipped_rules
from dsv4kv.profile.trace import USUAL, Ranges, enclosing
from dsv4kv.runs.parts import KernelTable
from tests.profile import captures

EVERY_WRITER = pytest.mark.parametrize("writer", captures.WRITERS)
PAUSES = "no range is named 'step': a step is what the host launches between long pauses"


def table_of(
    capture: captures.Capture, writer: str, folder: Path, step: str = "step"
) -> KernelTable:
    path = captures.WRITERS[writer](capture, folder)
    return build_table(read_profile(path, step), shipped_rules())


def inside_ns(table: KernelTable) -> int:
    return sum(row.total_ns for row in table.kernels)


def calls_of(table: KernelTable, kernel: str) -> int:
    return sum(row.calls for row in table.kernels if kernel in row.name)


@EVERY_WRITER
@pytest.mark.parametrize(
    ("between", "idles"), [((), "43%"), ((40,), "9%"), ((50,), None), ((20, 20), "9%")]
)
def test_the_gpus_idle_time_between_steps_is_said(
    writer: str, between: tuple[int, ...], idles: str | None, tmp_path: Path
) -> None:
    """Four steps of 50 µs, 50 µs apart: 150 of 350 µs, less what runs there in no step."""
    capture = captures.Capture()
    for at in range(1_000, 1_400, 100):
        capture.mark("step", at - 10, at + 20)
        capture.launch(at, (captures.ATTENTION, 50))
        for place, length in enumerate(between if at < 1_300 else ()):
            capture.launch(at + 46 + 25 * place, (captures.INSERT, length))
    said = table_of(capture, writer, tmp_path).warnings
    assert [each.split(" of the time")[0].split()[-1] for each in said] == (
        [idles] if idles else []
    )


@EVERY_WRITER
@pytest.mark.parametrize("seed", range(6))
def test_any_piecewise_capture_adds_up(writer: str, seed: int, tmp_path: Path) -> None:
    chance, capture, at = random.Random(seed), captures.Capture(), 100
    steps, layers = chance.randint(2, 8), chance.randint(1, 30)
    for _ in range(steps):
        at = captures.launch_step(capture, at, layers, chance.randint(10, 20)) + chance.randint(
            300, 4_000
        )
    table = table_of(capture, writer, tmp_path)
    assert table.notes == [PAUSES]
    assert (table.num_steps, table.outside_calls) == (steps, 0)
    assert inside_ns(table) == capture.total_ns
    found = (calls_of(table, captures.INSERT), calls_of(table, captures.ATTENTION))
    assert found == (steps * layers,) * 2


@EVERY_WRITER
@pytest.mark.parametrize(
    "name",
    ["execute_model", "execute_context_9(8)_generation_3", "step[DECODE bs=32]", "ProfilerStep#3"],
)
def test_a_range_that_comes_once_may_be_a_step(writer: str, name: str, tmp_path: Path) -> None:
    capture = captures.Capture()
    capture.launch(50, ("before", 40))
    capture.mark(name, 90, captures.launch_step(capture, 100, 4) + 10)
    table = table_of(capture, writer, tmp_path)
    (fit,) = [usual for usual in USUAL if usual[:5] == name[:5]]
    assert table.notes == [f"no range is named 'step': the steps are {fit!r}"]
    assert (table.num_steps, table.outside_calls, table.outside_ns) == (1, 1, 40_000)
    assert inside_ns(table) + table.outside_ns == capture.total_ns
    assert (calls_of(table, captures.INSERT), calls_of(table, captures.ATTENTION)) == (4, 4)


@EVERY_WRITER
def test_of_nested_ranges_the_outermost_are_the_steps(writer: str, tmp_path: Path) -> None:
    capture = captures.piecewise(steps=2)
    (begin, *_), (end, *_) = capture.calls[0], capture.calls[14]
    capture.mark("execute_model", begin - 20, end + 20)
    capture.mark("execute_context_0(0)_generation_8(8)", begin + 50, end)
    assert table_of(capture, writer, tmp_path).num_steps == 1


@EVERY_WRITER
def test_ranges_without_launches_are_passed_over(writer: str, tmp_path: Path) -> None:
    capture = captures.piecewise()
    capture.mark("execute_nothing", 0, 50)
    assert table_of(capture, writer, tmp_path).num_steps == 3


@EVERY_WRITER
def test_every_launch_of_one_graph_is_a_step(writer: str, tmp_path: Path) -> None:
    """However long the pauses are."""
    capture = captures.Capture()
    for at in (0, 10, 20, 900, 910, 920, 1_800, 1_810):
        capture.launch(at, (captures.PRODUCT, 4), (captures.ATTENTION, 2), graph=True)
    table = table_of(capture, writer, tmp_path)
    assert table.notes == ["no range is named 'step': every launch of a graph is one"]
    assert (table.num_steps, inside_ns(table)) == (8, capture.total_ns)


@EVERY_WRITER
@pytest.mark.parametrize("pauses", [[20] * 12, [*[20] * 6, 900, *[20] * 6]])
def test_a_capture_without_steps_is_whole(writer: str, pauses: list[int], tmp_path: Path) -> None:
    """One pause tells no steps: what lies before and behind it is not alike."""
    capture, at = captures.Capture(), 0
    for number, pause in enumerate(pauses):
        capture.launch(at := at + pause, (f"kernel_{number}", 7), graph=number % 2 > 0)
    table = table_of(capture, writer, tmp_path)
    told = "no range is named 'step': there are no steps, and the whole capture is reported"
    assert table.notes == [told]
    assert (table.num_steps, inside_ns(table)) == (0, capture.total_ns)


def test_very_many_threads_and_overlapping_ranges_take_no_longer_than_few() -> None:
    """Once per thread, all ranges were looked through; at every end, all that were open."""
    rows = np.arange(100_000)
    for thread, end in ((rows, rows * 9 + 8), (rows * 0, rows + 10**6)):
        start = end - 8 if thread[-1] else rows
        ranges, begun_s = Ranges(thread, start, end, rows * 0), process_time()
        step, _ = enclosing(ranges, np.ones(len(rows), dtype=np.bool_), thread, start)
        assert np.array_equal(step, rows)
        assert process_time() - begun_s < 10
