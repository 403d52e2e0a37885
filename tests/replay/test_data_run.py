"""A whole run with data: its record, its tables, its exit code."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from typer.testing import CliRunner, Result

from dsv4kv.cache.checkpoints import CheckpointPool
from dsv4kv.cli import app
from dsv4kv.config.load import load_config
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.record.replay import CacheStepTimes, ReplayData
from dsv4kv.record.schema import RunRecord
from dsv4kv.record.store import load_record
from dsv4kv.serve import inputs

TERMINAL = {"COLUMNS": "140", "NO_COLOR": "1", "TERM": "dumb"}
SMALL = ("--set", "workload.limit=4", "--set", "workload.max_output_tokens=20")


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    with patch.object(inputs, "_DISTINCT_TOKENS", 521):
        yield


def invoke(*arguments: str) -> Result:
    return CliRunner(env=TERMINAL).invoke(app, ["replay", "--config", "real", *arguments])


def saved() -> RunRecord:
    (path,) = Path("results").glob("*.json")
    return load_record(path)


def test_a_run_with_data_says_what_was_measured_and_what_was_compared() -> None:
    result = invoke(*SMALL)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "measured for the cache, of the model for the rest" in result.stdout
    assert "The cache's part of a step" in result.stdout
    assert "measured here on the CPU, one thread" in result.stdout
    assert "gathered entries equal those of a run without reuse, bit for bit" in result.stdout
    (case,) = saved().cases
    assert case.config["workload"]["data"] == "real"
    assert case.backend == "cpu"
    assert case.replay is not None
    data = case.replay.data
    assert data is not None
    assert case.totals is not None
    assert sum(len(times.measured_ns) for times in data.steps) == case.totals.steps
    assert sum(data.compared.values()) == case.verification.checks > 0
    assert {"shared", "resumed"} <= data.compared.keys()
    assert {"gather_window", "compress_chunk"} <= {each.name for each in case.operations}
    assert case.cache is not None
    assert all(pool.predicted_bytes == pool.allocated_bytes for pool in case.cache.pools)


def test_the_shipped_configuration_evicts_pauses_and_starts_again() -> None:
    result = invoke("--data", "none", "--json", "run.json", "--quiet")
    assert result.exit_code == 0
    replay = load_record(Path("run.json")).cases[0].replay
    assert replay is not None
    assert replay.data is None
    assert replay.pauses > 0
    assert replay.evictions > 0
    assert replay.reuse.evicted_blocks > 0
    assert replay.reuse.evicted_checkpoints > 0
    assert replay.reuse.restored_checkpoints > replay.reuse.resumed_requests
    assert load_config("real", [], ReplayConfig).config.workload.data == "real"


def test_a_reuse_that_is_broken_ends_with_exit_code_6() -> None:
    with patch.object(CheckpointPool, "restore", lambda self, checkpoint, slot: None):
        result = invoke(*SMALL, "--set", "measure.verify_every=1")
    assert result.exit_code == 6
    assert "differ from a run without reuse" in result.stderr
    record = saved()
    assert record.status == "failed"
    assert record.cases[0].verification.failures


def test_a_cache_that_refuses_ends_with_exit_code_6() -> None:
    from dsv4kv.replay.data.cache import KeptWindows

    with patch.object(KeptWindows, "stage", lambda self, slot, key: None):
        result = invoke(*SMALL)
    assert result.exit_code == 6
    assert "the cache refused what the scheduler had decided" in result.stderr


def test_data_beyond_the_machine_is_a_sentence() -> None:
    result = invoke("--model", "v4-pro", "--memory", "8TiB", "--set", "model.layers=null")
    assert result.exit_code == 2
    assert "set workload.data to none" in result.stderr


def test_without_data_torch_is_not_imported() -> None:
    code = (
        "import sys\nsys.modules['torch'] = None\nsys.argv = ['dsv4kv', 'replay', '--config', "
        "'real', '--data', 'none', '--quiet']\nfrom dsv4kv.cli import main\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_steps_are_measured_and_modelled_alike() -> None:
    with pytest.raises(ValueError, match="2 decode steps are measured and 1 modelled"):
        CacheStepTimes(kind="decode", measured_ns=[1, 2], modelled_ns=[1])
    assert ReplayData(steps=[], compared={}, spare_blocks=0).steps == []
