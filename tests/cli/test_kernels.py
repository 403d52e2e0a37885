"""``dsv4kv kernels``, over findings made up: what they show does not hang on a compiler."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from dsv4kv.ops.cuda.inspection import Example, Finding
from tests.cli import shell
from tests.cli.shell import text
from tests.cuda.findings import finding

run = partial(shell.invoke, "kernels")

NAMES = ("page_copy fp8_ds_mla × 32", "gather_topk fp8_ds_mla × 32")


@pytest.fixture(autouse=True)
def compiler(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Stands for compiling and inspecting; returns the architectures that were asked for."""
    asked: list[list[str]] = []

    def survey(_: Sequence[Example], architectures: Sequence[str], *__: object) -> list[Finding]:
        asked.append(list(architectures))
        return [finding(name, architecture) for name in NAMES for architecture in architectures]

    monkeypatch.setattr("dsv4kv.ops.cuda.inspection.survey", survey)
    monkeypatch.setattr("dsv4kv.ops.cuda.compile.nvrtc_version", lambda: "13.0")
    return asked


@pytest.fixture
def baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the compiler makes, as baseline."""
    monkeypatch.setattr("dsv4kv.ops.cuda.inspection.shipped", lambda _: tmp_path)
    assert run("--write-baseline").exit_code == 0
    return tmp_path / "nvrtc-13.0.json"


def change(monkeypatch: pytest.MonkeyPatch, names: Sequence[str], **values: Any) -> None:
    """Some kernels compile to something else."""

    def survey(_: Sequence[Example], architectures: Sequence[str], *__: object) -> list[Finding]:
        changed: dict[str, dict[str, Any]] = {
            name: values if name in names else {} for name in NAMES
        }
        return [finding(name, a, **more) for name, more in changed.items() for a in architectures]

    monkeypatch.setattr("dsv4kv.ops.cuda.inspection.survey", survey)


def test_all_architectures_stand_side_by_side(
    snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch, NAMES[:1], local_bytes=8)
    assert text(run().stdout) == snapshot


def test_json_gives_every_number(snapshot: SnapshotAssertion) -> None:
    result = run("--arch", "sm_90a", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == snapshot


def test_a_check_that_passes_says_what_was_checked(baseline: Path) -> None:
    result = run("--check")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "".join(result.stdout.split()) == "".join(
        "2 kernels on sm_80, sm_90a, sm_100a, sm_103a, sm_120: no local memory, each waits for "
        f"the one before; as in {baseline}.".split()
    )  # however broken into lines


LOCAL = "uses 8 B of local memory a thread (spilled registers or arrays indexed at run time)."


@pytest.mark.usefixtures("baseline")
@pytest.mark.parametrize(
    ("changed", "names", "problem"),
    [
        ({"local_bytes": 8}, NAMES[:1], LOCAL),
        ({"registers": 20}, NAMES, "changed: registers 16 → 20."),
    ],
)
def test_a_broken_promise_and_a_change_against_the_baseline_fail_the_check(
    changed: dict[str, int], names: Sequence[str], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch, names, **changed)
    if "local_bytes" in changed:  # whatever the baseline has
        assert run("--write-baseline").exit_code == 0
    result = run("--check", "--arch", "sm_90a")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines() == [f"problem: {name} on sm_90a {problem}" for name in names]


def test_without_a_baseline_the_check_fails_and_says_how_to_make_one(
    monkeypatch: pytest.MonkeyPatch, baseline: Path, compiler: list[list[str]]
) -> None:
    monkeypatch.setattr("dsv4kv.ops.cuda.compile.nvrtc_version", lambda: "13.5")
    compiler.clear()
    result = run("--check")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"error: no baseline of NVRTC 13.5 to compare with: {baseline.parent}/nvrtc-13.5.json is "
        "not there (--write-baseline makes it).\n"
    )
    assert compiler == []  # told before anything is compiled


def test_the_shipped_baseline_of_this_version_is_the_one_that_is_compared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for version in ("13.0", "13.5"):
        monkeypatch.setattr("dsv4kv.ops.cuda.compile.nvrtc_version", lambda v=version: v)
        result = run("--check", "--arch", "sm_90a")
        assert result.exit_code == 1  # those made up are not in it
        assert "is in the baseline, but no longer in the catalogue" in result.stderr
