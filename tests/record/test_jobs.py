"""A sweep is in its folder: whoever is killed, what is done is done and the rest is left."""

import errno
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest

from dsv4kv.errors import RecordError
from dsv4kv.record import jobs
from dsv4kv.record.jobs import Asked, Job, Sweep, find_job, open_job, run_points
from dsv4kv.record.schema import Case
from dsv4kv.workers import Lost, map_here
from tests.examples import FULL
from tests.record.records import make_case

AXES = [{"prefix.policy": name} for name in ("lru", "arc", "lfu", "fifo")]
CASES = [make_case(axis=axis) for axis in AXES]


def asked(**changes: Any) -> Asked:
    facts: dict[str, Any] = {
        "run_id": "20261123T030000Z-replay-abcdef",
        "started_utc": "2026-11-23T03:00:00+00:00",
        "command": "replay",
        "version": "0.1.0",
        "machine": None,
        "config_source": "default",
        "config_sha256": "c" * 64,
        "overrides": [],
        "axes": ["prefix.policy=lru,arc,lfu,fifo"],
        "traces_sha256": {"a.jsonl": "d" * 64},
        "points_sha256": "e" * 64,
        "count": len(AXES),
    }
    return Asked(**facts | changes)


def work(number: int) -> Case:
    return CASES[number]


def lost(number: int, why: str) -> Case:
    return make_case(axis=AXES[number], status="failed", error=why)


def run(folder: Path, work: Callable[[int], Case] = work, **changes: Any) -> list[Case]:
    """Take part in the job of a folder."""
    with open_job(folder, asked(**changes), AXES) as job:
        return run_points(Sweep(map_here, job), len(AXES), work, lost, lambda *_: None)


def files(folder: Path) -> dict[str, list[str]]:
    parts = ("todo", "claimed", "done")
    return {
        part: sorted(f.name.split(".")[0] for f in (folder / part).iterdir()) for part in parts
    }


def test_every_point_is_done_once_and_comes_back_in_order(tmp_path: Path) -> None:
    done = list[int]()

    def noted(number: int) -> Case:
        done.append(number)
        return work(number)

    assert run(tmp_path / "job", noted) == CASES
    assert run(tmp_path / "job", noted) == CASES
    assert done == [0, 1, 2, 3]
    assert files(tmp_path / "job") == {
        "todo": [],
        "claimed": [],
        "done": ["00000", "00001", "00002", "00003"],
    }


def test_ctrl_c_leaves_what_is_done_and_gives_the_rest_back(tmp_path: Path) -> None:
    def interrupted(number: int) -> Case:
        if number == 2:
            raise KeyboardInterrupt
        return work(number)

    assert run(tmp_path / "job", interrupted) == CASES[:2]
    assert files(tmp_path / "job")["todo"] == ["00002", "00003"]
    assert run(tmp_path / "job") == CASES


def test_a_point_whose_worker_was_lost_fails_and_is_tried_again(tmp_path: Path) -> None:
    def some_lost(
        work: Callable[[int], Case], numbers: Iterator[int]
    ) -> Iterator[tuple[int, Case | Lost]]:
        yield from ((n, Lost("killed") if n == 1 else work(n)) for n in numbers)

    with open_job(tmp_path / "job", asked(), AXES) as job:
        sweep = Sweep(some_lost, job)  # type: ignore[arg-type]
        cases = run_points(sweep, len(AXES), work, lost, lambda *_: None)
    assert [case.status for case in cases] == ["complete", "failed", "complete", "complete"]
    assert cases[1].error == "killed"
    assert job.left() == 1
    assert run(tmp_path / "job") == CASES


def test_workers_of_one_folder_share_its_points(tmp_path: Path) -> None:
    first, second = (Job(tmp_path / "job", asked()) for _ in range(2))
    with open_job(tmp_path / "job", asked(), AXES), first, second:
        ones, others = first.claims(), second.claims()
        taken = [next(ones), next(others), next(ones), next(others)]
        assert taken == [0, 1, 2, 3]
        assert list(ones) == list(others) == []
        first.keep(0, CASES[0])
        second.keep(1, CASES[1])
    assert files(tmp_path / "job")["todo"] == ["00002", "00003"]
    assert first.finished() == {0: CASES[0], 1: CASES[1]}


def claim_of(folder: Path, owner: str) -> Path:
    claim = folder / "claimed" / f"00000.{owner}.json"
    (folder / "todo" / "00000.json").rename(claim)
    return claim


def test_a_claim_is_taken_back_when_its_process_has_gone(tmp_path: Path) -> None:
    job = open_job(tmp_path / "job", asked(), AXES)
    started = int(psutil.Process().create_time())
    ours = f"{jobs._place()}-{os.getpid()}"
    claim = claim_of(job.folder, f"{ours}-{started}-000000")
    assert next(job.claims()) == 1
    claim.rename(claim.with_name(f"00000.{ours}-{started - 100}-000000.json"))
    assert next(job.claims()) == 0  # the number belongs to another process by now


def test_a_claim_is_taken_back_when_its_process_is_dead_and_nobody_has_waited_for_it(
    tmp_path: Path,
) -> None:
    """So in a container whose first process waits for none but its own."""
    job = open_job(tmp_path / "job", asked(), AXES)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        started = int(psutil.Process(process.pid).create_time())
        claim_of(job.folder, f"{jobs._place()}-{process.pid}-{started}-000000")
        assert next(job.claims()) == 1
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert next(job.claims()) == 0


def test_a_claim_of_another_machine_is_taken_back_when_nobody_touches_it(tmp_path: Path) -> None:
    job = open_job(tmp_path / "job", asked(), AXES)
    claim = claim_of(job.folder, "elsewhere-1-1-000000")
    assert next(job.claims()) == 1
    os.utime(claim, (0, claim.stat().st_mtime - jobs.LEASE_S - 1))
    assert next(job.claims()) == 0


def test_a_worker_whose_claim_was_taken_back_harms_nobody(tmp_path: Path) -> None:
    slow = open_job(tmp_path / "job", asked(), AXES)
    next(slow.claims())
    (claim,) = (slow.folder / "claimed").iterdir()
    os.utime(claim, (0, 0))
    slow._owner, own = "elsewhere-1-1-000000", slow._owner  # as another machine sees it
    claim.rename(claim.with_name("00000.elsewhere-1-1-000000.json"))
    assert run(slow.folder) == CASES
    slow.keep(0, CASES[0])
    slow._owner = own
    assert run(slow.folder) == CASES
    assert files(slow.folder)["claimed"] == []


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"version": "0.2.0"}, r"another version of dsv4kv \(0\.1\.0, now 0\.2\.0\)"),
        ({"traces_sha256": {"a.jsonl": "0" * 64}}, "another trace"),
        ({"config_sha256": "0" * 64}, "another text of the configuration"),
        ({"points_sha256": "0" * 64}, "other settings or axes"),
        ({"machine": "0" * 64}, "another machine, and its points are timed"),
        ({"command": "bench"}, "another command"),
    ],
)
def test_who_asks_for_something_else_is_refused(
    changes: dict[str, Any], what: str, tmp_path: Path
) -> None:
    run(tmp_path / "job")
    with pytest.raises(RecordError, match=what):
        run(tmp_path / "job", **changes)
    run(tmp_path / "job", run_id="another", started_utc="2027-01-01T00:00:00Z", overrides=["a=b"])


def test_a_point_that_was_changed_by_hand_is_a_sentence(tmp_path: Path) -> None:
    run(tmp_path / "job")
    path = tmp_path / "job" / "done" / "00001.json"
    document = json.loads(path.read_text())
    document["case"]["status"] = "failed"
    path.write_text(json.dumps(document))
    with pytest.raises(RecordError, match=r"00001\.json is not what was written .* remove it"):
        run(tmp_path / "job")
    path.write_text("")
    with pytest.raises(RecordError, match="remove it"):
        run(tmp_path / "job")


def test_a_point_whose_damaged_file_was_removed_is_done_again(tmp_path: Path) -> None:
    run(tmp_path / "job")
    (tmp_path / "job" / "done" / "00001.json").unlink()
    tried: list[int] = []

    def note(number: int) -> Case:
        tried.append(number)
        return work(number)

    assert run(tmp_path / "job", note) == CASES
    assert tried == [1]


def test_a_folder_of_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(RecordError, match="holds other files"):
        run(tmp_path)


def test_a_run_is_found_by_its_name_its_record_and_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "one.points"
    run(folder)
    out = tmp_path / "results"
    names = ("one", "one.json", "one.points", str(out / "one.json"), str(folder))
    assert {find_job(name, out) for name in names} == {folder}
    with pytest.raises(RecordError, match="--resume two: no points are kept"):
        find_job("two", out)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_before_any_change_of_a_file_a_sweep_resumes_to_the_same_table(
    tmp_path: Path,
) -> None:
    """The audit hook of a child ends it before its n-th change, for every n (each third here)."""
    changes = 0
    while True:
        folder = tmp_path / f"{changes}.points"
        if _run_and_die(folder, changes) == 0:
            break
        assert run(folder) == CASES
        changes += 1 if FULL else 3
    assert changes > 30


_CHANGES = {"open", "os.rename", "os.link", "os.remove", "os.utime", "os.mkdir", "os.rmdir"}


def _run_and_die(folder: Path, after: int) -> int:
    """Exit code of a process that ends itself before so many changes are made."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads do nothing here
        child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    left = after

    def end(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if event in _CHANGES and folder.name in str(arguments):
            left -= 1
            if left < 0:
                os._exit(9)

    sys.addaudithook(end)
    try:
        run(folder)
    except BaseException:
        os._exit(1)
    os._exit(0)


def test_empty_folders_that_a_copy_left_out_are_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    run(folder)
    for part in ("todo", "claimed"):
        (folder / part).rmdir()
    (folder / "done" / "00001.json").unlink()
    assert run(folder) == CASES


_STAY = r"job cannot be written \({}\)\. Of 4 points 2 are done and stay there: make room"


def full(path: Path, mode: int = 0o666) -> NoReturn:
    """In the place of ``replacing``, as on a disk that is full."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def test_a_disk_that_fills_up_ends_a_sweep_with_a_sentence_and_what_is_done_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "job"

    def fills_up(number: int) -> Case:
        if number == 2:
            monkeypatch.setattr(jobs, "replacing", full)
        return work(number)

    with pytest.raises(RecordError, match=_STAY.format("No space left on device")):
        run(folder, fills_up)
    assert files(folder) == {"todo": ["00002", "00003"], "claimed": [], "done": ["00000", "00001"]}
    monkeypatch.undo()
    assert run(folder) == CASES


def test_a_folder_that_becomes_read_only_refuses_before_a_point_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, done = tmp_path / "job", list[int]()

    def interrupted(number: int) -> Case:
        if number == 2:
            raise KeyboardInterrupt
        return work(number)

    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def noted(number: int) -> Case:
        done.append(number)
        return work(number)

    run(folder, interrupted)
    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(RecordError, match=_STAY.format("Read-only file system")):
        run(folder, noted)
    assert done == []
    monkeypatch.undo()
    assert run(folder, noted) == CASES
    assert done == [2, 3]


def test_a_claim_that_cannot_be_given_back_does_not_hide_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(number: int) -> Case:
        monkeypatch.setattr(Job, "_give_back", full)
        raise ValueError(f"point {number}")

    with pytest.raises(ValueError, match="point 0"):
        run(tmp_path / "job", fails)


_TWO_AT_ONCE = """
import sys, time
from pathlib import Path
from tests.record.test_jobs import run, work

def noted(number):
    with open(sys.argv[2], "a") as log:
        log.write(f"{number}\\n")
    time.sleep(0.05)
    return work(number)

while not Path(sys.argv[3]).exists():
    time.sleep(0.001)
run(Path(sys.argv[1]), noted)
"""


def test_a_folder_that_two_begin_at_once_is_one_job(tmp_path: Path) -> None:
    """Both make it, one wins, and no point is done twice."""
    folder, go = tmp_path / "job", tmp_path / "go"
    logs = [tmp_path / "a", tmp_path / "b"]
    workers = [
        subprocess.Popen([sys.executable, "-c", _TWO_AT_ONCE, str(folder), str(log), str(go)])
        for log in logs
    ]
    go.touch()
    assert [worker.wait(300) for worker in workers] == [0, 0]
    done = [line for log in logs if log.exists() for line in log.read_text().split()]
    assert sorted(done) == ["0", "1", "2", "3"]
    assert run(folder) == CASES
