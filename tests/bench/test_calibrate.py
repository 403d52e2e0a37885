"""The noise floor of a machine, out of launches whose noise the test decides."""

import json
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from dsv4kv.bench import calibrate as ca
from dsv4kv.bench.compare.verdict import compare_pairs, compare_sides
from dsv4kv.bench.launches import Outcome, Task
from dsv4kv.errors import Dsv4kvError
from dsv4kv.runs.schema import Peak, RunRecord
from tests.runs.records import make_case, make_latency, make_operation, make_record

MEMCPY_GBPS = 11.5
NOW = datetime(2026, 11, 21, tzinfo=UTC)


def make_outcome(record: RunRecord | None, error: str | None = None) -> Outcome:
    (task,) = set(ca.calibration_tasks())
    status: Any = "complete" if record else "crashed"
    return Outcome(task, NOW, NOW, status, error, record, False, 0 if record else 1)


def make_launch(factor: float) -> Outcome:
    """A launch in which everything takes ``factor`` times as long."""
    step = make_latency("step")
    few = make_latency("admit", samples=29)
    latencies = [
        each.model_copy(update={"samples_ns": [round(ns * factor) for ns in each.samples_ns]})
        for each in (step, few)
    ]
    copy = Peak(name="copy", bytes=2_000_000, samples_ns=[round(1_000 * factor)] * 8)
    operations = [make_operation(gbps=3.0 / factor)]
    return make_outcome(
        make_record(make_case(operations=operations, latencies=latencies, peaks=[copy]))
    )


def make_launches(sigma: float, seed: int = 0) -> list[Outcome]:
    random = Random(seed)
    return [make_launch(random.lognormvariate(0, sigma)) for _ in range(ca.LAUNCHES)]


@pytest.mark.parametrize("sigma", [0.01, 0.04])
def test_the_floor_is_what_the_ratios_of_seven_launches_a_side_are_from_one(sigma: float) -> None:
    """Against two fresh sides of seven, which the deals of fourteen stand for."""
    rng = np.random.default_rng(1)
    before, after = np.exp(rng.normal(0, sigma, (2, 20_000, 7)))
    apart = np.abs(np.median(compare_sides(before, after), axis=1))
    rows = np.exp(rng.normal(0, sigma, (80, ca.LAUNCHES))).tolist()
    assert ca.noise_floor(rows) == pytest.approx(np.expm1(np.quantile(apart, 0.975)), rel=0.1)


def test_quantities_of_few_samples_tell_of_themselves_and_are_left_out() -> None:
    calibration = ca.calibrate(make_launches(0.02), [], MEMCPY_GBPS)
    assert set(calibration.medians_ns) == {"gather_topk csa", "step"}
    assert {len(medians) for medians in calibration.medians_ns.values()} == {ca.LAUNCHES}


def test_pairs_have_a_floor_of_their_own_that_the_machines_moods_do_not_raise() -> None:
    """Both launches of a pair are up to ten times as slow as others, and 1 % apart by chance."""
    random = Random(2)
    moods = [random.uniform(1, 10) for _ in range(ca.LAUNCHES // 2)]
    pairs = [make_launch(mood * random.lognormvariate(0, 0.01)) for mood in moods for _ in "AB"]
    calibration = ca.calibrate(make_launches(0.04), pairs, MEMCPY_GBPS)
    assert calibration.noise_floor > 0.02
    assert calibration.noise_floor_in_turns
    assert 0.002 < calibration.noise_floor_in_turns < 0.02
    assert calibration.launches == 2 * ca.LAUNCHES
    assert {len(ratios) for ratios in calibration.pair_ratios.values()} == {ca.LAUNCHES // 2}


def test_the_floor_in_turns_is_what_the_ratios_of_seven_pairs_are_from_one() -> None:
    rng = np.random.default_rng(4)
    apart = np.abs(np.median(compare_pairs(np.exp(rng.normal(0, 0.02, (20_000, 7)))), axis=1))
    rows = np.exp(rng.normal(0, 0.02, (160, 7))).tolist()
    truth = np.expm1(np.quantile(apart, 0.975))
    assert ca.noise_floor_in_turns(rows) == pytest.approx(truth, rel=0.1)


@pytest.mark.parametrize(("device", "together"), [("cpu", [1, 2]), ("cuda", [1])])
def test_two_caches_at_once_are_not_asked_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch, device: str, together: list[int]
) -> None:
    asked: list[int] = []

    def run(tasks: list[Task], _on_progress: Any, together: int = 1) -> list[Outcome]:
        asked.append(together)
        return [make_outcome(make_record(make_case(device=device)))] * len(tasks)

    monkeypatch.setattr("dsv4kv.bench.calibrate.run_launches", run)
    alone, in_turns = ca.run_calibration(lambda _outcomes, _task: None)
    assert asked == together
    assert [len(alone), len(in_turns)] == [ca.LAUNCHES, ca.LAUNCHES * (len(together) - 1)]


def test_a_launch_that_was_lost_leaves_nothing() -> None:
    outcomes = [*make_launches(0.02)[1:], make_outcome(None, "killed by SIGSEGV")]
    with pytest.raises(
        Dsv4kvError, match=r"^13 of 14 launches .* \(another: killed by SIGSEGV\): nothing"
    ):
        ca.calibrate(outcomes, [], MEMCPY_GBPS)


def test_what_is_stored_is_what_compare_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    calibration = ca.calibrate(make_launches(0.02), make_launches(0.01), MEMCPY_GBPS)
    ca.save_calibration(calibration, ca.calibration_path())
    assert ca.read_calibration(ca.calibration_path()) == calibration
    assert calibration.noise_floor_in_turns != calibration.noise_floor
    stored = json.loads((tmp_path / "cache" / "dsv4kv" / "calibration.json").read_text())
    assert stored["medians_ns"] == calibration.medians_ns
    assert stored["launches"] == 2 * ca.LAUNCHES
