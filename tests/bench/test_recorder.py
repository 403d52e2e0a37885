"""What the recorder keeps, under a clock that the test moves."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.bench import recorder as module
from dsv4kv.bench.recorder import Recorder

Pass = Callable[[int], None]


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Pass:
    """Let time pass, in nanoseconds."""
    now = [1_000]
    monkeypatch.setattr(module, "perf_counter_ns", lambda: now[0])

    def advance(ns: int) -> None:
        now[0] += ns

    return advance


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 10**6))))
def test_the_clock_shows_all_time_but_the_excluded(spans: list[tuple[bool, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        now = [0]
        patch.setattr(module, "perf_counter_ns", lambda: now[0])
        recorder = Recorder()
        for excluded, duration in spans:
            if excluded:
                with recorder.excluded():
                    now[0] += duration
            else:
                now[0] += duration
        assert recorder.now_ns() == sum(ns for excluded, ns in spans if not excluded)


def test_time_is_excluded_even_when_the_work_fails(wait: Pass) -> None:
    recorder = Recorder()
    start = recorder.now_ns()

    def fail() -> None:
        wait(50)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), recorder.excluded():
        fail()
    assert recorder.now_ns() == start
