"""Ours and a plain re-statement side by side: ``pytest tests/benchmarks --benchmark-only``."""

from collections.abc import Callable

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from tests.benchmarks.medians import Measure, Remark, lines, medians_ns, remarks

torch.set_num_threads(1)


@pytest.fixture
def measure(benchmark: BenchmarkFixture) -> Measure:
    """Time ``call`` for ``rounds`` rounds, an untimed ``setup`` before each; median in ns."""

    def run(
        group: str,
        name: str,
        call: Callable[[], object],
        *,
        rounds: int,
        setup: Callable[[], None] | None = None,
    ) -> float | None:
        benchmark.group = group
        benchmark.pedantic(  # type: ignore[no-untyped-call]
            call, setup=setup, rounds=rounds, warmup_rounds=max(1, rounds // 20)
        )
        if benchmark.stats is None:  # --benchmark-disable
            return None
        median_ns = float(benchmark.stats.stats.median) * 1e9
        medians_ns.setdefault(group, {})[name] = median_ns
        return median_ns

    return run


@pytest.fixture
def remark() -> Remark:
    """Add a line under the medians."""
    return remarks.append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if medians_ns:
        terminalreporter.section("medians side by side")
        for line in lines():
            terminalreporter.write_line(line)
