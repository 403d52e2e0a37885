"""What is wrong with machine code, and what has changed since the baseline."""

from pathlib import Path
from typing import Any

import pytest

from dsv4kv.ops.cuda import inspection
from dsv4kv.ops.cuda.inspection import (
    broken_promises,
    drift,
    load_baseline,
    save_baseline,
)
from tests.cuda.findings import GOOD, finding

COPY = "page_copy fp8 × 32"
BROKEN: list[tuple[str, dict[str, Any], str | None]] = [
    (COPY, {}, None),
    (COPY, {"local_bytes": 8}, "uses 8 B of local memory a thread (spilled registers or arrays"),
    (COPY, {"accesses": GOOD | {"LDL.64": 1}}, "uses 0 B of local memory a thread"),
    (
        COPY,
        {"early": None},
        "never waits for the kernel in front of it: begin with begin_kernel().",
    ),
    (COPY, {"early": 1}, "touches memory before it waits for the kernel in front of it"),
    (COPY, {"early": 1, "architecture": "sm_80"}, None),
]


@pytest.mark.parametrize(("name", "found", "problem"), BROKEN)
def test_a_broken_promise_is_told(name: str, found: dict[str, Any], problem: str | None) -> None:
    problems = list(broken_promises([finding(name, **found)]))
    if problem is None:
        assert problems == []
    else:
        assert problems[0].startswith(f"{name} on sm_90a {problem}")


COPY_WITH_MORE = finding(registers=18, accesses={"LDG.64": 2, "LDG.32": 4, "STG.128": 1})
DRIFT = {
    "page_copy fp8 × 32": [
        "page_copy fp8 × 32 on sm_90a changed: registers 16 → 18, LDG.128 1 → 0, LDG.32 0 → 4."
    ],
    "page_copy fp4 × 64": [
        "page_copy fp8 × 32 on sm_90a is not in the baseline.",
        "page_copy fp4 × 64 is in the baseline, but no longer in the catalogue.",
    ],
}


@pytest.mark.parametrize("before", DRIFT)
def test_what_changed_since_a_baseline_is_told(
    before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "shipped", lambda _: tmp_path)
    both = [finding(before), finding(before, "sm_80")]  # one that was not asked for now
    save_baseline(both, "13.0")
    assert list(drift([COPY_WITH_MORE], load_baseline("13.0"))) == DRIFT[before]
    assert list(drift(both[:1], load_baseline("13.0"))) == []
