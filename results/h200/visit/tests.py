"""Step: tests that need a GPU; on the twin those that stand in for them."""

from pathlib import Path

import pytest

from visit.desk import Desk

_TREE = Path(__file__).resolve().parents[3]
_ON_GPU = {
    "tests": ["tests/cuda/test_gpu.py"],
    "bench_tests": ["tests/cuda/test_gpu_bench.py"],
}
_ON_TWIN = {
    "tests": ["tests/cuda/test_gpu.py", "tests/ops/test_operations.py", "-k", "page_copy"],
    "bench_tests": [
        "tests/cuda/test_gpu_bench.py",
        "tests/bench/test_gpu_case.py",
        "-k",
        "graphs_leave or full_before or whose_bytes",
    ],
}


class _Tally:
    """Counts tests, and notes each that fails at once."""

    def __init__(self, desk: Desk) -> None:
        self.failed, self.passed = 0, 0
        self._desk = desk

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed += 1
            self._desk.note("failed", test=report.nodeid, when=report.when)
        self.passed += report.passed and report.when == "call"


def run(desk: Desk, name: str) -> None:
    """Answer ``NAME_failed`` and ``NAME_passed``."""
    tally = _Tally(desk)
    first, *rest = (_ON_TWIN if desk.small else _ON_GPU)[name]
    chosen = [str(_TREE / word) if word.startswith("tests/") else word for word in (first, *rest)]
    # what a package there has put off for later is no wrong kernel
    kept = [f"-Wdefault::{kind}Warning" for kind in ("Deprecation", "Future")]
    code = pytest.main(["-v", "-p", "no:cacheprovider", *kept, *chosen], plugins=[tally])
    if not tally.passed + tally.failed:
        raise SystemExit("no test ran")
    stopped = code == pytest.ExitCode.INTERRUPTED  # the step's time is up: its counts are answers
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and not stopped:
        raise SystemExit(f"pytest ended with {code!r}")
    desk.answer(f"{name}_failed", tally.failed, whole=not stopped)
    desk.answer(f"{name}_passed", tally.passed, whole=not stopped)
    if stopped:
        raise KeyboardInterrupt
