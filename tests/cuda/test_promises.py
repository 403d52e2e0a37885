"""What is wrong with machine code, and what has changed since the baseline."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from dsv4kv.ops.cuda import compile as compiling
from dsv4kv.ops.cuda import inspection
from dsv4kv.ops.cuda.inspection import (
    broken_promises,
    catalogue,
    drift,
    load_baseline,
    save_baseline,
)
from dsv4kv.ops.launches import KernelModule
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


def test_ctrl_c_ends_a_survey_before_it_has_compiled_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = []

    def compile_module(module: KernelModule, architecture: str) -> bytes:
        time.sleep(0.01)
        compiled.append(architecture)
        if len(compiled) == 10:
            os.kill(os.getpid(), signal.SIGINT)
        return b""

    monkeypatch.setattr(inspection, "find_disassembler", lambda: None)
    monkeypatch.setattr(inspection, "check_architecture", lambda _: None)
    monkeypatch.setattr(inspection, "inspect_cubins", lambda _, cubins: [[] for _ in cubins])
    monkeypatch.setattr(compiling, "compile_module", compile_module)
    monkeypatch.setattr(compiling, "cache_name", lambda module, sm: f"{hash(module)}-{sm}")
    monkeypatch.setattr(compiling, "_find", lambda _: None)
    monkeypatch.setattr(compiling, "_keep", lambda *_: None)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            inspection.survey(catalogue(), ["sm_80", "sm_90a", "sm_100a", "sm_120"])
    finally:
        signal.signal(signal.SIGINT, before)
    assert "sm_120" not in compiled
