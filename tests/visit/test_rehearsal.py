"""A visit on the kernels' CPU twin, in a copy of the tree, as on the machine with the GPU.

``make full`` rehearses more steps of all calls, those that differ in more than a setting;
``DSV4KV_VISIT_KILLS=20`` kills a visit as often, ``DSV4KV_VISIT_WHOLE=1`` rehearses every step.
"""

import json
import os
import random
import re
import shutil
import subprocess
import tarfile
import time
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.examples import FULL
from tests.visit.tools import make_tools
from visit import carried, dram, rows
from visit.plan import CALLS
from visit.simulation import TREE, Simulation

KILLS = int(os.environ.get("DSV4KV_VISIT_KILLS", "2" if FULL else "1"))
WHOLE = bool(os.environ.get("DSV4KV_VISIT_WHOLE"))
LIMIT_S = 600

# Steps that differ from another in a setting only, or compile for minutes.
LEFT_OUT = set() if WHOLE else {"bench_1", "bench_8", "kernels"}
if not (WHOLE or FULL):  # what each measures is tested alone
    LEFT_OUT |= {"speeds", "dram", "bench_64", "sanitize", "doctor"}
KILLED = ["facts", "compile", "speeds"] if KILLS > 2 else ["facts", "compile"]

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to build the CPU twin")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Simulation:
    return Simulation.make(tmp_path_factory.mktemp("machine"))


def visit(machine: Simulation, call: str, folder: Path) -> tuple[int, list[rows.Row]]:
    """Do a call with stand-ins for the tools; its exit code and rows."""
    chosen = [step.name for step in CALLS[call] if step.name not in LEFT_OUT]
    found = make_tools(folder / "tools")
    code = machine.start(call, folder / "out", chosen, found).wait(LIMIT_S)
    return code, rows.read(folder / "out" / "rows.jsonl")


def answers(found: list[rows.Row]) -> dict[str, rows.Row]:
    """Answers by question, each of which has one."""
    kept = [row for row in found if row["kind"] == "answer"]
    assert len({row["question"] for row in kept}) == len(kept)
    return {row["question"]: row for row in kept}


def seen(machine: Simulation, names: Iterable[str]) -> set[str]:
    """Modules that the machine's Python finds."""
    told = "import importlib.util as u, sys; print(*(n for n in sys.argv[1:] if u.find_spec(n)))"
    command = [str(machine.python), "-c", told, *names]
    done = subprocess.run(
        command, cwd=machine.folder, env={}, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


UNUSED = {"aiohttp", "joblib", "prometheus_client"}
"""Packages that dsv4kv needs and no step of a visit imports: the rehearsal runs without them."""

MODULES = {"pyyaml": "yaml", "nvidia_ml_py": "pynvml"}


def test_the_machine_has_what_dsv4kv_needs_or_gets_it_carried(machine: Simulation) -> None:
    project = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
    names = (re.split(r"[<>=]", each)[0].replace("-", "_") for each in project["dependencies"])
    needed = {MODULES.get(name, name) for name in names}
    carry = {name.replace("-", "_") for name in carried.NAMES}
    assert needed - seen(machine, needed) == UNUSED | (carry & needed)


def test_the_machine_lacks_what_the_real_one_lacks(machine: Simulation) -> None:
    absent = {"dsv4kv", "libcachesim", "syrupy", "vllm", "sglang", "ncu_report", "pyzmq"}
    assert not seen(machine, absent | {"platformdirs", "pydantic", "pydantic_core"})
    tree = machine.script.parents[2]
    assert not (tree / ".git").exists()
    assert len(list((machine.script.parent / ".wheels").iterdir())) == len(carried.NAMES)


@pytest.mark.parametrize("call", CALLS)
def test_a_call_leaves_one_line_for_every_question(
    call: str, machine: Simulation, tmp_path: Path
) -> None:
    code, found = visit(machine, call, tmp_path)
    ends = {row["step"]: row["detail"] for row in found if row.get("name") == "end of a step"}
    steps = [step for step in CALLS[call] if step.name not in LEFT_OUT]
    assert {name: detail["end"] for name, detail in ends.items()} == {
        s.name: "done" for s in steps
    }
    assert code == 0
    told = answers(found)
    assert set(told) == {question.name for step in steps for question in step.questions}
    assert {row["verdict"] for row in told.values()} == {"rehearsed"}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "kept.tar.gz",
        "rows.jsonl",
    ]
    with tarfile.open(tmp_path / "out" / "kept.tar.gz") as kept:
        assert {f"{step.name}.txt" for step in steps} <= set(kept.getnames())


@pytest.mark.parametrize(("sees", "blind"), [("memcheck", "racecheck"), ("racecheck", "memcheck")])
def test_a_sanitizer_is_not_believed_that_misses_a_planted_defect_or_whose_program_ends_early(
    sees: str, blind: str, machine: Simulation, tmp_path: Path
) -> None:
    tools = make_tools(tmp_path / "tools", sees=sees, cut="initcheck")
    assert machine.start("second", tmp_path / "out", ["sanitize"], tools).wait(LIMIT_S) == 1
    told = answers(rows.read(tmp_path / "out" / "rows.jsonl"))
    assert told[blind]["measured"] is None
    assert told[blind]["detail"]["why"].endswith(
        f"{blind} missed what was planted: the sanitizer is blind"
    )
    assert told["initcheck"]["measured"] is None
    assert told[sees]["measured"] == told["synccheck"]["measured"] == 0


def test_without_ncu_its_questions_say_so_and_the_rehearsal_skips_them(
    machine: Simulation, tmp_path: Path
) -> None:
    assert machine.start("first", tmp_path, ["dram"]).wait(LIMIT_S) == 0
    told = answers(rows.read(tmp_path / "rows.jsonl"))
    whys = {row["detail"]["why"] for row in told.values()}
    assert whys == {"dram: skipped: ncu is not on PATH"}


def test_ncu_reads_its_own_report_for_the_machine_lacks_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ncu = make_tools(tmp_path / "tools") / "ncu"
    subprocess.run([ncu, f"--export={tmp_path / 'found'}", "true"], check=True)
    monkeypatch.setenv("PATH", str(ncu.parent))
    read_and_written = 123_456 + 0
    assert dram.dram_bytes(tmp_path / "found.ncu-rep")["gather_entries"] == read_and_written


# ---- killed -------------------------------------------------------------------------------------


def test_a_visit_that_is_killed_keeps_every_row_but_the_one_under_way(
    machine: Simulation, tmp_path: Path
) -> None:
    asked = [q.name for step in CALLS["first"] if step.name in KILLED for q in step.questions]
    began = time.monotonic()
    assert machine.start("first", tmp_path / "whole", KILLED).wait(LIMIT_S) == 0
    lasts_s = time.monotonic() - began
    whole = told_in(tmp_path / "whole" / "rows.jsonl")
    assert sorted(whole) == sorted(asked)
    moments = random.Random(14)
    for n in range(KILLS):
        file = tmp_path / str(n) / "rows.jsonl"
        process = machine.start("first", file.parent, KILLED)
        time.sleep(moments.uniform(0, lasts_s))
        before = told_in(file)
        process.kill()
        process.wait()
        after = wait_until_still(lambda file=file: told_in(file))  # type: ignore[misc]
        assert len(before) <= len(after) <= len(before) + 1
        assert after == whole[: len(after)]
        assert len(list(file.parent.glob("*"))) <= 8


def told_in(file: Path) -> list[str]:
    """Questions with an answer, in the order of their rows; only the last row may be cut short."""
    lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
    found = [json.loads(line) for line in lines]
    return [row["question"] for row in found if row["kind"] == "answer"]


def wait_until_still(look: Callable[[], list[str]]) -> list[str]:
    """What is seen once nobody is at work any more."""
    while True:
        before = look()
        time.sleep(0.5)
        if look() == before:
            return before
