"""``dsv4kv bench``: what is printed, written and returned, when all is well and when not."""

import os
import pty
import re
import signal
import subprocess
import sys
import threading
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


_PATIENCE_S = 600


class Program:
    """The program in a process of its own, its stderr on a terminal."""

    def __init__(self, *arguments: str) -> None:
        self._master, stderr = pty.openpty()
        # A shell makes what it starts in the background ignore SIGINT, and children inherit that.
        ignored = signal.signal(signal.SIGINT, signal.default_int_handler)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dsv4kv", "bench", *arguments],
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
            text=True,
        )
        signal.signal(signal.SIGINT, ignored)
        self._watchdog = threading.Timer(_PATIENCE_S, self._process.kill)
        self._watchdog.daemon = True
        self._watchdog.start()
        os.close(stderr)
        self.shown = ""

    def wait_for(self, pattern: str) -> None:
        """Read what the terminal shows until it matches."""
        while not re.search(pattern, self.shown):
            self.shown += self._read() or pytest.fail(f"{pattern} never came: {self.shown}")

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def end(self) -> tuple[int, str]:
        """Exit code and stdout; ``shown`` has all of stderr."""
        while part := self._read():
            self.shown += part
        os.close(self._master)
        stdout, _ = self._process.communicate()
        self._watchdog.cancel()
        return self._process.returncode, stdout

    def _read(self) -> str:
        try:
            return os.read(self._master, 4096).decode(errors="replace")
        except OSError:  # Linux, once the program has closed its end
            return ""


def large(requests: int) -> list[str]:
    """Options of a run that no test waits for."""
    return [
        "smoke",
        *("--data", "none", "--set", "cache.max_context_tokens=64K"),
        *("--set", f"workload.synthetic.requests={requests}"),
        *("--set", "workload.synthetic.output.kind=fixed"),
        *("--set", "workload.synthetic.output.mean=20000"),
    ]


def test_sigint_ends_a_run_with_what_was_measured() -> None:
    program = Program(*large(2000))
    program.wait_for(r"\b[1-9][\d,]* / [\d,]+ tokens")
    program.interrupt()
    code, stdout = program.end()
    assert code == 130
    assert "Traceback" not in program.shown
    (record,) = records()
    (case,) = record.cases
    assert record.status == case.status == "incomplete"
    assert case.totals
    assert case.totals.steps > 0
    assert len(next(each for each in case.latencies if each.name == "step").samples_ns) > 0
    assert "incomplete" in stdout
    path = stdout.splitlines()[-1].removeprefix("record: ")
    again = shell.invoke("report", path)
    assert "! incomplete: stopped before the end" in again.stdout


def test_sigint_while_the_trace_is_counted_ends_quietly() -> None:
    program = Program(*large(10_000_000))
    program.wait_for("\x1b\\[\\?25l")  # the progress bar hides the cursor, then counting begins
    program.interrupt()
    assert program.end() == (130, "")
    assert "Traceback" not in program.shown
    assert files() == []


def test_a_variant_that_only_a_gpu_has_is_refused_once_before_any_case_runs() -> None:
    swept = bench("--device", "cpu", "--axis", "ops.variant.gather_topk=ahead,stepwise")
    assert (swept.exit_code, swept.stderr.count("error: ")) == (2, 1)
    assert "gather_topk is ahead, and the cache is on the CPU" in swept.stderr
    assert files() == []
