"""Sweeps of ``replay`` and ``bench``: in parallel, interrupted, killed and resumed."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from typer.testing import Result

from dsv4kv.bench.run import run_case
from dsv4kv.errors import INTERRUPTED, RecordError
from dsv4kv.replay.build import build_replay
from dsv4kv.runs.points import hash_points, read_points
from dsv4kv.runs.schema import Case, RunRecord
from dsv4kv.runs.store import load_record
from tests.bench.settings import TINY
from tests.cli.shell import invoke
from tests.examples import FULL
from tests.ports import free_port
from tests.process_tree import descendants, is_running
from tests.replay.scenes import SMALL

pytestmark = pytest.mark.usefixtures("empty_folder")

AXIS = ("--axis", "prefix.strategy=full,zero,ends,nothing")
SETTINGS = [f"{key}={value}" for key, value in (SMALL | {"cache.num_blocks": 300}).items()]
WORDS = ("replay", "builtin:chat", *(w for each in SETTINGS for w in ("--set", each)), *AXIS)


def run(*more: str) -> Result:
    """A sweep of four points, of which the last cannot be built."""
    return invoke(*WORDS, "--quiet", *more)


def the_record(folder: str = "results") -> RunRecord:
    (path,) = Path(folder).glob("[!.]*.json")
    return load_record(path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    """The cases of the sweep, done one after the other."""
    out = tmp_path_factory.mktemp("whole")
    run("--out", str(out))
    return the_record(str(out)).cases


def points_of(out: Path = Path("results")) -> Path:
    (path,) = out.glob("*.points.jsonl")
    return path


def ctrl_c_at(number: int, run: Callable[..., object]) -> mock.Mock:
    """The function, with Ctrl-C in its call of that number."""

    def call(*given: object, **named: object) -> object:
        if made.call_count == number:
            raise KeyboardInterrupt
        return run(*given, **named)

    made = mock.Mock(side_effect=call)
    return made


@pytest.fixture
def interrupted(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes while the third point is built."""
    with monkeypatch.context() as patch:
        patch.setattr("dsv4kv.replay.run.build_replay", ctrl_c_at(3, build_replay))
        result = run()
    assert result.exit_code == INTERRUPTED
    assert (
        f"resume: dsv4kv replay --resume {read_points(points_of()).asked.run_id}" in result.stderr
    )


def test_a_parallel_sweep_has_the_cases_of_a_serial_one(whole: list[Case]) -> None:
    assert run("--jobs", "2").exit_code == 6  # one of its points cannot be built
    assert the_record().cases == whole
    assert list(Path("results").glob("*.points.jsonl")) == []


@pytest.mark.usefixtures("interrupted")
def test_what_ctrl_c_interrupted_goes_on_from_its_name_alone(whole: list[Case]) -> None:
    before = the_record()
    assert (before.status, before.cases) == ("incomplete", whole[:2])
    listed = " ".join(invoke("report", "list").stdout.split())
    assert f"2 of {len(whole)} dsv4kv replay --resume {before.run_id}" in listed
    assert invoke("replay", "--quiet", "--resume", before.run_id).exit_code == 6
    after = the_record()
    assert after.cases == whole
    assert (after.run_id, after.started_utc) == (before.run_id, before.started_utc)
    assert list(Path("results").glob("*.points.jsonl")) == []
    assert "resume" not in invoke("report", "list").stdout
    again = invoke("replay", "--resume", before.run_id)
    assert (
        again.exit_code,
        "it was no sweep, or it is whole" in " ".join(again.stderr.split()),
    ) == (7, True)


@pytest.mark.usefixtures("interrupted")
def test_a_sweep_goes_on_as_it_was_asked_or_not_at_all(whole: list[Case]) -> None:
    name = the_record().run_id
    other = invoke("replay", "--resume", name, "--memory", "1GiB")
    assert (other.exit_code, "differs from its settings" in other.stderr) == (2, True)
    other = run("--resume", name, "--set", "measure.seed=7")
    assert (other.exit_code, "other settings, axes or files" in other.stderr) == (7, True)
    assert run("--resume", name, "--jobs", "1").exit_code == 6
    assert the_record().cases == whole


@pytest.mark.parametrize("named", ["cal.yaml", "my_gather.py:gather_topk"])
def test_points_are_of_the_files_that_their_settings_name(empty_folder: Path, named: str) -> None:
    path, config = Path(named.partition(":")[0]), {"cost": {"any": [named]}, "seed": 7}
    path.write_text("one", encoding="utf-8")
    one, again = hash_points([config]), hash_points([config])
    path.write_text("two", encoding="utf-8")
    assert one == again != hash_points([config])
    assert hash_points([config], [named]) == hash_points([config], [named]) != one


@pytest.mark.usefixtures("interrupted")
def test_a_sweep_that_another_process_continues_is_left_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dsv4kv.runs.points._HELD", {})  # as in another process
    other = run("--resume", the_record().run_id)
    assert (other.exit_code, "written by another process" in other.stderr) == (7, True)


@pytest.mark.usefixtures("interrupted")
@pytest.mark.parametrize("cut", [2, 100, 2000, None])
def test_a_point_whose_line_was_cut_short_or_has_an_odd_number_is_done_again(
    cut: int | None, whole: list[Case]
) -> None:
    path = points_of()
    before = path.read_bytes()
    odd = re.sub(rb'"pauses": ?\d+', b'"pauses": 1' + 400 * b"0", before, count=1)
    path.write_bytes(before[:-cut] + b"\n" + b"[" * 5_000 if cut else odd)
    assert len(read_points(path).cases) == 1
    assert invoke("replay", "--quiet", "--resume", str(path)).exit_code == 6
    assert the_record().cases == whole


@pytest.mark.usefixtures("interrupted")
def test_points_that_cannot_be_kept_end_the_sweep_with_a_sentence() -> None:
    points = read_points(points_of())
    points.path.unlink()
    points.path.mkdir()
    with pytest.raises(RecordError, match=r"Of 4 points 2 are kept there: make room"):
        points.keep(2, points.cases[1])


NO_SWEEP, NO_POINT = "is no sweep of this dsv4kv", "that is none of this sweep: remove it"


@pytest.mark.usefixtures("interrupted")
@pytest.mark.parametrize(
    ("asked", "line", "expected"),
    [
        ({"run_id": "/tmp/victim"}, {}, NO_SWEEP),
        ({"run_id": "../victim"}, {}, NO_SWEEP),
        ({"run_id": "x; touch /tmp/y"}, {}, NO_SWEEP),
        ({"command": "replay; id;"}, {}, NO_SWEEP),
        ({"count": 10**9}, {}, "another number of points"),
        *(({}, {"point": point}, f"line of point {point} {NO_POINT}") for point in (-1, 1, 99)),
        *(
            ({}, {"case": {name: value}}, f"line of point 0 {NO_POINT}")
            for name, value in (("axis", {}), ("config", {}), ("launch", 1))
        ),
    ],
    ids=str,
)
def test_what_is_no_sweep_or_none_of_its_points_is_a_sentence(
    asked: dict[str, Any], line: dict[str, Any], expected: str
) -> None:
    path = points_of()
    head, first, *_ = map(json.loads, path.read_text().splitlines())
    first |= line | {"case": first["case"] | line.get("case", {})}
    path.write_text("\n".join(map(json.dumps, [head | asked, first])))
    result = invoke("replay", "--resume", str(path))
    assert (result.exit_code, expected in " ".join(result.stderr.split())) == (7, True)
    assert ("resume with" in invoke("report", "list").stdout) == (expected != NO_SWEEP)


@pytest.mark.parametrize("target", ["--out caf\udce9", "--chart caf\udce9.svg", "--axis"])
def test_a_name_that_is_no_utf_8_loses_nothing(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a folder, of a page and of a trace, which the record and lines of points name."""
    trace = Path("caf\udce9.jsonl")
    trace.write_text('{"timestamp": 0, "input_length": 6, "output_length": 3, "hash_ids": [1]}\n')
    words = ["replay", str(trace), "-q", *target.split()]
    words += ["prefix.policy=lru,lfu"] if target == "--axis" else []
    monkeypatch.setattr(sys, "argv", ["dsv4kv", *words])
    assert invoke(*words).exit_code == 0
    (path,) = (path for path in Path().glob("*/*.json"))
    assert load_record(path).trace_source == "caf?.jsonl"


@pytest.mark.parametrize("address", ["auto", "127.0.0.1:1", "nowhere.invalid:6379"])
def test_ray_without_a_cluster_leaves_nothing(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if address == "auto":
        monkeypatch.setitem(sys.modules, "ray", None)
    else:
        pytest.importorskip("ray")
    result = invoke(*WORDS, "--ray", address, "--out", "new")
    known = ("Ray is not installed", "no cluster answers there")
    assert (result.exit_code, any(each in result.stderr for each in known)) == (2, True)
    assert not Path("new").exists()


def test_a_bench_that_was_interrupted_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [word for setting in TINY for word in ("--set", setting)]
    words += ["--data", "none", "--axis", "workload.concurrency=1,2,3", "--quiet"]
    monkeypatch.setattr("dsv4kv.bench.run.run_case", ran := ctrl_c_at(2, run_case))
    assert invoke("bench", "smoke", *words).exit_code == INTERRUPTED
    first = the_record()
    assert [case.status for case in first.cases] == ["complete", "incomplete"]
    assert invoke("bench", "--quiet", "--resume", first.run_id).exit_code == 0
    last = the_record()
    assert [case.axis["workload.concurrency"] for case in last.cases] == [1, 2, 3]
    assert (last.cases[0], ran.call_count) == (first.cases[0], 4)


@pytest.mark.parametrize("turn", range(40 if FULL else 1))
def test_killed_whenever_and_resumed_it_is_the_same_table(turn: int, whole: list[Case]) -> None:
    """The whole command, workers and all."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dsv4kv", *WORDS, "--quiet", "--jobs", "2"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    while process.poll() is None and not list(Path("results").glob("*.points.jsonl")):
        time.sleep(0.01)
    time.sleep(random.Random(turn).random() * 4)
    process.kill()
    process.wait()
    for path in Path("results").glob("*.points.jsonl"):
        assert invoke("replay", "--quiet", "--resume", str(path)).exit_code == 6
    assert the_record().cases == whole
    assert list(Path("results").glob("*.points.jsonl")) == []


@pytest.fixture
def cluster() -> Iterator[str]:
    """The address of a Ray cluster with two workers, started as users start one."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'dsv4kv[ray]'")
    ray = shutil.which("ray", path=str(Path(sys.executable).parent))
    assert ray
    port = free_port()
    words = ["start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={port}"]
    words += ["--num-cpus=2", "--include-dashboard=false", "--disable-usage-stats"]
    head = subprocess.Popen([ray, *words], cwd="/", stdout=subprocess.PIPE, text=True)
    assert head.stdout
    assert any("--block" in line for line in head.stdout)  # it says so when all have started
    started = descendants(head.pid)
    yield f"127.0.0.1:{port}"
    head.terminate()
    head.communicate(timeout=60)
    assert not any(map(is_running, started))


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_two_workers_of_a_ray_cluster_give_the_same_cases(cluster: str, whole: list[Case]) -> None:
    assert run("--ray", cluster).exit_code == 6
    assert the_record().cases == whole
