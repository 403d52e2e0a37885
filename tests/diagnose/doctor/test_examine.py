"""All checks together."""

import json
from pathlib import Path

import pytest

from dsv4kv.diagnose.doctor.examine import examine
from dsv4kv.diagnose.doctor.machine import Check
from tests.gpu_twin import TwinGpu, twin_device


def look(calibration: Path) -> dict[str, Check]:
    return {check.name: check for check in examine(calibration)}


def test_every_topic_is_looked_at(tmp_path: Path) -> None:
    topics = [check.topic for check in examine(tmp_path / "none.json")]
    assert list(dict.fromkeys(topics)) == [
        "machine",
        "software",
        "GPU",
        "profilers",
        "peers",
        "timers",
    ]


def test_a_machine_that_was_never_calibrated_is_told_how(tmp_path: Path) -> None:
    check = look(tmp_path / "none.json")["calibration"]
    assert (check.status, check.found) == ("missing", "none yet")
    assert "dsv4kv doctor --calibrate" in str(check.advice)


def test_a_calibration_of_another_machine_is_none(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps({"noise_floor": 0.02, "machine": {"hostname_sha256": "f" * 64}}))
    check = look(path)["calibration"]
    assert (check.status, check.found) == ("missing", "that of another machine")


def test_a_calibration_is_told(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps({"noise_floor": 0.0234}))
    check = look(path)["calibration"]
    assert check.status == "good"
    assert check.found.startswith("noise floor 2.34 %, 20")


def test_a_floor_that_hides_changes_is_told(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps({"noise_floor": 0.66}))
    check = look(path)["calibration"]
    assert (check.status, check.found) == ("note", "noise floor 66 %")
    assert str(check.advice).startswith("a floor this wide hides changes. Again: dsv4kv doctor")


def test_a_calibration_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text("{")
    check = look(path)["calibration"]
    assert check.status == "missing"
    assert "holds no noise_floor" in check.found


def test_where_there_is_a_gpu_its_clock_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsv4kv.bench.device.find_device", lambda _: twin_device(TwinGpu()))
    monkeypatch.setattr(
        "dsv4kv.diagnose.doctor.gpu.check_device_clock",
        lambda _: Check("timers", "GPU events", "good", "agree", ""),
    )
    assert look(tmp_path)["GPU events"].found == "agree"


def test_a_gpu_in_trouble_is_told_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("CUDA out of memory. Tried …\nmore")

    monkeypatch.setattr("dsv4kv.bench.device.find_device", lambda _: twin_device(TwinGpu()))
    monkeypatch.setattr("dsv4kv.diagnose.doctor.gpu.check_device_clock", fail)
    check = look(tmp_path)["GPU events"]
    assert (check.status, check.found) == ("missing", "CUDA out of memory. Tried …")
