"""``dsv4kv bench``: what is printed, written and returned, when all is well and when not."""

import re
from functools import partial
from pathlib import Path

import pytest
from typer.testing import Result

from dsv4kv.runs.schema import RunRecord
from dsv4kv.runs.store import dumps, load_record, loads
from tests.bench.settings import TINY
from tests.cli import shell

invoke = partial(shell.invoke, "bench")

TINY_OPTIONS = [word for setting in TINY for word in ("--set", setting)]
LINE = '{"arrival_s": 0, "input_tokens": 60, "output_tokens": 4}\n'


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def bench(*arguments: str) -> Result:
    """A run of three short requests."""
    return invoke("smoke", *TINY_OPTIONS, *arguments)


def books(*arguments: str) -> Result:
    return bench("--data", "none", *arguments)


def records(folder: Path = Path("results")) -> list[RunRecord]:
    return [load_record(path) for path in sorted(folder.glob("*"))]


def files() -> list[str]:
    """Everything below the working folder."""
    return sorted(str(path) for path in Path().rglob("*") if path.is_file())


# ---- what a run prints and writes ---------------------------------------------------------------


def test_the_smoke_configuration_runs_end_to_end() -> None:
    result = invoke("smoke", "--out", "kept")
    assert (result.exit_code, result.stderr) == (0, "")
    (record,) = records(Path("kept"))
    (case,) = record.cases
    assert record.status == case.status == "complete"
    assert case.cache
    assert all(pool.predicted_bytes == pool.allocated_bytes for pool in case.cache.pools)
    assert case.verification.checks > 50
    assert case.verification.failures == []
    assert result.stdout.splitlines()[-1] == f"record: kept/{record.run_id}.json"


def test_the_same_seed_gives_the_same_totals_and_checks() -> None:
    for seed in ("3", "3", "4"):
        bench("--seed", seed, "--out", f"seed{seed}")
    first, second = (record.cases[0] for record in records(Path("seed3")))
    (other,) = (record.cases[0] for record in records(Path("seed4")))
    assert first.totals
    assert second.totals
    assert other.totals
    same = first.totals.model_copy(update={"wall_ns": second.totals.wall_ns})
    assert same == second.totals
    assert first.verification == second.verification
    assert other.totals.input_tokens != first.totals.input_tokens


def test_json_to_stdout_is_a_record_and_nothing_else() -> None:
    result = bench("--json", "-")
    record = loads(result.stdout, "stdout")
    assert (result.stdout, result.stderr) == (dumps(record), "")
    assert records() == [record]


def test_a_case_that_fails_leaves_the_others_and_a_bad_exit_code() -> None:
    result = books("--axis", "model.preset=v4-flash,v4-pto,v4-pro")
    assert result.exit_code == 6
    assert result.stderr.startswith("error: ")
    assert "v4-pto" in result.stderr
    (record,) = records()
    assert [case.status for case in record.cases] == ["complete", "failed", "complete"]
    assert "of 3 cases 2 complete, 1 failed" in result.stdout


@pytest.mark.parametrize("options", [[], ["--quiet"], ["--json", "-"]])
def test_requests_that_do_not_fit_are_told(options: list[str]) -> None:
    Path("trace.jsonl").write_text(LINE + LINE.replace("60", "900") + LINE)
    small = ("--set", "cache.max_context_tokens=200")
    result = books("--trace", "trace.jsonl", *small, *options)
    assert result.exit_code == 0
    told = result.stderr if options else result.stdout
    assert "! rejected requests: 1, longer than 200 tokens or the pool" in told
    assert records()[0].cases[0].totals
    assert loads(result.stdout, "stdout") if "-" in options else True


def test_outputs_that_differ_are_told_and_end_badly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsv4kv.ops.cpu.window_insert", lambda **_: None)
    result = bench("--quiet")
    assert (result.exit_code, result.stdout) == (6, "")
    assert re.search(r"attend: position \d+ of the window", result.stderr)
    assert re.search(r"^error: \d+ sampled outputs differ", result.stderr, re.M)
    assert records()[0].status == "failed"


# ---- Ctrl-C -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "place",
    [
        "dsv4kv.runs.points.capture_environment",
        "dsv4kv.bench.run.count_tokens",
        "dsv4kv.bench.build.KVCacheManager",
        "dsv4kv.bench.build.build_drive",
        "dsv4kv.bench.run.measure_memcpy",
        "dsv4kv.bench.run.open_requests",
    ],
)
def test_ctrl_c_before_the_first_step_leaves_nothing(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(place, interrupted)
    result = bench()
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr == "interrupted before there was an answer.\n"
    assert files() == []


def test_a_variant_that_only_a_gpu_has_is_refused_once_before_any_case_runs() -> None:
    swept = bench("--device", "cpu", "--axis", "ops.variant.gather_topk=ahead,stepwise")
    assert (swept.exit_code, swept.stderr.count("error: ")) == (2, 1)
    assert "gather_topk is ahead, and the cache is on the CPU" in swept.stderr
    assert files() == []
