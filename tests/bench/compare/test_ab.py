"""A against B: in which order they run, what each runs, what is kept, and revisions as folders."""

import subprocess
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dsv4kv.bench.compare.ab import Duel, Unit, checked_out, run_duel
from dsv4kv.bench.compare.comparison import count_launches
from dsv4kv.bench.launches import Outcome, Task
from dsv4kv.errors import ConfigError
from tests.runs.records import make_case, make_record

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


SEED = 46  # draws A B B A A B, of steps and of launches


def duel(first: str, second: str, config: str | None = None, *overrides: str) -> Duel:
    return Duel((first, second), config, overrides, (), 3, ["dsv4kv"], order_seed=SEED)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """The tasks that were run; each leaves a record at once."""
    tasks: list[Task] = []

    def run(together: Sequence[Task], _timeout_s: float) -> list[Outcome]:
        pair = f"pair-{len(tasks)}" if len(together) == 2 else ""
        outcomes = []
        for task in together:
            began = NOON + timedelta(minutes=len(tasks))
            tasks.append(task)
            record = make_record(make_case())
            outcomes.append(Outcome(task, began, began, "complete", None, record, False, 0, pair))
        return outcomes

    monkeypatch.setattr("dsv4kv.bench.launches.run_fresh", run)
    return tasks


def run(asked: Duel) -> None:
    run_duel(asked, lambda _outcomes, _task: None)


def test_two_revisions_run_the_text_of_this_configuration_in_trees_of_their_own(
    ran: list[Task], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trees = {"main": tmp_path / "main", ".": tmp_path / "here"}
    monkeypatch.setattr("dsv4kv.bench.compare.ab.checked_out", lambda ref: nullcontext(trees[ref]))
    run(duel("git:main", ".", "smoke"))
    assert [task.tree for task in ran[:2]] == [tmp_path / "main", tmp_path / "here"]
    (source,) = {task.arguments[0] for task in ran}
    assert Path(source).is_absolute()
    assert Path(source).name == "smoke.yaml"


@pytest.mark.parametrize(
    ("turns", "driver", "device", "pairs"),
    [
        ("step", None, "auto", ["pair-0", "pair-2", "pair-4"]),
        ("step", "580.95", "cuda", ["pair-0", "pair-2", "pair-4"]),
        ("launch", None, "cpu", ["", "", ""]),
        (None, "580.95", "cpu", ["pair-0", "pair-2", "pair-4"]),
        (None, "580.95", "auto", ["", "", ""]),
    ],
)
def test_steps_take_turns_unless_a_gpu_would_have_to_hold_two_caches(
    ran: list[Task],
    monkeypatch: pytest.MonkeyPatch,
    turns: Unit | None,
    driver: str | None,
    device: str,
    pairs: list[str],
) -> None:
    monkeypatch.setattr(
        "dsv4kv.bench.compare.ab.capture_environment", lambda: {"versions": {"driver": driver}}
    )
    asked = duel("backend:cpu", "backend:cpu", "smoke", f"device={device}")
    sides, _ = run_duel(replace(asked, turns=turns), lambda _outcomes, _task: None)
    for side in sides:
        record = side.records[0]
        assert [launch.pair for launch in record.launches] == pairs
        assert count_launches(side) == 3
        assert ("--turns" in record.reproduce) == (turns is not None)
    assert "".join(task.side for task in ran) == "ABBAAB"


def test_ctrl_c_leaves_both_sides_with_what_they_have(ran: list[Task]) -> None:
    def interrupt(outcomes: Sequence[Outcome], _task: Task) -> None:
        if len(outcomes) == 4:
            raise KeyboardInterrupt

    sides, interrupted = run_duel(duel("backend:cpu", "backend:cpu"), interrupt)
    assert interrupted
    assert [count_launches(side) for side in sides] == [2, 2]
    assert {side.records[0].status for side in sides} == {"incomplete"}


@pytest.mark.parametrize(
    ("first", "second", "config", "sentence"),
    [
        ("main", "mine.yaml", None, "one is a git, the other a config"),
        ("backend:cpu", "main", None, "one is a backend, the other a git"),
        ("config:smoke", "config:default", "smoke", "A and B are the configurations"),
        ("config:smke", "config:default", None, "did you mean smoke"),
        ("gone.yaml", "gone.yaml", None, "cannot be read"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_runs(
    ran: list[Task], first: str, second: str, config: str | None, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        run(duel(first, second, config))
    assert ran == []


def git(*arguments: str) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    done = subprocess.run(
        ("git", *identity, *arguments), capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with two revisions of a package; the tests run in it."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "tmp").mkdir()
    package = tmp_path / "clone" / "dsv4kv"
    package.mkdir(parents=True)
    monkeypatch.chdir(package.parent)
    git("init", "--quiet", "--initial-branch=main")
    for text in ("one", "two"):
        (package / "__main__.py").write_text(text)
        git("add", ".")
        git("commit", "--quiet", "--message", text)
    return package.parent


def left_behind(clone: Path) -> tuple[int, list[Path]]:
    """Work trees that git knows beside the clone, and files in the temporary folder."""
    trees = git("worktree", "list", "--porcelain").count("worktree ") - 1
    return trees, list((clone.parent / "tmp").iterdir())


def test_a_revision_is_a_folder_with_its_files_and_then_gone(clone: Path) -> None:
    with checked_out("HEAD~1") as tree:
        assert (tree / "dsv4kv" / "__main__.py").read_text() == "one"
    assert not tree.exists()
    assert left_behind(clone) == (0, [])


@pytest.mark.parametrize("revision", ["gone", "--help", "-q", "HEAD:dsv4kv", ""])
def test_what_is_no_revision_is_refused(clone: Path, revision: str) -> None:
    with (
        pytest.raises(ConfigError, match="git could not find the revision"),
        checked_out(revision),
    ):
        pass
    assert left_behind(clone) == (0, [])


def test_a_revision_without_the_package_is_refused(clone: Path) -> None:
    git("rm", "--quiet", "-r", "dsv4kv")
    git("commit", "--quiet", "--allow-empty", "--message", "empty")
    with pytest.raises(ConfigError, match="holds no dsv4kv"), checked_out("HEAD"):
        pass
    assert left_behind(clone) == (0, [])
