"""Turns: two processes alternate, meet, and are never held up by one that is gone."""

import json
import os
import subprocess
import sys

import pytest

from dsv4kv.bench.launches import one_cpu
from dsv4kv.processes import OWN_TREE

# Two processes for every line; each writes its name at each of its turns, in capitals where they
# take turns, and leaves, or dies, after so many. Forked, they import once.
PROGRAM = """
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
        [sys.executable, "-c", PROGRAM, json.dumps(lines)],
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


def test_one_that_knows_of_no_turns_runs_first_and_alone() -> None:
    ignorant, other = ("A", 3, 0.3, "ignorant"), ("B", 3, 0.0, "")
    assert run_two((ignorant, other), (other, ignorant)) == ["aaabbb"] * 2


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads are not bound here")
def test_both_stay_on_one_cpu_while_they_take_turns_and_no_longer() -> None:
    allowed = os.sched_getaffinity(0)
    with one_cpu():
        assert os.sched_getaffinity(0) == {max(allowed)}
    assert os.sched_getaffinity(0) == allowed
