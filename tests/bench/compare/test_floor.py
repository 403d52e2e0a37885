"""The smallest change that counts: configured, or calibrated on this machine."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dsv4kv.bench.calibrate import calibration_path, find_floor, parse_floor, read_calibration
from dsv4kv.bench.compare.side import Side
from dsv4kv.errors import ConfigError
from dsv4kv.runs.environment import capture_environment
from tests.bench.compare.launched import make_launched_record, make_side
from tests.bench.compare.test_pairs import moody_record
from tests.runs.records import make_environment


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def calibrate(value: object, **others: object) -> None:
    calibration_path().parent.mkdir(parents=True, exist_ok=True)
    calibration_path().write_text(json.dumps({"noise_floor": value, "peaks": []} | others))


def sides(hostname_sha256: str | None = None) -> tuple[Side, Side]:
    here = capture_environment()["hostname_sha256"]
    environment = make_environment(hostname_sha256=hostname_sha256 or here)
    record = make_launched_record(environment=environment)
    return make_side("A", record), make_side("B", record)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1%", 0.01), ("1 %", 0.01), ("0.01", 0.01), ("2.5%", 0.025), ("0", 0.0), (" 3% ", 0.03)],
)
def test_a_floor_is_a_share_or_percents(text: str, value: float) -> None:
    assert parse_floor(text) == pytest.approx(value)


def test_a_machine_noisier_than_the_floor_raises_it() -> None:
    calibrate(0.032)
    floor = find_floor(0.01, sides())
    assert str(floor) == "3.2 % (noise floor of this machine, calibrated)"


def test_launches_that_took_turns_have_the_floor_of_such_launches() -> None:
    sides = make_side("A", moody_record(1)), make_side("B", moody_record(2))
    here = make_environment(hostname_sha256=capture_environment()["hostname_sha256"])
    first, second = (
        replace(side, records=(side.records[0].model_copy(update={"environment": here}),))
        for side in sides
    )
    calibrate(0.032, noise_floor_in_turns=0.015)
    assert find_floor(0.01, (first, second)).value == 0.015
    calibrate(0.032, noise_floor_in_turns=None)
    assert find_floor(0.01, (first, second)).value == 0.01
    calibrate(0.032)  # by an older version
    assert find_floor(0.01, (first, second)).value == 0.01
    calibrate(0.032, noise_floor_in_turns="much")
    with pytest.raises(ConfigError, match="run `dsv4kv doctor --calibrate` again"):
        find_floor(0.01, (first, second))


def test_a_calibration_does_not_speak_for_records_of_another_machine() -> None:
    calibrate(0.032)
    floor = find_floor(0.01, sides("f" * 64))
    assert str(floor) == "1 % (as configured; the calibration is of another machine)"


@pytest.mark.parametrize("text", ["", "[]", "{}", "{", "\x00"])
def test_a_damaged_calibration_is_refused_with_what_to_do(text: str) -> None:
    calibrate(0)
    calibration_path().write_text(text)
    with pytest.raises(ConfigError, match="or remove the file"):
        read_calibration(calibration_path())


def test_a_calibration_of_another_machine_in_a_shared_home_does_not_count() -> None:
    calibrate(0.032, machine={"hostname_sha256": "f" * 64})
    floor = find_floor(0.01, sides())
    assert str(floor) == "1 % (as configured; the calibration is of another machine)"
    calibrate(0.032, machine={"hostname_sha256": capture_environment()["hostname_sha256"]})
    assert find_floor(0.01, sides()).value == 0.032
