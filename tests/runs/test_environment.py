"""The environment of a run: the record's fields, absent facts, and nothing private."""

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dsv4kv.runs import environment
from dsv4kv.runs.environment import capture_environment
from dsv4kv.runs.schema import Environment

SECRET = "hunter2-do-not-tell"


def test_the_facts_are_exactly_the_fields_of_the_record() -> None:
    facts = capture_environment()
    assert set(facts) | {"gpu"} == set(Environment.model_fields)  # which torch tells
    assert Environment.model_validate(facts, strict=True)


def test_only_allowed_variables_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    for name in ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "OMP_NUM_THREADS_TOKEN", "GIT_ASKPASS"):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    facts = capture_environment()
    assert facts["variables"]["OMP_NUM_THREADS"] == "3"
    assert "MKL_NUM_THREADS" not in facts["variables"]
    assert SECRET not in json.dumps(facts)


def test_the_host_is_told_by_a_digest_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "secret-host-name")
    told = capture_environment()
    assert "secret-host-name" not in json.dumps(told)
    assert len(told["hostname_sha256"]) == 64
    monkeypatch.setattr("socket.gethostname", lambda: "another-host")
    assert capture_environment()["hostname_sha256"] != told["hostname_sha256"]


def test_facts_not_to_be_had_are_absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise OSError

    for name in ("_CPUINFO", "_GOVERNOR", "_SOURCE_TREE"):
        monkeypatch.setattr(environment, name, tmp_path / "absent")
    monkeypatch.setattr("os.getloadavg", fail)
    monkeypatch.setattr("os.sysconf", fail)
    monkeypatch.setattr("platform.system", lambda: "Linux")
    facts = capture_environment()
    absent = ("cpu", "governor", "git_sha", "git_dirty", "load_1min", "memory_bytes")
    assert [facts[name] for name in absent] == [None] * len(absent)


@pytest.fixture
def work_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git work tree with one commit, taken as the tree the package runs from."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "file").write_text("committed")
    git(tree, "init", "--quiet")
    git(tree, "add", "file")
    git(tree, "commit", "--quiet", "--message", "one")
    monkeypatch.setattr(environment, "_SOURCE_TREE", tree)
    return tree


def git(tree: Path, *arguments: str) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    settings = ("commit.gpgsign=false", "user.name=x", "user.email=x@y")
    command = ["git", *(word for each in settings for word in ("-c", each)), "-C", str(tree)]
    return subprocess.check_output([*command, *arguments], env=clean, text=True).strip()


def test_a_clean_work_tree_is_told_by_its_revision(work_tree: Path) -> None:
    facts = capture_environment()
    assert facts["git_sha"] == git(work_tree, "rev-parse", "HEAD")
    assert facts["git_dirty"] is False


def test_a_git_hook_points_nowhere_else(work_tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", str(work_tree / "elsewhere"))
    assert capture_environment()["git_sha"] == git(work_tree, "rev-parse", "HEAD")


def test_another_tree_is_no_revision(work_tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = work_tree / ".venv" / "site-packages"
    installed.mkdir(parents=True)
    monkeypatch.setattr(environment, "_SOURCE_TREE", installed)
    facts = capture_environment()
    assert (facts["git_sha"], facts["git_dirty"]) == (None, None)


def test_no_program_of_the_working_directory_is_run(tmp_path: Path) -> None:
    for name in ("uname", "file", "git", "sysctl"):
        (tmp_path / name).write_text("#!/bin/sh\necho > ran\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    program = f"from {environment.__name__} import capture_environment as c; c()"
    variables = {**os.environ, "PATH": ":.:/usr/bin:/bin"}
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=variables, check=True)
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems are told with less")
def test_the_platform_is_the_one_that_python_names() -> None:
    assert capture_environment()["platform"] == platform.platform()
