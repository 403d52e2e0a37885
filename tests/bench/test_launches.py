"""Launches: fresh processes, what becomes of those that go wrong, and one record of them all."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dsv4kv.bench.launches import Outcome, Task, merge, run_fresh, run_launches
from dsv4kv.config.load import load_config
from dsv4kv.errors import Dsv4kvError
from dsv4kv.processes import OWN_TREE
from dsv4kv.runs.points import as_options
from dsv4kv.runs.schema import RunRecord
from dsv4kv.runs.store import dumps
from tests.bench.settings import BOOKS, TINY
from tests.examples import FULL
from tests.runs.records import make_case, make_record

RECORD = Path("record.json")
OURS = Task(("smoke", *as_options([*TINY, BOOKS], [])))
# A package that stands in for another revision: it does what its first argument says.
PROGRAM = """
import os, pathlib, signal, sys, time
mode, *words = sys.argv[2:]
out = pathlib.Path(words[words.index("--out") + 1])
counter = pathlib.Path({counter!r})
turn = len(counter.read_text()) if counter.exists() else 0
counter.write_text("x" * (turn + 1))
def save():
    out.mkdir()
    (out / "run.json").write_text(pathlib.Path({record!r}).read_text())
if mode == "crash-second":
    mode = "crash" if turn == 1 else "run"
if mode == "run": save()
if mode == "fail": save(); sys.exit(6)
if mode == "crash": os.kill(os.getpid(), signal.SIGSEGV)
if mode == "killed": os.kill(os.getpid(), signal.SIGKILL)
if mode == "memory": raise MemoryError("no more")
if mode == "refuse":
    print("error: no such thing.\\nerror: nor this.", file=sys.stderr)
    sys.exit(4)
if mode == "bug": 1 / 0
if mode == "silent": sys.exit(1)
if mode == "garbage": out.mkdir(); (out / "run.json").write_text("[]")
if mode == "hang":
    print("ready", flush=True); time.sleep(600)
ready = counter.with_name(f"ready-{{os.getpid()}}")
if mode == "deaf":
    signal.signal(signal.SIGINT, signal.SIG_IGN); ready.touch(); time.sleep(600)
if mode == "interruptible":
    try: ready.touch(); time.sleep(600)
    except KeyboardInterrupt: save(); sys.exit(130)
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    package = tmp_path / "tree" / "dsv4kv"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    record = tmp_path / RECORD
    record.write_text(dumps(make_record(make_case())))
    text = PROGRAM.format(record=str(record), counter=str(tmp_path / "counter"))
    (package / "__main__.py").write_text(text)
    return package.parent


def launch(tree: Path, mode: str, timeout_s: float = 60) -> Outcome:
    (outcome,) = run_fresh([Task((mode,), tree)], timeout_s)
    return outcome


def run_all(*tasks: Task) -> list[Outcome]:
    return run_launches(tasks, lambda _outcomes, _task: None)


def joined(outcomes: list[Outcome], asked: int) -> RunRecord:
    known = {"run_id": "run-id", "argv": ["dsv4kv"], "reproduce": "dsv4kv again"}
    return merge(outcomes, asked, load_config("smoke"), **known)


# ---- one process --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone() -> Outcome:
    """A launch of this package."""
    (outcome,) = run_launches([OURS], lambda _outcomes, _task: None)
    return outcome


def test_a_launch_runs_the_package_of_its_tree_wherever_it_is_started(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere" / "dsv4kv").mkdir(parents=True)
    (tmp_path / "elsewhere" / "dsv4kv" / "__main__.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("PYTHONPATH", str(OWN_TREE))
    outcome = launch(tree, "run")
    assert (outcome.status, outcome.exit_code) == ("complete", 0)
    assert outcome.record == make_record(make_case())


WHYS = {
    "crash": ("crashed", "killed by SIGSEGV"),
    "killed": ("out_of_memory", "killed by SIGKILL, as systems do where memory runs out"),
    "memory": ("out_of_memory", "MemoryError: no more"),
    "refuse": ("failed", "no such thing.\nnor this."),
    "bug": ("crashed", "ended with exit code 1: ZeroDivisionError: division by zero"),
    "silent": ("crashed", "ended with exit code 1: no word of why"),
}


@pytest.mark.parametrize("mode", WHYS)
def test_a_process_that_leaves_no_record_says_why(tree: Path, mode: str) -> None:
    outcome = launch(tree, mode)
    assert (outcome.status, outcome.error, outcome.record) == (*WHYS[mode], None)


def test_a_process_that_hangs_is_ended_at_its_time(tree: Path) -> None:
    outcome = launch(tree, "hang", timeout_s=1)
    assert (outcome.status, outcome.error) == ("timeout", "still ran after 1 s and was ended")
    assert outcome.exit_code == -signal.SIGKILL


@pytest.fixture
def ctrl_c(tmp_path: Path) -> Iterator[Callable[[int], None]]:
    """Ctrl-C to this process alone, as soon as ``launches`` of them can hear it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    over = threading.Event()

    def interrupt(launches: int) -> None:
        while len(list(tmp_path.glob("ready-*"))) < launches:
            if over.wait(0.01):
                return
        os.kill(os.getpid(), signal.SIGINT)

    yield lambda launches: threading.Thread(target=interrupt, args=(launches,)).start()
    over.set()
    signal.signal(signal.SIGINT, before)


def test_a_launch_that_ctrl_c_had_to_kill_has_not_run_out_of_memory(
    tree: Path, ctrl_c: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsv4kv.bench.launches._GRACE_S", 0.2)
    ctrl_c(1)
    outcome = launch(tree, "deaf")
    assert outcome.exit_code == -signal.SIGKILL
    assert (outcome.interrupted, outcome.status) == (True, "incomplete")
    assert outcome.error == "stopped before anything was measured"


# ---- several ------------------------------------------------------------------------------------


def test_a_launch_that_crashes_is_a_row_and_not_the_end(tree: Path) -> None:
    record = joined(run_all(*[Task(("crash-second",), tree)] * 3), 3)
    assert [launch.status for launch in record.launches] == ["complete", "crashed", "complete"]
    assert [case.launch for case in record.cases] == [0, 2]
    assert record.status == "failed"
    assert record.launches[1].error == "killed by SIGSEGV"
    assert record.reproduce == "dsv4kv again"
    starts = [launch.started_utc for launch in record.launches]
    assert starts == sorted(set(starts))


def test_what_the_first_launch_is_refused_is_refused_at_once(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(Dsv4kvError, match=r"no such thing\.\nnor this\.") as caught:
        run_all(*[Task(("refuse",), tree)] * 3)
    assert caught.value.exit_code == 4
    assert (tmp_path / "counter").read_text() == "x"


# ---- two at a time ------------------------------------------------------------------------------


def test_two_launches_of_the_same_do_every_step_in_turns() -> None:
    count = 4 if FULL else 2
    outcomes = run_launches([OURS] * count, lambda _outcomes, _task: None, together=2)
    assert len({outcome.pair for outcome in outcomes}) == count // 2
    record = joined(outcomes, count)
    assert [launch.pair for launch in record.launches] == [o.pair for o in outcomes]
    assert len(record.cases) == count
    for case in record.cases:
        assert case.totals
        assert case.totals.steps_in_turns == case.totals.steps > 0
    first, second = (
        [latency for latency in case.latencies if latency.name == "step"]
        for case in record.cases[:2]
    )
    assert len(first[0].samples_ns) == len(second[0].samples_ns)


def test_of_two_launches_one_that_crashes_leaves_the_other_to_its_end(tree: Path) -> None:
    both = run_fresh([replace(OURS, side="A"), Task(("crash",), tree, "B")], 120)
    assert [outcome.status for outcome in both] == ["complete", "crashed"]
    assert both[0].record
    assert both[0].record.cases[0].totals
    assert both[0].record.cases[0].totals.steps_in_turns == 0


def test_ctrl_c_reaches_both_of_two_launches(tree: Path, ctrl_c: Callable[[int], None]) -> None:
    ctrl_c(2)
    both = run_fresh([Task(("interruptible",), tree)] * 2, 60)
    assert [(outcome.interrupted, outcome.exit_code) for outcome in both] == [(True, 130)] * 2
    assert all(outcome.record for outcome in both)


# Two processes for every line; each writes its name at each of its turns, in capitals where they
# take turns, and leaves, or dies, after so many. Forked, they import once.
PLAYERS = """
import json, os, sys, time
from dsv4kv.bench.launches import VARIABLE, Turns, ring
def play(log, name, count, start_s, end):
    time.sleep(start_s)
    turns = Turns.join() if end != "ignorant" else None
    if turns: turns.meet()
    for _ in range(count):
        in_turn = turns.wait() if turns else False
        os.write(log, (name if in_turn else name.lower()).encode())
        if turns: turns.hand_on()
    if end == "killed": os.kill(os.getpid(), 9)
for processes in json.loads(sys.argv[1]):
    read_end, log = os.pipe()
    started = []
    with ring() as places:
        for process, place in zip(processes, places):
            started.append(os.fork())
            if not started[-1]:
                for end in {*places[0], *places[1]} - {*place}: os.close(end)
                os.environ[VARIABLE] = ",".join(map(str, place))
                play(log, *process)
                os._exit(0)
    os.close(log)
    for each in started: os.waitpid(each, 0)
    print(os.read(read_end, 100).decode())
"""


def run_two(*lines: tuple[tuple[str, int, float, str], tuple[str, int, float, str]]) -> list[str]:
    """What the two processes of every line wrote."""
    done = subprocess.run(
        [sys.executable, "-c", PLAYERS, json.dumps(lines)],
        env=os.environ | {"PYTHONPATH": str(OWN_TREE)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300,
    )
    return done.stdout.split()


def test_two_processes_take_turns_from_the_first_to_the_last() -> None:
    assert run_two(
        (("A", 5, 0, ""), ("B", 5, 0, "")),
        (("A", 2, 0.5, ""), ("B", 2, 0, "")),  # one that is ready waits for the other
        (("A", 2, 0, ""), ("B", 2, 0.5, "")),
    ) == ["ABABABABAB", "ABAB", "ABAB"]


def test_one_that_has_ended_holds_nobody_up() -> None:
    """And what the other does from then on is told not to be in turns."""
    written = run_two(
        (("A", 2, 0, ""), ("B", 5, 0, "")),
        (("A", 2, 0, "killed"), ("B", 5, 0, "")),
        (("A", 5, 0, ""), ("B", 2, 0, "")),
        (("A", 5, 0, ""), ("B", 2, 0, "killed")),
    )
    assert [each.upper() for each in written[:2]] == ["ABABBBB"] * 2
    assert [each[-2:] for each in written[2:]] == ["aa"] * 2
