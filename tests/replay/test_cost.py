"""Virtual time: bytes and operations of steps, weights and rates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.config.replay import CostSection
from dsv4kv.core.clock import Rates, VirtualClock
from dsv4kv.core.served import Served
from dsv4kv.errors import ConfigError
from dsv4kv.model.presets import load_model
from dsv4kv.replay.clock.steps import build_weights
from dsv4kv.replay.costs import StepTables, find_rates
from dsv4kv.replay.memory import plan_memory
from dsv4kv.runs.store import save_record
from tests.ops.test_step_reads import SHARES, schemas
from tests.replay.scenes import replay, request, small_config
from tests.runs.records import make_record

MADE = replay([request([1, 2, 3], output=900)])
TABLES = StepTables(MADE.memory.model, MADE.memory.schemas, 1000)
RATES = Rates(1e12, 1e15, 1e-3, "")
ALONE = Served(0, 0.0, 1, 1, lambda _: [], (), 0)


def test_steps_of_a_request_that_leaves_cost_what_they_do_one_by_one() -> None:
    assert MADE.times is None
    table = replay([request([1, 2, 3], output=900)], cost__source="model", cost__gpu="h200")
    assert table.times is not None
    one_by_one, at_once = MADE.scheduler.clock.done, table.scheduler.clock.done
    assert one_by_one == at_once._replace(counts=one_by_one.counts)


@pytest.mark.parametrize(("model", "active"), [("v4-flash", 13e9), ("v4-pro", 49e9)])
def test_active_parameters_are_those_published(model: str, active: float) -> None:
    config = small_config(model__preset=model, model__layers=None)
    memory = plan_memory(config)
    weights = build_weights(config, memory.model, memory.schemas)
    assert weights.active_parameters == pytest.approx(active, rel=0.05)


@pytest.mark.parametrize(("model", "keys", "tokens"), SHARES)
def test_the_shares_of_a_step_by_key_format(model: str, keys: str, tokens: int) -> None:
    """Without what is as large at any context: queries, outputs and their weights."""
    config = load_model(model)
    tables = StepTables(config, schemas(config, keys), tokens + 1)
    scores, choice, attention = (read[tokens] - read[0] for read in tables.reads.values())
    choosing = scores + choice + tables.shared[tokens]
    moved = choosing + attention + tables.updates[tokens + 1]  # completes no entry
    for part, share in zip((choosing, attention), SHARES[model, keys, tokens], strict=True):
        if share is not None:
            assert 100 * part / moved == pytest.approx(share, abs=1)


# ---- rates --------------------------------------------------------------------------------------


def test_a_run_record_gives_the_copy_it_measured(tmp_path: object) -> None:
    record = make_record()
    path = save_record(record, tmp_path).path  # type: ignore[arg-type]
    rates = find_rates(CostSection(gpus=1, peaks=str(path)))
    memcpy = record.cases[0].memcpy
    assert memcpy
    middle = sorted(memcpy.samples_ns)[len(memcpy.samples_ns) // 2]
    assert rates.bytes_per_s == pytest.approx(memcpy.bytes / middle * 1e9, rel=0.2)
    assert "copy measured in" in rates.source


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        (CostSection(gpu=None), "name a GPU"),
        (CostSection(bandwidth_gbps=1, peaks="x.json"), "keep one"),
        (CostSection(gpu="h20o"), "did you mean h20 or h200"),
    ],
)
def test_a_bandwidth_that_cannot_be_had_is_a_sentence(section: CostSection, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        find_rates(section)


def test_a_model_without_known_weights_cannot_be_timed() -> None:
    config = small_config(model__layers=None)
    memory = plan_memory(config)
    mine = memory.model.model_copy(update={"name": "mine"})
    with pytest.raises(ConfigError, match="how large the weights"):
        build_weights(config, mine, memory.schemas)


def clock() -> VirtualClock:
    return VirtualClock(MADE.scheduler.clock._tables, RATES, None)


def step(clock: VirtualClock, lengths: list[int]) -> None:
    clock.verify(lengths, [1] * len(lengths))
    clock.step(len(lengths), len(lengths), sum(lengths) + len(lengths), ())


STEPS = st.lists(st.integers(1, 900), max_size=4)


@given(st.lists(st.one_of(STEPS, st.integers(0, 10**15), st.floats(0, 1e6)), max_size=12))
def test_time_never_runs_backwards_and_busy_time_is_that_of_the_work(
    events: list[list[int] | int | float],
) -> None:
    made, before_s = clock(), 0.0
    for event in events:
        if isinstance(event, list):
            step(made, event)
        elif isinstance(event, int):
            made.copy(event)
        else:
            made.wait_until(event)
            assert made.now_s >= event
        assert made.now_s >= before_s
        before_s = made.now_s
        assert made._busy_s == RATES.duration_s(made.done)


def test_asking_how_long_a_prompt_would_take_takes_no_time() -> None:
    made, other = clock(), clock()
    step(made, [5])
    before = made.done, made.now_s
    took_s = made.prompt_s(100, 700, 256)
    assert (made.done, made.now_s) == before
    for span in ((100, 356), (356, 612), (612, 700)):
        other.step(0, 0, 0, [(ALONE, span)])
    assert took_s == pytest.approx(other._busy_s)
