"""Profiling with nsys and ncu, which here are scripts that do as they are told."""

import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from dsv4kv.errors import ProfileError
from dsv4kv.processes import Child
from dsv4kv.profile import launch as la
from tests.profile.exports import two_replays
from tests.profile.tools import NSYS_HELP, Tool, install

PROGRAM = [sys.executable, "-c", "print('the program ran')"]


@pytest.fixture
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    """An nsys that profiles and exports well."""
    tool = install("nsys", tmp_path, monkeypatch)
    tool.does("profile", writes=_file(tmp_path, "a report"), runs=True)
    tool.does("export", writes=two_replays().save(tmp_path / "ready.sqlite"))
    return tool


@pytest.fixture
def ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    tool = install("ncu", tmp_path, monkeypatch)
    tool.does("profile", writes=_file(tmp_path, "a report"))
    return tool


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where profiles go: a name with blanks and quotes."""
    made = tmp_path / """a "folder" of John's"""
    made.mkdir()
    return made


def _file(parent: Path, text: str) -> Path:
    path = parent / "ready"
    path.write_text(text)
    return path


def profile(tool: Tool, folder: Path, timeout_s: float = 60) -> la.Profiled:
    output = folder / "step"
    if tool.name == "nsys":
        command = la.nsys_profile(str(tool.path), output, PROGRAM)
    else:
        command = la.ncu_profile(str(tool.path), output, PROGRAM, None)
    return la.run_profiler(command, output.with_suffix(f".{tool.name}-rep"), timeout_s)


def refused(tool: Tool, folder: Path, timeout_s: float = 60) -> str:
    with pytest.raises(ProfileError) as error:
        profile(tool, folder, timeout_s)
    return str(error.value)


def test_exit_code_143_is_how_nsys_ends_a_program(nsys: Tool, folder: Path) -> None:
    nsys.does("profile", writes=folder.parent / "ready", code=143)
    assert profile(nsys, folder).file.is_file()


@pytest.mark.parametrize(
    ("name", "verb", "what", "sentences", "left"),
    [
        ("nsys", "profile", {"writes": True, "code": 1, "says": "no such device"},
         ["nsys ended with exit code 1: it says: no such device."], "log.txt, step.nsys-rep"),
        ("nsys", "profile", {"says": "nothing was captured"},
         ["nsys wrote no report step.nsys-rep: it says: nothing was captured."], "log.txt"),

        ("nsys", "export", {"code": 1, "says": "a newer report"}, ["step.nsys-rep (exit code 1)"],
         "log.txt, step.nsys-rep"),
        ("ncu", "profile", {"says": "==ERROR== ERR_NVGPUCTRPERM - no permission", "code": 1},
         ["NVreg_RestrictProfilingToAdminUsers=0", "--cap-add=SYS_ADMIN"], "log.txt"),
        ("ncu", "profile", {"says": "No kernels were profiled."},
         ["no kernel was chosen: it says: No kernels were profiled."], "log.txt"),

    ],
)  # fmt: skip
def test_what_fails_is_told_with_the_last_words_and_the_files(
    name: str, verb: str, what: dict[str, Any], sentences: list[str], left: str, folder: Path,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    tool: Tool = request.getfixturevalue(name)
    tool.does(verb, **what | ({"writes": folder.parent / "ready"} if "writes" in what else {}))
    told = refused(tool, folder)
    assert all(sentence in told for sentence in sentences)
    files = ", ".join(f"{folder}/{file}" for file in left.split(", "))
    assert f"Files left: {files}." in told


@pytest.mark.parametrize("how", ["ears", "deaf"])
def test_a_hang_is_ended_and_what_it_left_is_named(
    how: str, nsys: Tool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(la, "GRACE_S", 0.3)
    nsys.does("profile", hangs=how)
    wait = Child.wait

    def wait_until_hanging(process: Child, timeout_s: float | None = None) -> int:
        while not nsys.is_hanging and process._process.poll() is None:
            time.sleep(0.01)
        return wait(process, timeout_s)

    monkeypatch.setattr(Child, "wait", wait_until_hanging)
    sentence = refused(nsys, folder, timeout_s=0.1)
    assert "nsys did not end within 0.1 s and was ended." in sentence
    assert f"{folder}/step.part" in sentence
    running = psutil.process_iter(["cmdline"])
    assert not [each for each in running if str(nsys.path) in (each.info["cmdline"] or ())]


def test_unlisted_options_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = NSYS_HELP.replace("--discard-environment=", "").replace("--cpuctxsw=", "")
    nsys = install("nsys", tmp_path, monkeypatch, profile=old, export="--type= --output=")
    command = la.nsys_profile(str(nsys.path), Path("out/step"), PROGRAM)
    assert command.dropped == ["--cpuctxsw=none", "--discard-environment=true"]
    assert not set(command.dropped) & set(command.words)
    export = la.known_options([str(nsys.path), "export"], la._NSYS_EXPORT, ["a.nsys-rep"])
    assert export.words[1:] == ["export", "--type=sqlite", "a.nsys-rep"]
