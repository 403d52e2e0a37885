"""Turns: two processes alternate, meet, and are never held up by one that is gone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dsv4kv.bench.launches import VARIABLE, one_cpu, ring
from dsv4kv.processes import OWN_TREE

# Writes its name at each of its turns; leaves, or dies, after so many.
PROGRAM = """
import os, sys, time
from dsv4kv.bench.launches import Turns
name, count, start_s, end = sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), sys.argv[5]
time.sleep(start_s)
turns = Turns.join() if end != "ignorant" else None
if turns: turns.meet()
with open(sys.argv[1], "a") as log:
    for _ in range(count):
        in_turn = turns.wait() if turns else False
        log.write(name if in_turn else name.lower()); log.flush()
        if turns: turns.hand_on()
if end == "killed": os.kill(os.getpid(), 9)
"""


def run_two(log: Path, *processes: tuple[str, int, float, str]) -> str:
    """What two processes wrote; capitals where they took turns."""
    log.touch()
    with ring() as places:
        started = [
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(log), *map(str, process)],
                env=os.environ
                | {"PYTHONPATH": str(OWN_TREE), VARIABLE: ",".join(map(str, place))},
                pass_fds=place,
            )
            for process, place in zip(processes, places, strict=True)
        ]
    for each in started:
        each.wait(300)
    return log.read_text()


def test_two_processes_take_turns_from_the_first_to_the_last(tmp_path: Path) -> None:
    assert run_two(tmp_path / "log", ("A", 5, 0, ""), ("B", 5, 0, "")) == "ABABABABAB"


def test_one_that_is_ready_waits_for_the_other(tmp_path: Path) -> None:
    assert run_two(tmp_path / "log", ("A", 2, 0.5, ""), ("B", 2, 0, "")) == "ABAB"
    assert run_two(tmp_path / "other", ("A", 2, 0, ""), ("B", 2, 0.5, "")) == "ABAB"


@pytest.mark.parametrize("end", ["", "killed"])
def test_one_that_has_ended_holds_nobody_up(tmp_path: Path, end: str) -> None:
    """And what the other does from then on is told not to be in turns."""
    assert run_two(tmp_path / "log", ("A", 2, 0, end), ("B", 5, 0, "")).upper() == "ABABBBB"
    assert run_two(tmp_path / "other", ("A", 5, 0, ""), ("B", 2, 0, end))[-2:] == "aa"


@pytest.mark.parametrize("first", [True, False])
def test_one_that_knows_of_no_turns_runs_first_and_alone(tmp_path: Path, first: bool) -> None:
    both = [("A", 3, 0.3, "ignorant"), ("B", 3, 0.0, "")]
    written = run_two(tmp_path / "log", *(both if first else both[::-1]))
    assert written == "aaabbb"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads are not bound here")
def test_both_stay_on_one_cpu_while_they_take_turns_and_no_longer() -> None:
    allowed = os.sched_getaffinity(0)
    with one_cpu():
        assert os.sched_getaffinity(0) == {max(allowed)}
    assert os.sched_getaffinity(0) == allowed
