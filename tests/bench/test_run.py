"""A whole run: its cases, its record, and what happens to it when one of them goes wrong."""

from pathlib import Path

import pytest

from dsv4kv.bench.device import measure_memcpy
from dsv4kv.bench.run import run_bench
from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.load import Point, expand_axes, load_config
from dsv4kv.errors import ConfigError, TraceError
from dsv4kv.runs.assemble import Invocation
from dsv4kv.runs.schema import RunRecord
from tests.bench.settings import BOOKS, TINY


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


def run(*axes: str, settings: tuple[str, ...] = (BOOKS,)) -> RunRecord:
    return run_bench(invoke(*axes, settings=settings), Watcher())


SHARING = "cache.sharing=model,type,layer"
MEMCPY = "dsv4kv.bench.run.measure_memcpy"
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
    record = run(axis)
    assert record.status == "failed"
    assert [case.status for case in record.cases] == statuses
    failed = record.cases[statuses.index("failed")]
    assert failed.error
    assert sentence in failed.error


def test_the_only_case_is_refused_instead_of_recorded() -> None:
    with pytest.raises(ConfigError, match="v4-pto"):
        run(settings=("model.preset=v4-pto",))


def test_a_defective_trace_is_refused_before_anything_runs(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(LINE + LINE[:30])
    watcher = Watcher()
    invocation = invoke(SHARING, settings=(BOOKS, f"workload.trace={trace}"))
    with pytest.raises(TraceError, match=r"trace\.jsonl:2: "):
        run_bench(invocation, watcher)
    assert watcher.cases == []


def test_ctrl_c_while_a_later_case_is_built_keeps_the_cases_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = iter(range(9))

    def interrupted(size_bytes: int) -> list[int]:
        if next(calls) == 1:
            raise KeyboardInterrupt
        return measure_memcpy(size_bytes)

    monkeypatch.setattr(MEMCPY, interrupted)
    record = run(SHARING, settings=("model.layers=[0]",))
    assert [case.status for case in record.cases] == ["complete", "incomplete"]
    assert (record.cases[1].totals, record.cases[1].error) == (None, None)
    assert record.cases[0].operations
