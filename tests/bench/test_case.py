"""One configuration from the first request to the last."""

from collections.abc import Iterator

import pytest

from dsv4kv.bench.run import run_case
from dsv4kv.cache.manager import KVCacheManager, PagedKVPool
from dsv4kv.config.bench import BenchConfig
from dsv4kv.ops import cpu
from dsv4kv.runs.schema import Case
from tests.bench.settings import BOOKS, tiny_config


def run(config: BenchConfig) -> Case:
    return run_case({}, config, lambda _tokens: None)


@pytest.fixture(scope="module")
def served() -> Case:
    return run(tiny_config())


def test_every_pool_is_allocated_as_predicted(served: Case) -> None:
    assert served.cache
    assert [(pool.name, pool.layer_type) for pool in served.cache.pools] == [
        ("main", "csa"),
        ("main", "hca"),
        ("indexer", "csa"),
        ("window", "swa"),
        ("window", "csa"),
        ("window", "hca"),
        ("state", "csa"),
        ("state", "hca"),
        ("tables", "all"),
    ]
    for pool in served.cache.pools:
        assert pool.predicted_bytes == pool.allocated_bytes
        assert pool.predicted_bytes == pool.layers * pool.units * pool.unit_bytes > 0


def test_outputs_are_checked_and_equal(served: Case) -> None:
    verification = served.verification
    prompts, steps = {"compressed KV", "indexer keys"}, {"index_scores", "select_topk", "attend"}
    assert set(verification.by_operation) == prompts | steps
    assert verification.checks == sum(verification.by_operation.values()) > 10
    assert verification.failures == []


def test_without_data_only_the_books_are_kept() -> None:
    case = run(tiny_config(BOOKS))
    assert case.cache
    assert [pool.name for pool in case.cache.pools] == ["tables"]
    assert (case.operations, case.memcpy, case.verification.checks) == ([], None, 0)
    assert case.status == "complete"


@pytest.mark.parametrize("preset", ["v4-flash", "v4-pro", "v4.1-flash", "v3.2"])
def test_the_books_of_every_shipped_model_can_be_run(preset: str) -> None:
    case = run(tiny_config(BOOKS, f"model.preset={preset}", "model.layers=null"))
    assert case.status == "complete"
    assert case.cache
    assert sum(case.cache.layers.values()) == case.cache.total_layers


# ---- models whose layers are of other kinds -----------------------------------------------------

V41 = ("model.preset=v4.1-flash", "model.layers=[0, 2, 3, 20, 21, 24]")
"""A window; an owner of ratio 2 and a reader; one of ratio 1, readers without and with keys."""
INTERLEAVED = (
    "model.formats.main=fp4_interleaved",
    "model.formats.window=fp8_group32_interleaved",
)
DRAFTS = ("workload.speculative.draft_tokens=2", "workload.speculative.acceptance=0.5")
SAMPLED_OFTEN = "measure.verify_every=1"


@pytest.mark.parametrize(
    "more", [(), INTERLEAVED, DRAFTS], ids=["block-split", "interleaved", "drafts"]
)
def test_v41_moves_real_bytes_and_they_are_right(more: tuple[str, ...]) -> None:
    case = run(tiny_config(*V41, SAMPLED_OFTEN, *more))
    assert (case.status, case.verification.failures) == ("complete", [])
    assert set(case.verification.by_operation) == {
        "compressed KV",
        "indexer keys",
        "index_scores",
        "select_topk",
        "attend",
    }
    times = {(each.name, each.layer_type) for each in case.operations}
    assert times >= {
        ("norm_rope_insert", "csa"),
        ("indexer_norm_rope_insert", "csa"),
        ("flush", "csa"),
    }


@pytest.mark.parametrize("main", ["fp8_ds_mla", "bf16", "fp8"])
def test_v32_moves_real_bytes_and_they_are_right(main: str) -> None:
    layers = "model.layers=[0, 60]"
    case = run(
        tiny_config("model.preset=v3.2", layers, SAMPLED_OFTEN, f"model.formats.main={main}")
    )
    assert (case.status, case.verification.failures) == ("complete", [])
    assert set(case.verification.by_operation) == {"compressed KV", "indexer keys"}
    assert {each.name for each in case.operations} == {
        "entry_insert",
        "indexer_insert",
        "gather_topk",
        "gather_all",
        "indexer_gather_all",
    }


@pytest.mark.parametrize(
    ("operation", "model"), [("norm_rope_insert", V41), ("entry_insert", ("model.preset=v3.2",))]
)
def test_an_insert_that_does_nothing_is_found(
    operation: str, model: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, operation, lambda **_: None)
    assert run(tiny_config(*model, SAMPLED_OFTEN)).verification.failures


# ---- cases that go wrong ------------------------------------------------------------------------


def test_memory_other_than_predicted_fails_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    right = PagedKVPool.__init__

    def one_block_more(pool: PagedKVPool, schema: object, blocks: int, device: object) -> None:
        right(pool, schema, blocks + 1, device)  # type: ignore[arg-type]

    monkeypatch.setattr(PagedKVPool, "__init__", one_block_more)
    case = run(tiny_config("model.layers=[3]"))
    assert case.status == "failed"
    assert case.error == ("the main pools of hca layers take 19584 B where the plan says 18432 B.")


def test_blocks_that_are_never_given_back_fail_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KVCacheManager, "release_request", lambda *_: None)
    case = run(tiny_config(BOOKS, "workload.concurrency=3"))
    assert case.totals
    assert case.totals.blocks_left > 0
    assert case.error == (
        f"{case.totals.blocks_left} blocks are still held although every request has ended."
    )


def test_a_refusal_of_the_cache_fails_the_case_and_is_no_leak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(KVCacheManager, "release_request", lambda *_: None)
    case = run(tiny_config(BOOKS, "workload.concurrency=1"))
    assert case.status == "failed"
    assert case.error
    assert case.error.startswith("all 1 slots are taken")
    assert case.totals
    assert (case.totals.requests, case.totals.blocks_left) == (1, 0)


# ---- Ctrl-C -------------------------------------------------------------------------------------


def interrupt_after(count: int) -> Iterator[None]:
    yield from [None] * count
    raise KeyboardInterrupt


@pytest.mark.parametrize("data", ["real", "none"])
@pytest.mark.parametrize("steps", [0, 4])
def test_ctrl_c_keeps_what_was_measured(data: str, steps: int) -> None:
    config = tiny_config(f"workload.data={data}")
    left = interrupt_after(steps)
    case = run_case({}, config, lambda _tokens: next(left))
    assert (case.status, case.error) == ("incomplete", None)
    assert case.totals
    assert (case.totals.steps, case.totals.blocks_left) == (steps, 0)
    assert bool(case.totals.wall_ns) == bool(steps)
    assert case.latencies if steps else True
    assert bool(case.operations) == (data == "real" and steps > 0)


@pytest.mark.parametrize("operation", ["window_insert", "state_append", "attend"])
def test_ctrl_c_in_the_middle_of_a_step_leaves_a_whole_record(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, left = getattr(cpu, operation), interrupt_after(8)

    def interrupted(**tensors: object) -> None:
        next(left)
        right(**tensors)

    monkeypatch.setattr(cpu, operation, interrupted)
    case = run(tiny_config("measure.warmup_steps=0"))
    assert case.status == "incomplete"
    assert case.operations
    assert Case.model_validate_json(case.model_dump_json()) == case
