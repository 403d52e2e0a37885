"""What steps cost: weights, arithmetic, and stretches of steps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.clock.weights import build_weights
from dsv4kv.config.replay import CostSection
from dsv4kv.errors import ConfigError
from dsv4kv.model.presets import load_model
from dsv4kv.record.store import save_record
from dsv4kv.replay.clock import CostModel, Work, decoding, find_rates
from dsv4kv.replay.costs import Ints, StepTables
from dsv4kv.replay.decoders import Drafts
from dsv4kv.replay.memory import plan_memory
from tests.examples import examples
from tests.ops.test_step_reads import SHARES, schemas
from tests.record.records import make_record
from tests.replay.scenes import replay, request, small_config

MADE = replay([request([1, 2, 3], output=900)])
COST: CostModel = MADE.scheduler._cost


def decode(lengths: Ints, steps: int) -> Work:
    before, after = COST.reached(lengths), COST.reached(lengths + steps)
    decoded = decoding(len(lengths), int(lengths.sum()), steps)
    return COST.decode(before, after, len(lengths), steps, decoded)


@examples(100)
@given(st.lists(st.integers(1, 900), min_size=1, max_size=6), st.integers(1, 300))
def test_a_stretch_costs_the_sum_of_its_steps(lengths: list[int], steps: int) -> None:
    start = np.array(lengths, dtype=np.int64)
    single = [decode(start + step, 1) for step in range(steps)]
    assert decode(start, steps) == sum(single, Work())


def test_a_window_of_one_token_costs_a_decode_step() -> None:
    lengths = np.array([5, 128, 700])
    (window,) = COST.speculate(lengths[None, :], np.ones((1, 3), dtype=np.int64))
    assert window == decode(lengths, 1)


def test_a_window_reads_the_cache_once_and_writes_every_token() -> None:
    lengths = np.array([[100]])
    (window,) = COST.speculate(lengths, np.array([[4]]))
    single = decode(lengths[0], 4)
    assert window.update_bytes == single.update_bytes
    assert window.operations == single.operations
    keys = COST._tables.shared
    assert window.score_bytes == single.score_bytes - keys[101:104].sum()  # 104 tokens' alone
    assert window.attend_bytes == single.attend_bytes


def test_a_mixed_step_reads_its_weights_once_for_all_tokens() -> None:
    alone = decode(np.array([300]), 1)
    mixed = COST.mixed(alone, decoding(1, 300, 1), [(0, 128)])
    assert mixed.steps == 1
    assert mixed.weight_bytes == COST.weight_bytes(129)
    assert mixed.update_bytes > alone.update_bytes


@pytest.mark.parametrize(("model", "active"), [("v4-flash", 13e9), ("v4-pro", 49e9)])
def test_active_parameters_are_those_published(model: str, active: float) -> None:
    config = small_config(model__preset=model, model__layers=None)
    memory = plan_memory(config)
    weights = build_weights(config, memory.model, memory.schemas)
    assert weights.active_parameters == pytest.approx(active, rel=0.05)


def test_a_step_of_many_tokens_reads_every_expert_and_of_one_token_its_own() -> None:
    config = small_config(model__layers=None)
    memory = plan_memory(config)
    weights = build_weights(config, memory.model, memory.schemas)
    one = weights.step_bytes(1) - weights.dense_bytes
    assert one == pytest.approx(weights.expert_bytes * 6 / 256, rel=1e-6)
    assert weights.step_bytes(8192) == weights.dense_bytes + weights.expert_bytes
    assert weights.step_bytes(0) == weights.dense_bytes


def test_given_weights_are_spread_as_derived() -> None:
    config = small_config(model__layers=None, cost__weight_bytes=10**11)
    memory = plan_memory(config)
    weights = build_weights(config, memory.model, memory.schemas)
    assert weights.source == "as given"
    assert weights.dense_bytes + weights.expert_bytes < 10**11  # the embedding is looked up


def test_arithmetic_grows_by_what_attention_and_indexer_read() -> None:
    memory = plan_memory(small_config(model__preset="v4-pro", model__layers="[2, 3]"))
    operations = StepTables(load_model("v4-pro"), memory.schemas, 8192).operations
    heads = 4 * 128 * 512
    csa_window, hca_window = 128 * heads, 128 * heads
    assert operations[128] == csa_window + hca_window + heads * (32 + 1) + 2 * 64 * 128 * 32
    topk = heads * (1024 + 64) + 2 * 64 * 128 * 2048
    assert operations[8192] == csa_window + hca_window + topk


def test_a_token_is_multiplied_with_every_active_parameter() -> None:
    one = decode(np.array([99]), 1).operations
    assert one == COST._tables.operations[100] + 2 * MADE.weights.active_parameters


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


def test_drafts_are_drawn_alike_however_steps_are_grouped() -> None:
    drafts = Drafts(3, 0.6, seed=4)
    numbers, done = np.array([0, 7, 12]), np.array([0, 5, 2])
    together = drafts.kept(numbers, done, 6)
    apart = [drafts.kept(numbers, done + step, 1)[0] for step in range(6)]
    assert (together == np.array(apart)).all()
    assert together.min() >= 1
    assert together.max() <= 4


def test_the_share_of_accepted_drafts_is_the_one_asked_for() -> None:
    kept = Drafts(1, 0.7, seed=0).kept(np.arange(1), np.zeros(1, dtype=np.int64), 16_384)
    assert kept.mean() - 1 == pytest.approx(0.7, abs=0.02)


# ---- rates --------------------------------------------------------------------------------------


def test_a_datasheet_counts_by_its_share_and_given_bandwidth_whole() -> None:
    rates = find_rates(CostSection(gpu="h200", gpus=4, bandwidth_share=0.5))
    assert rates.bytes_per_s == 4 * 2.4e12
    given = find_rates(CostSection(gpu=None, bandwidth_gbps=1000, gpus=2, tflops=10))
    assert (given.bytes_per_s, given.operations_per_s) == (2e12, 2e13)


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
        (CostSection(gpu="h20o"), "did you mean h20 or h200.*cost.bandwidth_gbps"),
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
