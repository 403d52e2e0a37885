"""``dsv4kv bench --launches``: what is printed, saved and returned."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import Result

from dsv4kv.runs.store import load_record
from tests.bench.settings import TINY
from tests.cli import shell
from tests.process_tree import descendants, is_running, processor_seconds

pytestmark = pytest.mark.usefixtures("empty_folder")

OPTIONS = [word for setting in (*TINY, "workload.data=none") for word in ("--set", setting)]
LONG = [
    "smoke",
    *("--data", "none", "--set", "cache.max_context_tokens=64K"),
    *("--set", "workload.synthetic.requests=2000"),
    *("--set", "workload.synthetic.output.kind=fixed"),
    *("--set", "workload.synthetic.output.mean=20000"),
]  # a run that no test waits for


def bench(*arguments: str) -> Result:
    return shell.invoke("bench", "smoke", *OPTIONS, *arguments)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """Two launches of two cases by code that was typed, and the one file that they leave."""
    folder = tmp_path_factory.mktemp("swept")
    (folder / "mine.py").write_text(
        "from dsv4kv.ops.cpu import gather_window\nopen('imported', 'a').write('1')\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        backend = ("--backend", "mine.py:gather_window", "--set", "workload.data=real")
        result = bench("--launches", "2", *backend, "--axis", "cache.sharing=model,layer")
    (path,) = (folder / "results").iterdir()
    return result, path


def test_launches_are_one_record_that_is_told_by_medians_and_repeats_itself(
    swept: tuple[Result, Path],
) -> None:
    result, path = swept
    assert (result.exit_code, result.stderr) == (0, "")
    assert re.search(r"^model  .*\n^layer  ", result.stdout, re.MULTILINE)
    record = load_record(path)
    assert result.stdout.splitlines()[-1] == f"record: results/{path.name}"
    assert record.reproduce.endswith(" --axis cache.sharing=model,layer --launches 2")
    assert [(case.launch, case.axis["cache.sharing"]) for case in record.cases] == [
        (0, "model"), (0, "layer"), (1, "model"), (1, "layer"),
    ]  # fmt: skip
    again = shell.invoke("report", str(path))
    assert result.stdout.startswith(again.stdout.rpartition("\n\n")[0])


def test_every_launch_serves_the_same_work_in_a_process_of_its_own(
    swept: tuple[Result, Path],
) -> None:
    cases = load_record(swept[1]).cases
    for first, second in zip(cases[:2], cases[2:], strict=True):
        assert first.totals
        assert second.totals
        work = first.totals.model_copy(update={"wall_ns": 0})
        assert work == second.totals.model_copy(update={"wall_ns": 0})
        assert first.totals.wall_ns != second.totals.wall_ns


def test_what_no_launch_could_run_is_refused_before_one_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dsv4kv.bench.launches.run_fresh", None)
    result = bench("--launches", "2", "--set", "model.preset=v5", "--axis", "cache.sharing=all")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_in_a_launch_saves_what_was_measured(stop: signal.Signals) -> None:
    ignored = signal.signal(stop, signal.default_int_handler)  # children inherit it
    process = subprocess.Popen(
        [sys.executable, "-m", "dsv4kv", "bench", *LONG, "--launches", "3"],
        env=os.environ | {"TMPDIR": str(Path.cwd())},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    signal.signal(stop, ignored)
    try:
        _wait_until_measuring(process)
    finally:  # no failure leaves it running
        process.send_signal(stop)
    stdout, stderr = process.communicate(timeout=600)
    assert (process.returncode, stderr) == (130, "")
    assert "incomplete: of 1 launches 1 incomplete" in stdout
    (path,) = Path("results").iterdir()
    (case,) = load_record(path).cases
    assert case.status == "incomplete"
    assert case.latencies
    assert [each for each in Path().iterdir() if each.name.startswith("dsv4kv-")] == []


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_killed_run_keeps_the_launches_before_and_leaves_nothing_else() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "dsv4kv", "bench", "smoke", *OPTIONS, "--launches", "99"],
        env=os.environ | {"TMPDIR": str(Path.cwd())},
        stdout=subprocess.DEVNULL,
    )
    try:
        while not list(Path().glob("results/*.json")):
            assert process.poll() is None
            time.sleep(0.02)
        left = descendants(process.pid)
    finally:
        process.kill()
        process.wait()
    while any(map(is_running, left)) or list(Path().glob("dsv4kv-*")):
        time.sleep(0.02)
    (path,) = Path("results").iterdir()
    record = load_record(path)
    assert record.status == "incomplete"
    assert record.cases
    assert {case.status for case in record.cases} == {"complete"}


def _wait_until_measuring(process: "subprocess.Popen[str]") -> None:
    """Until the launch has used more processor time than its imports take."""
    while True:
        assert process.poll() is None, process.communicate()
        if any(processor_seconds(each) > 5 for each in descendants(process.pid)):
            return
        time.sleep(0.1)
