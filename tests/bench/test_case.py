"""Configurations from the first request to the last, and what is refused before."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.bench.build import check_memory, plan_from
from dsv4kv.bench.run import run_bench, run_case
from dsv4kv.bench.serve.loop import open_requests
from dsv4kv.cache.manager import KVCacheManager, PagedKVPool
from dsv4kv.config.bench import BenchConfig, Synthetic, WorkloadSection
from dsv4kv.config.load import Point, expand_axes, load_config
from dsv4kv.errors import ConfigError, TraceError
from dsv4kv.ops import cpu
from dsv4kv.runs.points import Invocation
from dsv4kv.runs.schema import Case, RunRecord
from dsv4kv.traces.synth import synthesize
from tests.bench.settings import BOOKS, TINY, tiny_config


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


def test_a_cache_larger_than_memory_is_refused_before_it_is_built() -> None:
    config = tiny_config("workload.concurrency=1000")
    plan = plan_from(config)
    needed = plan.total_bytes + 2 * config.measure.memcpy_bytes + 32 * plan.num_blocks["model"]
    needed += 4 * 64 * (plan.max_context_tokens // 4 + plan.max_context_tokens // 128)  # angles
    check_memory(config, plan, needed, None)
    with pytest.raises(ConfigError, match=r"^this run needs \d+ MiB .* workload.data to none\.$"):
        check_memory(config, plan, needed - 1, None)


class Watcher:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.total_tokens = 0
        self.cases: list[Point[BenchConfig]] = []
        self.tokens = 0

    def start(self, total_tokens: int) -> None:
        self.total_tokens = total_tokens

    def case(self, case: Point[BenchConfig]) -> None:
        self.cases.append(case)

    def advance(self, tokens: int) -> None:
        self.tokens += tokens


def invoke(*axes: str, settings: tuple[str, ...] = (BOOKS,)) -> Invocation[BenchConfig]:
    given = {setting.partition("=")[0] for setting in (*settings, *axes)}
    overrides = [*(each for each in TINY if each.partition("=")[0] not in given), *settings]
    loaded = load_config("smoke", overrides)
    cases = expand_axes(loaded, overrides, axes)
    return Invocation(["dsv4kv", "bench", "smoke"], loaded, cases, overrides, axes)


def run_all(*axes: str, settings: tuple[str, ...] = (BOOKS,)) -> RunRecord:
    return run_bench(invoke(*axes, settings=settings), Watcher())


SHARING = "cache.sharing=model,type,layer"
LINE = '{"arrival_s": 0, "input_tokens": 5, "output_tokens": 2}\n'


# ---- cases that go wrong ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("axis", "statuses", "sentence"),
    [
        ("model.preset=v4-flash,v4-pto,v4-pro", ["complete", "failed", "complete"], "v4-pto"),
        (
            "cache.max_context_tokens=10,1K",
            ["failed", "complete"],
            "none of 3 requests fits into the cache",
        ),
        ("workload.concurrency=100G,1", ["failed", "complete"], "this run needs"),
    ],
)
def test_a_case_that_fails_does_not_end_a_sweep(
    axis: str, statuses: list[str], sentence: str
) -> None:
    record = run_all(axis)
    assert record.status == "failed"
    assert [case.status for case in record.cases] == statuses
    failed = record.cases[statuses.index("failed")]
    assert failed.error
    assert sentence in failed.error


def test_a_defective_trace_is_refused_before_anything_runs(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(LINE + LINE[:30])
    watcher = Watcher()
    invocation = invoke(SHARING, settings=(BOOKS, f"workload.trace={trace}"))
    with pytest.raises(TraceError, match=r"trace\.jsonl:2: "):
        run_bench(invocation, watcher)
    assert watcher.cases == []


SYNTHETIC = Synthetic(requests=20)


def synthetic(skip: int = 0, limit: int | None = None) -> WorkloadSection:
    return WorkloadSection(trace=None, synthetic=SYNTHETIC, skip=skip, limit=limit)


@given(skip=st.integers(0, 25), limit=st.none() | st.integers(1, 25))
def test_skip_and_limit_take_a_slice(skip: int, limit: int | None) -> None:
    every = list(synthesize(SYNTHETIC, 0))
    end = None if limit is None else skip + limit
    assert list(open_requests(synthetic(skip, limit), seed=0)) == every[skip:end]
