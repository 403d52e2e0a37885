"""What steps cost: weights, arithmetic, and drafts."""

import pytest

from dsv4kv.config.replay import CostSection
from dsv4kv.core.clock import Rates, VirtualClock, Work
from dsv4kv.core.scheduler import Drafts
from dsv4kv.core.served import Served
from dsv4kv.errors import ConfigError
from dsv4kv.model.presets import load_model
from dsv4kv.replay.clock.weights import build_weights
from dsv4kv.replay.costs import StepTables
from dsv4kv.replay.memory import plan_memory
from dsv4kv.replay.rates import find_rates
from dsv4kv.runs.store import save_record
from tests.ops.test_step_reads import SHARES, schemas
from tests.replay.scenes import replay, request, small_config
from tests.runs.records import make_record

MADE = replay([request([1, 2, 3], output=900)])
TABLES = StepTables(MADE.memory.model, MADE.memory.schemas, 1000)
RATES = Rates(1e12, 1e15, 1e-3, "")


def served(number: int = 0, begun: int = 0, verified: int = 0) -> Served:
    made = Served(number, 0.0, 1, 1, lambda _: [], (), 0)
    made.begun, made.verified = begun, verified
    return made


def decode(lengths: list[int], taken: int = 1, *, prompt: int = 0) -> Work:
    """A step in which requests verify so many tokens each, beside a prompt's first ones."""
    clock = VirtualClock(TABLES.weighed(MADE.parts.weights), RATES, None)
    clock.verify(lengths, [taken] * len(lengths))
    rows = len(lengths)
    contexts = sum((length + taken) * taken for length in lengths)
    clock.step(rows, rows * taken, contexts, [(served(), (0, prompt))] if prompt else ())
    return clock.done


def test_steps_of_a_request_that_leaves_cost_what_they_do_one_by_one() -> None:
    assert MADE.times is None
    table = replay([request([1, 2, 3], output=900)], cost__source="model", cost__gpu="h200")
    assert table.times is not None
    one_by_one, at_once = MADE.scheduler.clock.done, table.scheduler.clock.done
    assert one_by_one == at_once._replace(counts=one_by_one.counts)


def test_a_window_reads_the_cache_once_and_writes_every_token() -> None:
    window = decode([100], 4)
    each = [decode([100 + step]) for step in range(4)]
    assert window.update_bytes == sum(step.update_bytes for step in each)
    assert window.operations == sum(step.operations for step in each)
    scores = sum(step.score_bytes for step in each)
    assert window.score_bytes == scores - TABLES.shared[101:104].sum()  # 104 tokens' alone
    assert window.attend_bytes == sum(step.attend_bytes for step in each)


def test_a_mixed_step_reads_its_weights_once_for_all_tokens() -> None:
    alone, mixed = decode([300]), decode([300], prompt=128)
    assert mixed.steps == 1
    assert mixed.weight_bytes == MADE.parts.weights.step_bytes(129)
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
    one = decode([99]).operations
    assert one == TABLES.operations[100] + 2 * MADE.parts.weights.active_parameters


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


def test_drafts_keep_one_token_and_those_that_are_accepted() -> None:
    kept = [Drafts(3, 0.6, seed=4).kept(served(7, verified=step)) for step in range(1000)]
    assert set(kept) == {1, 2, 3, 4}


def test_the_share_of_accepted_drafts_is_the_one_asked_for() -> None:
    drafts = Drafts(1, 0.7, seed=0)
    kept = [drafts.kept(served(0, verified=step)) for step in range(16_384)]
    assert sum(kept) / len(kept) - 1 == pytest.approx(0.7, abs=0.02)


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
