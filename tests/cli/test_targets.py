"""Files and folders to be written: refused before the work where they cannot be."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dsv4kv.cli import app
from dsv4kv.files import check_file, check_folder

COMMANDS = {
    "--json": (
        "bench gone",
        "replay gone.jsonl",
        "plan gone.jsonl --slo ttft_p50=1s",
        "replay calibrate gone.jsonl",
    ),
    "--chart": (
        "replay gone.jsonl",
        "trace mrc gone.jsonl",
        "budget --gpu none --axis context=4K",
    ),
    "--html": (
        "plan gone.jsonl --slo ttft_p50=1s",
        "probe http://127.0.0.1:1",
        "compare gone.json gone.json",
        "report gone.json",
        "profile gone.json",
    ),
}
"""Commands whose work would fail, too, and at once: so the target is looked at first."""


def refused(command: str, option: str, target: str) -> str:
    """What a command says that is refused, and has done nothing."""
    before = sorted(Path().rglob("*"))
    result = CliRunner().invoke(app, [*command.split(), option, target])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert sorted(Path().rglob("*")) == before
    return result.stderr


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("file").touch()


@pytest.mark.parametrize(
    ("option", "command"), [(name, each) for name, all_ in COMMANDS.items() for each in all_]
)
@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("missing/a.html", "No such file or directory"),
        ("folder", "Is a directory"),
        ("file/a.html", "Not a directory"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_work(
    option: str, command: str, target: str, reason: str
) -> None:
    said = refused(command, option, target)
    expected = f"error: {option} {target}: cannot be written ({reason}): name a file in a folder"
    assert said == f"{expected} that exists.\n"


@pytest.mark.parametrize("target", ["file", "file/new"])
@pytest.mark.parametrize("command", ["bench gone", "replay gone.jsonl", "compare gone gone"])
def test_a_folder_that_cannot_be_made_is_refused_before_the_work(
    command: str, target: str
) -> None:
    expected = f"error: --out {target}: cannot be written (Not a directory): name another folder."
    assert refused(command, "--out", target) == f"{expected}\n"


@pytest.mark.parametrize("command", ["trace convert builtin:chat", "trace tokenize gone.json"])
@pytest.mark.parametrize(
    ("target", "sentence"),
    [("missing/a.jsonl", "No such file"), ("folder", "Is a directory")],
)
def test_a_trace_that_cannot_be_written_is_refused_before_another_is_read(
    command: str, target: str, sentence: str
) -> None:
    options = ["--sort"] if "convert" in command else ["--tokenizer", "gone"]
    result = CliRunner().invoke(app, [*command.split(), target, *options])
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr.startswith(f"error: {target}")
    assert f"cannot be written ({sentence}" in result.stderr


@pytest.mark.parametrize("command", ["replay gone.jsonl --chart", "plan gone --slo x=1s --html"])
@pytest.mark.parametrize("same", ["a.svg", "folder/../a.svg", "link"])
def test_two_outputs_of_one_name_are_refused_before_the_work(command: str, same: str) -> None:
    Path("link").symlink_to("a.svg")
    said = refused(f"{command} a.svg", "--json", same)
    assert said.startswith("error: --")
    assert said.endswith(": name two files.\n")


def test_a_read_only_place_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its permissions, which do not bind root, so they are asked for here."""
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != Path("folder"))
    with pytest.raises(PermissionError):
        check_file(Path("folder/a.json"))
    with pytest.raises(PermissionError):
        check_folder(Path("folder/new/deeper"))
    check_file(Path("file"))
    said = refused("replay gone.jsonl", "--out", "folder/new")
    assert "cannot be written (Permission denied): name another folder." in said


def test_results_that_nobody_named_are_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record has another place then, and a warning."""
    Path("results").touch()
    monkeypatch.setenv("TMPDIR", "folder")
    monkeypatch.setattr("tempfile.tempdir", None)
    result = CliRunner().invoke(app, ["replay", "builtin:chat", "-q", "--json", "-"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["status"] == "complete"
    assert "the record is saved in" in result.stderr
    assert len(list(Path("folder").glob("*.json"))) == 1


@pytest.mark.parametrize(
    "command",
    [
        "report FILE --html",
        "replay FILE --json",
        "replay . --against --json",
        "replay --config replay.yaml --json",
        "replay builtin:chat --set server.command=FILE --json",
        "replay builtin:chat --axis cost.calibration=a,FILE --json",
        "trace convert FILE",
        "trace tokenize --tokenizer . FILE",
    ],
)
def test_what_a_command_reads_is_not_written_over(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file, link = Path("file.jsonl"), Path("link.jsonl")
    row = {"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}
    file.write_text(json.dumps(row))
    link.symlink_to(file)
    Path("replay.yaml").write_text(f"workload: {{trace: {file}}}")
    before = file.read_bytes()
    words = command.replace("FILE", str(file)).split()
    for out in (file, link):
        result = CliRunner().invoke(app, [*words, str(out)])
        assert (result.exit_code, file.read_bytes(), link.is_symlink()) == (2, before, True)
        assert "would overwrite what the command reads" in result.stderr


@pytest.mark.usefixtures("in_a_folder")
def test_what_a_command_has_written_is_written_again() -> None:
    Path("replay.yaml").write_text("workload: {trace: 'builtin:chat'}\nname: ''")
    words = "replay --config replay.yaml -q --set workload.limit=9 --json=a.json"
    for _ in range(2):
        assert CliRunner().invoke(app, words.split()).exit_code == 0
