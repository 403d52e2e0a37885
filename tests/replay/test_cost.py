"""Virtual time, and weights."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.core.clock import VirtualClock
from dsv4kv.errors import ConfigError
from dsv4kv.replay.clock.steps import build_weights
from dsv4kv.replay.memory import plan_memory
from tests.replay.clock.test_steps import model
from tests.replay.scenes import small_config


@pytest.mark.parametrize(("model", "active"), [("v4-flash", 13e9), ("v4-pro", 49e9)])
def test_active_parameters_are_those_published(model: str, active: float) -> None:
    config = small_config(model__preset=model, model__layers=None)
    memory = plan_memory(config)
    weights = build_weights(config, memory.model, memory.schemas)
    assert weights.active_parameters == pytest.approx(active, rel=0.05)


def test_a_model_without_known_weights_cannot_be_timed() -> None:
    config = small_config(model__layers=None)
    memory = plan_memory(config)
    mine = memory.model.model_copy(update={"name": "mine"})
    with pytest.raises(ConfigError, match="how large the weights"):
        build_weights(config, mine, memory.schemas)


STEPS = st.lists(st.integers(1, 900), max_size=4)


@given(st.lists(st.one_of(STEPS, st.integers(0, 10**15), st.floats(0, 1e6)), max_size=12))
def test_time_never_runs_backwards_and_busy_time_is_that_of_the_work(
    events: list[list[int] | int | float],
) -> None:
    timer = model().timer
    made, before_s = VirtualClock(timer), 0.0
    for event in events:
        if isinstance(event, list):
            made.step(len(event), len(event), sum(event) + len(event), ())
        elif isinstance(event, int):
            made.copy(event)
        else:
            made.wait_until(event)
            assert made.now_s >= event
        assert made.now_s >= before_s
        before_s = made.now_s
        copies_s = made.copy_bytes / timer.copy_bytes_per_s
        assert made._busy_s == timer.seconds(made.counts) + copies_s


def test_a_prompt_takes_what_its_chunks_do() -> None:
    timer = model().timer
    chunks = ((100, 356), (356, 612), (612, 700))
    counts = [timer.step(0, 0, 0, end - at, end - at, (end - at) * at) for at, end in chunks]
    assert timer.prompt_s(100, 700, 256) == pytest.approx(sum(map(timer.seconds, counts)))
