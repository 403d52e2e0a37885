"""Coefficients that were planted are found, and those that nothing tells are said not to be."""

import math
from functools import cache, partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dsv4kv.cli import app
from dsv4kv.replay.clock.fit import Fit, fit_runs, open_scenes
from dsv4kv.replay.clock.measured import read_results
from tests.replay.clock.servers import (
    MEANT,
    SETTINGS,
    Server,
    as_sglang,
    as_vllm,
    lengths,
    write_lines,
)

run = partial(CliRunner().invoke, app)
ALONE = "scheduler.prompts=alone"
RUNS = ((1, 24, 8192, 256), (16, 48, 8192, 256), (64, 128, 8192, 256), (1, 24, 200, 64))
"""Concurrency, requests, longest prompt and output of a run."""


def fit(path: Path, *settings: str) -> Fit:
    scenes = open_scenes(None, [*SETTINGS, *settings], read_results([path]))
    return fit_runs(scenes, lambda *_: None)


@cache
def benched(concurrency: int, count: int, longest: int, most: int) -> dict[str, object]:
    return Server().bench(concurrency, lengths(count, longest, most), ALONE)


Runs = tuple[tuple[int, int, int, int], ...]


def sglang_file(folder: Path, *, detailed: bool, runs: Runs = RUNS) -> Path:
    given = [
        as_sglang(benched(*each), detailed=detailed, longest=each[2], most=each[3])
        for each in runs
    ]
    return write_lines(folder / "sglang.jsonl", given)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Fit:
    return fit(sglang_file(tmp_path_factory.mktemp("sglang"), detailed=True))


def test_what_the_runs_determine_is_what_was_planted(found: Fit) -> None:
    planted = Server().planted()
    sure = {each.name: each.value for each in found.estimates if each.determined}
    assert {"decode_layer_us", "tflops", "client_ms"} <= sure.keys()
    for name, value in sure.items():
        assert value == pytest.approx(getattr(planted, name), rel=0.05), name


def test_what_took_no_time_is_not_determined_and_stays(found: Fit) -> None:
    idle = [
        each for each in found.estimates if each.name in ("draft_us", "context_ns", "prefix_ns")
    ]
    assert [each.determined for each in idle] == [False] * 3
    assert all(each.value == pytest.approx(each.before, rel=0.1) for each in idle)


def test_errors_that_are_stored_are_those_of_runs_left_out(found: Fit) -> None:
    assert all(each.left_out_s is not None for each in found.compared)
    for quantity in ("ttft", "tpot", "throughput"):
        within = getattr(found.coefficients.held_out, quantity)
        own = [each for each in found.compared if each.quantity == quantity]
        ratios = [abs(math.log(each.left_out_s / each.measured_s)) for each in own]  # type: ignore[operator]
        assert sorted(ratios)[int(0.85 * (len(own) - 1))] <= math.log(within)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_statistics_alone_determine_a_layer(tmp_path: Path, engine: str) -> None:
    settings = list[str]()
    if engine == "sglang":
        path = sglang_file(tmp_path, detailed=False, runs=RUNS[:2])
    else:
        seen = [
            Server().bench(c, lengths(1) * n, "scheduler.prompts=mixed") for c, n, *_ in RUNS[:2]
        ]
        path = write_lines(tmp_path / "v.jsonl", [as_vllm(e, detailed=False) for e in seen])
        settings.append("scheduler.prompts=mixed")
    (layer,) = (e for e in fit(path, *settings).estimates if e.name == "decode_layer_us")
    assert layer.determined
    assert layer.value == pytest.approx(MEANT["decode_layer_us"] * layer.before, rel=0.05)


def slowed(document: dict[str, object], factor: float) -> dict[str, object]:
    """The same run on a clock that goes slower: all times of it are longer."""

    def longer(key: str, value: object) -> object:
        timed = key in ("ttfts", "itls", "duration") or key.endswith("_ms")
        if isinstance(value, list):
            return [longer(key, each) for each in value]
        return value * factor if timed and isinstance(value, int | float) else value

    return {key: longer(key, value) for key, value in document.items()}


def test_repeats_of_a_run_do_not_vouch_for_one_another(tmp_path: Path) -> None:
    first, second = (
        as_sglang(benched(*each), detailed=True, longest=each[2], most=each[3])
        for each in RUNS[:2]
    )
    repeats = [first, slowed(first, 1.01), slowed(first, 0.99), second]
    made = fit(write_lines(tmp_path / "repeated.jsonl", repeats))
    assert {each.left_out_s for each in made.compared} == {None}


def test_times_of_something_else_are_doubted_and_not_stored(tmp_path: Path) -> None:
    given = as_sglang(benched(*RUNS[0]), detailed=True, longest=RUNS[0][2], most=RUNS[0][3])
    path, to = write_lines(tmp_path / "slow.jsonl", [slowed(given, 1000.0)]), tmp_path / "c.yaml"
    settings = [word for each in SETTINGS for word in ("--set", each)]
    done = run(["replay", "calibrate", str(path), *settings, "--name", str(to)])
    assert done.exit_code == 2
    assert "not stored: " in " ".join(done.output.split())
    assert "off what is known of this GPU in the median" in " ".join(done.output.split())
    assert not to.exists()
    assert not fit(write_lines(tmp_path / "well.jsonl", [given])).doubts


def test_a_calibration_is_stored_and_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    path = sglang_file(tmp_path, detailed=True, runs=RUNS[:1])
    settings = [word for each in SETTINGS for word in ("--set", each)]
    done = run(["replay", "calibrate", str(path), *settings, "--name", "mine"])
    assert done.exit_code == 0, done.output
    assert "stored:" in done.stdout
    used = ["--set", "cost.calibration=mine", "--set", "workload.synthetic.requests=4"]
    written = ["--out", str(tmp_path / "out"), "--json", "-"]
    replayed = run(["replay", *settings, *used, *written])
    assert replayed.exit_code == 0, replayed.output
    assert "not calibrated for" not in replayed.stdout
    elsewhere = run(["replay", *settings, *used, "--gpu", "b200", *written])
    assert "b200, calibrated with h200" in " ".join(elsewhere.stdout.split())
    refused = run(["replay", *settings, "--set", "cost.calibration=other"])
    assert "is no file and no stored calibration: mine" in " ".join(refused.output.split())
    assert refused.exit_code == 2
