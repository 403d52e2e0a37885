"""Polls joined to windows by time: which rows a machine's doings belong to."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.runs.parts import Telemetry
from dsv4kv.runs.quantities import REASONS, WindowState, window_state
from tests.runs import telemetries as tl


def states(telemetry: Telemetry) -> list[WindowState]:
    return [window_state(telemetry, window) for window in telemetry.windows]


def with_gpu(**columns: Any) -> Telemetry:
    return tl.make_telemetry(gpu_samples=tl.make_gpu_samples(3, **columns))


def from_window(index: int, before: Any, after: Any) -> Any:
    """A column that changes in the middle of a window."""
    middle = tl.make_window(index).started_ns + 250_000_000
    return lambda at: after if at >= middle else before


def test_a_machine_that_does_nothing_else_limits_no_row() -> None:
    (state, *others) = states(tl.make_telemetry())
    assert not any(each.is_limited for each in [state, *others])
    assert state == WindowState(
        sm_clock_mhz=(1_980, 1_980), memory_clock_mhz=(3_201, 3_201), power_w=512.0,
        temperature_c=61, other_processes=0, cpu_mhz=(3_700, 3_700), other_cpus=0.0,
    )  # fmt: skip


@pytest.mark.parametrize(("bit", "name"), REASONS.items())
def test_a_reason_marks_its_row_with_the_share_of_its_time(bit: int, name: str) -> None:
    found = states(with_gpu(reasons=from_window(1, 0, bit)))
    assert found[0].limits == {}
    assert found[1].limits == {name: pytest.approx(0.5, abs=0.05)}
    assert [state.is_limited for state in found] == [False, True, True]
    assert found[2].limits == {name: 1.0}


@pytest.mark.parametrize("bit", [0x1, 0x2, 0x100])
def test_idle_and_clocks_set_by_a_user_are_no_limits(bit: int) -> None:
    assert not any(state.is_limited for state in states(with_gpu(reasons=lambda _: bit)))


def test_a_window_shorter_than_a_poll_is_told_by_the_polls_around_it() -> None:
    for offset_ns in (1_000, 20_000_000, 39_000_000):
        start = 5 * tl.INTERVAL_NS + offset_ns
        window = tl.make_window(0, started_ns=start, ended_ns=start + 500)
        samples = tl.make_gpu_samples(1, reasons=lambda at: 0x40 * (at == 6 * tl.INTERVAL_NS))
        found = window_state(tl.make_telemetry(1, gpu_samples=samples), window)
        assert found.sm_clock_mhz == (1_980, 1_980)
        assert found.limits == {"thermal slowdown by hardware": 0.5}


def test_where_nothing_was_polled_nothing_is_told() -> None:
    empty = tl.make_telemetry(gpu_samples=None, gpu_checks=None, host_samples=None)
    assert states(empty) == [WindowState()] * 3
    assert states(with_gpu(sm_clock_mhz=None, reasons=None))[0].sm_clock_mhz is None


@given(st.data())
def test_holes_in_a_column_do_no_harm(data: st.DataObject) -> None:
    def holes(column: list[Any]) -> list[Any]:
        return [value if data.draw(st.booleans()) else None for value in column]

    whole = tl.make_gpu_samples(1)
    columns = whole.model_dump(exclude={"at_ns"}, exclude_none=True)
    samples = whole.model_copy(update={name: holes(each) for name, each in columns.items()})
    (state,) = states(tl.make_telemetry(1, gpu_samples=samples))
    assert not state.is_limited
    assert state.sm_clock_mhz in (None, (1_980, 1_980))
