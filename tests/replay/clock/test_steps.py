"""Times of steps: their terms, what they grow with, what divides them, whatever the grouping."""

from operator import add

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.budget.layout import Layout
from dsv4kv.core.clock import NOTHING, VirtualClock
from dsv4kv.errors import ConfigError
from dsv4kv.replay.clock import steps as ste
from dsv4kv.replay.clock.steps import BORROWED, Coefficients, HeldOut, build_weights
from dsv4kv.replay.memory import plan_memory
from tests.replay.scenes import small_config

WEIGHTS = ste.WeightModel(
    dense_bytes=10 * 10**9,
    expert_bytes=140 * 10**9,
    held_bytes=151 * 10**9,
    experts=256,
    experts_per_token=6,
    active_parameters=13 * 10**9,
    source="made up",
    expert_parameters=6 * 10**9,
)
COEFFICIENTS = Coefficients(
    decode_layer_us=150,
    draft_us=700,
    bandwidth_share=0.5,
    context_ns=300,
    split_context_ns=900,
    prompt_layer_us=1000,
    state_passes=100,
    all_to_all_ns=1000,
    tflops=500,
    prefix_ns=90,
    client_ms=150,
    held_out=HeldOut(ttft=2.0, tpot=1.5, throughput=1.4),
    source="made up",
)
TP4, DP4 = Layout(tp=4), Layout(dp=4, ep=4)


def deploy(layout: Layout = TP4, drafts: int = 0, *, all_to_all: bool = False) -> ste.Deployment:
    return ste.Deployment(43, 8192, WEIGHTS, layout, drafts, all_to_all, bytes_per_s=4e12)


def model(layout: Layout = TP4, drafts: int = 0) -> ste.ModelTimes:
    return ste.ModelTimes(deploy(layout, drafts), COEFFICIENTS)


@pytest.mark.parametrize("layout", [TP4, DP4, Layout(tp=2, dp=2, ep=4), Layout(tp=2, pp=2)])
@given(rows=st.integers(1, 300), context=st.integers(0, 10**6), more=st.integers(0, 50))
def test_a_decode_step_grows_with_requests_and_contexts(
    layout: Layout, rows: int, context: int, more: int
) -> None:
    times = model(layout)
    one = times.decode_s(rows, context)
    assert times.decode_s(rows + more, context) >= one
    assert times.decode_s(rows, context + more) >= one


@given(st.integers(1, 60_000), st.integers(0, 10**6), st.integers(0, 500))
def test_a_prompt_chunk_grows_with_tokens_and_prefix(tokens: int, prefix: int, more: int) -> None:
    one = model().prompt_s(tokens, prefix)
    assert model().prompt_s(tokens + more, prefix) >= one
    assert model().prompt_s(tokens, prefix + more) >= one


@pytest.mark.parametrize("layout", [TP4, DP4, Layout(tp=2, pp=2)])
@given(
    rows=st.integers(1, 40),
    steps=st.integers(1, 30),
    contexts=st.integers(0, 10**6),
    until_s=st.floats(0, 1),
)
def test_steps_together_are_those_one_by_one(
    layout: Layout, rows: int, steps: int, contexts: int, until_s: float
) -> None:
    timer = model(layout).timer
    counts, taken = NOTHING, 0
    while taken < steps and (not taken or 0.25 + timer.seconds(counts) < until_s):
        step = timer.step(rows, rows, contexts + taken * rows, 0, 0, 0)
        counts, taken = tuple(map(add, counts, step)), taken + 1
    found = timer.decode(NOTHING, rows, contexts, steps, 0.0, 0.25, until_s)
    assert found == (taken, counts)


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


def test_a_pipeline_of_which_there_are_no_points_is_less_sure() -> None:
    wide = ste.ModelTimes(deploy(Layout(tp=2, pp=2)), COEFFICIENTS).held_out
    assert wide == COEFFICIENTS.held_out.widened(BORROWED)
    assert ste.ModelTimes(deploy(DP4), COEFFICIENTS).held_out == COEFFICIENTS.held_out


def test_a_decode_step_is_the_literal_sum_of_its_terms() -> None:
    rows, context, drafts = 10, 5000, 3
    tokens = rows * (1 + drafts)
    read = 10e9 / 4 + 140e9 / 4 * (1 - (250 / 256) ** tokens)
    expected_s = (
        43 * 150e-6
        + drafts * 700e-6
        + read / (0.5 * 4e12)
        + tokens * context / 1000 * 900e-9
        + 2 * tokens * (7e9 + 6e9) / 4 / 500e12
    )
    assert model(TP4, drafts).decode_s(rows, context, drafts) == pytest.approx(expected_s, 1e-9)


def test_a_prompt_chunk_is_the_literal_sum_of_its_terms() -> None:
    tokens, prefix = 4096, 20_000
    flop = 2 * tokens * (7e9 + 6e9) / 4
    read = 10e9 / 4 + 140e9 / 4 * (1 - (250 / 256) ** tokens)
    expected_s = (
        flop / 500e12
        + read / 2e12
        + tokens * prefix / 1000 * 90e-9
        + 100 * 43 * tokens * 8192 / 4e12
    )
    assert model().prompt_s(tokens, prefix) == pytest.approx(expected_s, 1e-6)


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
