"""What doctor says of the host."""

from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from dsv4kv.diagnose.doctor.machine import Check, check_folder, check_machine

Usage = namedtuple("Usage", "total used free")
HERE: dict[str, Any] = {
    "cpu": "AMD EPYC 9554",
    "cpu_count": 8,
    "load_1min": 0.4,
    "governor": "performance",
    "memory_bytes": 32 << 30,
}


@pytest.fixture(autouse=True)
def quiet_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    have(24 << 20, monkeypatch)
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(1 << 40, 0, 1 << 39))


def have(kib: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """So much memory is available."""
    memory = SimpleNamespace(available=kib << 10)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)


def look(tmp_path: Path, **changes: Any) -> dict[str, Check]:
    found = check_machine(HERE | changes, tmp_path / "results")
    return {check.name: check for check in found}


def test_a_good_machine_needs_nothing(tmp_path: Path) -> None:
    checks = look(tmp_path)
    assert {check.status for check in checks.values()} == {"good"}
    assert not any(check.advice for check in checks.values())
    assert checks["memory"].found == "32.0 GiB in all, 24.0 GiB available"


@pytest.mark.parametrize(("load", "status"), [(1.9, "good"), (2.1, "note")])
def test_others_at_work_are_told_by_the_load_of_each_cpu(
    tmp_path: Path, load: float, status: str
) -> None:
    check = look(tmp_path, load_1min=load)["load"]
    assert check.status == status
    assert bool(check.advice) == (status == "note")


def test_a_governor_that_saves_power_is_told_with_the_command_that_changes_it(
    tmp_path: Path,
) -> None:
    check = look(tmp_path, governor="powersave")["governor"]
    assert (check.status, check.found) == ("note", "powersave")
    assert check.advice == "sudo cpupower frequency-set --governor performance"


def test_what_a_machine_does_not_tell_is_said(tmp_path: Path) -> None:
    checks = look(tmp_path, cpu=None, cpu_count=None, load_1min=None, governor=None)
    assert checks["CPU"].found == "model unknown, ? to use"
    assert checks["load"].found == "not available"
    assert checks["governor"].found.startswith("not available")


def test_too_little_memory_for_the_default_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    have(512 << 10, monkeypatch)
    check = look(tmp_path)["memory"]
    assert check.status == "broken"
    assert check.advice == "the default needs about 1.00 GiB: end other programs."


def test_memory_that_is_not_told_is_not_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError

    monkeypatch.setattr(psutil, "virtual_memory", fail)
    assert look(tmp_path, memory_bytes=None)["memory"].status == "note"


def test_a_folder_is_judged_by_the_one_it_will_be_made_in(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b" / "c"
    assert check_folder("t", "n", deep, "e", "a").status == "good"
    assert not (tmp_path / "a").exists()


def test_a_file_in_the_way_of_a_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file")
    check = check_folder("t", "n", tmp_path / "results", "e", "name another")
    assert (check.status, check.advice) == ("missing", "name another")


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(1 << 40, 0, 5 << 20))
    check = check_folder("t", "n", tmp_path, "e", "a")
    assert check.status == "missing"
    assert check.found.endswith("5.00 MiB free")


def test_records_that_can_be_written_nowhere_are_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "results").write_text("a file")
    assert look(tmp_path)["results"].status == "missing"  # the temporary folder takes them
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "results"))
    assert look(tmp_path)["results"].status == "broken"
