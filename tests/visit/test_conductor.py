"""Steps that fail, hang or say too much: the visit goes on and keeps what they left."""

import sys
import tarfile
import time
from pathlib import Path

import pytest

from dsv4kv.files import temporary_folder
from visit import conductor, rows
from visit.conductor import KEPT, ROWS, Conductor
from visit.plan import CALLS, Step

_PROGRAM = """
import os, pathlib, sys, time
name, _, file, _, folder = sys.argv[1:6]
if name == "speeds":
    print("some words", flush=True)
    time.sleep(600)
if name == "tests":
    sys.exit("it cannot be")
if name == "bench_64":
    print(os.urandom(2000).hex())  # packs to no less than half of it
if name == "dram":
    print("x" * 100)
    (pathlib.Path(folder) / "record.json").write_text("y" * 50)
"""


def steps(*limits: tuple[str, int]) -> list[Step]:
    found = []
    for name, limit_s in limits:
        (step,) = [step for step in CALLS["first"] if step.name == name]
        found.append(Step(name, step.words, limit_s, step.program, step.questions))
    return found


def conduct(out: Path, chosen: list[Step], most_s: float = 60) -> bool:
    program = [sys.executable, "-c", _PROGRAM]
    with temporary_folder("dsv4kv-test-") as folder:
        return Conductor(out, folder, {}, program, small=False).run(chosen, most_s)


def why(out: Path, step: Step) -> set[str]:
    """Why the questions of a step have no answer."""
    asked = {question.name for question in step.questions}
    found = [row for row in rows.read(out / ROWS) if row.get("question") in asked]
    assert {row["question"] for row in found} == asked
    assert len(found) == len(asked)
    assert {row["measured"] for row in found} == {None}
    return {row["detail"]["why"] for row in found}


def test_a_step_that_fails_leaves_its_last_words_and_the_next_one_runs(tmp_path: Path) -> None:
    tests, dram = steps(("tests", 60), ("dram", 60))
    assert not conduct(tmp_path, [tests, dram])
    assert why(tmp_path, tests) == {"tests: ended with exit code 1: it cannot be"}
    assert why(tmp_path, dram) == {"dram: done: no answer"}


def test_a_step_that_hangs_is_ended_when_its_time_is_up(tmp_path: Path) -> None:
    (speeds,) = steps(("speeds", 1))
    began = time.monotonic()
    assert not conduct(tmp_path, [speeds])
    assert time.monotonic() - began < 60
    assert why(tmp_path, speeds) == {"speeds: still ran after 1 s and was ended"}


def test_what_no_time_is_left_for_is_told(tmp_path: Path) -> None:
    (dram,) = steps(("dram", 60))
    assert not conduct(tmp_path, [dram], most_s=0)
    assert why(tmp_path, dram) == {"dram: the call's time was used up before"}


def test_logs_and_records_come_back_in_one_file(tmp_path: Path) -> None:
    conduct(tmp_path, steps(("dram", 60), ("tests", 60)))
    assert sorted(path.name for path in tmp_path.iterdir()) == [KEPT, ROWS]
    with tarfile.open(tmp_path / KEPT) as kept:
        assert sorted(kept.getnames()) == ["dram.txt", "record.json", "tests.txt"]


def test_what_comes_back_is_small_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(conductor, "MOST_BYTES", 1000)
    conduct(tmp_path, steps(("bench_64", 60), ("dram", 60)))
    assert (tmp_path / KEPT).stat().st_size <= 1000
    with tarfile.open(tmp_path / KEPT) as kept:
        assert sorted(kept.getnames()) == ["dram.txt", "record.json"]
    assert "left out, too large: bench_64.txt" in capsys.readouterr().out
