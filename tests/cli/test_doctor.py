"""``dsv4kv doctor``, over checks made up: what it shows does not hang on this machine."""

import json
from functools import partial
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from dsv4kv.diagnose.doctor import Check
from tests.cli import shell
from tests.cli.shell import text

run = partial(shell.invoke, "doctor")

CHECKS = [
    Check("machine", "CPU", "good", "AMD EPYC 9554, 8 to use", "the CPU backend"),
    Check("machine", "load", "note", "7.3", "timings", "others are at work: stop them."),
    Check("GPU", "driver", "missing", "none that answers", "GPU runs", "install its driver."),
    Check("GPU", "GPU", "missing", "none", "bench --device cuda"),
]
BROKEN = Check("software", "torch", "broken", "cannot be imported", "everything", "install anew")


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Check]:
    """What is found on this machine; its cache is the test's."""
    checks = list(CHECKS)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("dsv4kv.diagnose.doctor.examine", lambda: iter(checks))
    return checks


def test_what_to_do_is_told_first_and_then_what_is_here_by_topic(
    snapshot: SnapshotAssertion,
) -> None:
    result = run("--verbose")
    assert result.exit_code == 0
    assert text(result.stdout) == snapshot


@pytest.mark.parametrize("broken", [True, False])
def test_json_gives_every_check(machine: list[Check], broken: bool) -> None:
    machine += [BROKEN] * broken
    result = run("--json")
    document = json.loads(result.stdout)
    assert document["ok"] is not broken
    assert [Check(**check) for check in document["checks"]] == machine
    assert result.exit_code == 8 * broken
    assert ("torch: install anew" in run().stdout) == broken


def test_this_machine_itself_is_examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = run("--json")
    document = json.loads(done.stdout)
    assert {check["name"] for check in document["checks"]} >= {"CPU", "torch", "GPU", "nsys"}
    assert done.exit_code == (0 if document["ok"] else 8)
    assert list(tmp_path.iterdir()) == []  # looking leaves nothing behind
