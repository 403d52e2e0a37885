"""The committed machine code: what changed is told, number by number."""

import os
import signal
import time
from pathlib import Path

import pytest

from dsv4kv.errors import RecordError
from dsv4kv.ops.cuda import compile as compiling
from dsv4kv.ops.cuda import inspection
from dsv4kv.ops.cuda.inspection import drift, load_baseline, make_baseline, save_baseline
from dsv4kv.ops.launches.catalogue import catalogue
from dsv4kv.ops.launches.launch import KernelModule
from tests.cuda.findings import finding


def test_a_baseline_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = make_baseline([finding(), finding(architecture="sm_80")], "13.0")
    save_baseline(made, tmp_path / "sass" / "baseline.json")
    assert load_baseline(tmp_path / "sass" / "baseline.json") == made


def test_every_number_that_changed_is_told_before_and_after() -> None:
    before = make_baseline([finding()], "13.0")
    now = finding(registers=18, accesses={"LDG.64": 2, "LDG.32": 4, "STG.128": 1})
    assert list(drift([now], before)) == [
        "page_copy fp8 × 32 on sm_90a changed: registers 16 → 18, LDG.128 1 → 0, LDG.32 0 → 4."
    ]


def test_new_and_gone_kernels_are_told() -> None:
    before = make_baseline([finding("page_copy fp4 × 64")], "13.0")
    assert list(drift([finding()], before)) == [
        "page_copy fp8 × 32 on sm_90a is not in the baseline.",
        "page_copy fp4 × 64 is in the baseline, but no longer in the catalogue.",
    ]


def test_architectures_that_were_not_asked_for_are_not_missed() -> None:
    both = [finding(), finding(architecture="sm_80")]
    assert list(drift(both[:1], make_baseline(both, "13.0"))) == []


@pytest.mark.parametrize("content", ["", "[]", '{"nvrtc": "13.0"}', '{"nvrtc": 1, "kernels": 2}'])
def test_a_file_that_is_no_baseline_is_refused_with_what_to_do(
    content: str, tmp_path: Path
) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(content)
    with pytest.raises(RecordError) as refusal:
        load_baseline(path)
    assert str(refusal.value).startswith(f"{path} is no baseline (")
    assert str(refusal.value).endswith("write it again with dsv4kv kernels --write-baseline.")


def test_a_baseline_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "baseline.json"
    with pytest.raises(RecordError) as refusal:
        save_baseline(make_baseline([finding()], "13.0"), path)
    assert str(refusal.value) == (
        f"{path} cannot be written (File exists): name another file with --baseline."
    )


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
