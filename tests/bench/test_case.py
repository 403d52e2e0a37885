"""Configurations from the first request to the last, and what is refused before."""

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.bench.build import check_memory, plan_from
from dsv4kv.bench.run import run_bench, run_case
from dsv4kv.bench.serve.loop import open_requests
from dsv4kv.cache.manager import KVCacheManager, PagedKVPool
from dsv4kv.config.bench import BenchConfig, Synthetic, WorkloadSection
from dsv4kv.config.load import expand_axes, load_config
from dsv4kv.errors import ConfigError, TraceError
from dsv4kv.ops import cpu
from dsv4kv.runs.points import Invocation
from dsv4kv.runs.schema import Case
from dsv4kv.traces.synth import synthesize
from tests.bench.settings import BOOKS, TINY, tiny_config


def run(config: BenchConfig) -> Case:
    return run_case({}, config, lambda _tokens: None)


# ---- models whose layers are of other kinds -----------------------------------------------------

V41 = ("model.preset=v4.1-flash", "model.layers=[0, 2, 3, 20, 21, 24]")
"""A window; an owner of ratio 2 and a reader; one of ratio 1, readers without and with keys."""
SAMPLED_OFTEN = "measure.verify_every=1"


@pytest.mark.parametrize("main", ["fp8_ds_mla", "bf16", "fp8"])
def test_v32_moves_real_bytes_and_they_are_right(main: str) -> None:
    layers = "model.layers=[0, 60]"
    case = run(
        tiny_config("model.preset=v3.2", layers, SAMPLED_OFTEN, f"model.formats.main={main}")
    )
    assert (case.status, case.verification.failures) == ("complete", [])
    assert set(case.verification.by_operation) == {"compressed KV", "indexer keys"}
    assert {"entry_insert", "indexer_insert"} < {each.name for each in case.operations}


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


@pytest.mark.parametrize("operation", ["window_insert", "attend"])
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


def invoke(*axes: str, settings: tuple[str, ...] = (BOOKS,)) -> Invocation[BenchConfig]:
    given = {setting.partition("=")[0] for setting in (*settings, *axes)}
    overrides = [*(each for each in TINY if each.partition("=")[0] not in given), *settings]
    loaded = load_config("smoke", overrides)
    cases = expand_axes(loaded, overrides, axes)
    return Invocation(["dsv4kv", "bench", "smoke"], loaded, cases, overrides, axes)


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
    record = run_bench(invoke(axis), Mock())
    assert record.status == "failed"
    assert [case.status for case in record.cases] == statuses
    failed = record.cases[statuses.index("failed")]
    assert failed.error
    assert sentence in failed.error


def test_a_defective_trace_is_refused_before_anything_runs(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(LINE + LINE[:30])
    watcher = Mock()
    invocation = invoke(
        "cache.sharing=model,type,layer", settings=(BOOKS, f"workload.trace={trace}")
    )
    with pytest.raises(TraceError, match=r"trace\.jsonl:2: "):
        run_bench(invocation, watcher)
    watcher.case.assert_not_called()


@given(skip=st.integers(0, 25), limit=st.none() | st.integers(1, 25))
def test_skip_and_limit_take_a_slice(skip: int, limit: int | None) -> None:
    made = Synthetic(requests=20)
    asked = WorkloadSection(trace=None, synthetic=made, skip=skip, limit=limit)
    every = list(synthesize(made, 0))
    end = None if limit is None else skip + limit
    assert list(open_requests(asked, seed=0)) == every[skip:end]
