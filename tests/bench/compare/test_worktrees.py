"""Revisions as folders: the right files, and nothing left behind."""

import subprocess
from pathlib import Path

import pytest

from dsv4kv.bench.compare.ab import checked_out
from dsv4kv.errors import ConfigError


def git(*arguments: str) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    done = subprocess.run(
        ("git", *identity, *arguments), capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture(autouse=True)
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


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_nothing_is_left_behind_however_the_block_ends(
    clone: Path, error: type[BaseException]
) -> None:
    with pytest.raises(error), checked_out("main"):
        raise error
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


def test_outside_a_clone_the_sentence_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with (
        pytest.raises(ConfigError, match="find the source tree that main is of: run --ab"),
        checked_out("main"),
    ):
        pass
