"""Settings of a project: where they are looked for, what they change, and what is said of them."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dsv4kv.bench.launches import Task, _environment
from dsv4kv.cli import app, main
from dsv4kv.cli.command import VARIABLE
from dsv4kv.cli.project import TOML, YAML, find_project

SETTINGS = """\
results: runs
gpu: h100
model: v4-pro
engine: vllm
device: cpu
bench:
  launches: 3
  set:
    cache: {block_tokens: 256}
    workload.concurrency: 2
replay:
  set: {prefix.policy: arc}
budget:
  gpus: 8
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with settings; the current folder is one below."""
    monkeypatch.delenv(VARIABLE)
    (tmp_path / ".git").mkdir()
    (tmp_path / YAML).write_text(SETTINGS, "utf-8")
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    return tmp_path


def run(*arguments: str) -> Result:
    terminal = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner(env=terminal).invoke(app, arguments)


def budget(*arguments: str) -> tuple[dict[str, Any], str]:
    """What was asked of a budget, and what it says about settings."""
    done = run("budget", "--json", *arguments)
    asked: dict[str, Any] = json.loads(done.stdout)["inputs"]
    return asked, done.stderr


def config(*arguments: str) -> tuple[list[str], str]:
    """Lines of a resolved configuration, and what is said about settings."""
    done = run("config", "show", *arguments)
    assert done.exit_code == 0, done.output
    return [line.strip() for line in done.stdout.splitlines()], done.stderr


@pytest.mark.usefixtures("project")
def test_a_project_gives_what_the_command_line_leaves_out_and_the_answer_says_so() -> None:
    asked, told = budget()
    assert {"gpu": "h100", "model": "v4-pro", "gpus": 8, "engine": "vllm"}.items() <= asked.items()
    assert told == (
        "settings: ../dsv4kv.yaml (model v4-pro, gpu h100, engine vllm, budget.gpus 8)\n"
    )


@pytest.mark.usefixtures("project")
def test_the_command_line_comes_before_a_project() -> None:
    asked, told = budget("--gpu", "b200", "--model=v4-flash", "--engine", "dsv4kv")
    assert (asked["gpu"], asked["model"]) == ("b200", "v4-flash")
    assert told == "settings: ../dsv4kv.yaml (budget.gpus 8)\n"


@pytest.mark.usefixtures("project")
def test_an_option_that_says_the_same_in_another_way_comes_before_a_project() -> None:
    asked, told = budget("--hbm", "100GiB")
    assert (asked["gpu"], asked["hbm_bytes"]) == (None, 100 * 2**30)
    assert "gpu h100" not in told


@pytest.mark.usefixtures("project")
def test_what_is_swept_is_not_the_project_s() -> None:
    done = run("budget", "--json", "--axis", "gpu=h200,b200", "--axis", "gpus=4,8")
    assert [row["gpu"] for row in json.loads(done.stdout)] == ["h200", "h200", "b200", "b200"]
    assert done.stderr == "settings: ../dsv4kv.yaml (model v4-pro, engine vllm)\n"


@pytest.mark.usefixtures("project")
def test_a_project_changes_a_shipped_configuration() -> None:
    lines, told = config("smoke")
    assert {"block_tokens: 256", "concurrency: 2", "device: cpu"} <= set(lines)
    assert told == (
        "settings: ../dsv4kv.yaml (device cpu, bench.set.cache.block_tokens 256, "
        "bench.set.workload.concurrency 2)\n"
    )


@pytest.mark.usefixtures("project")
def test_set_and_a_named_configuration_come_before_a_project() -> None:
    Path("mine.yaml").write_text("workload: {concurrency: 5}\n", "utf-8")
    lines, told = config("mine.yaml", "--set", "cache.block_tokens=512")
    assert {"block_tokens: 512", "concurrency: 5"} <= set(lines)
    assert told == "settings: ../dsv4kv.yaml (device cpu)\n"


@pytest.mark.usefixtures("project")
def test_a_run_is_kept_where_the_project_says_and_its_record_has_every_setting(
    project: Path,
) -> None:
    done = run("bench", "smoke", "--data", "none", "--launches", "1", "--axis", "device=cpu")
    assert done.exit_code == 0, done.output
    (path,) = (project / "runs").glob("[!.]*.json")
    assert json.loads(path.read_text("utf-8"))["reproduce"] == (
        "dsv4kv bench smoke --set cache.block_tokens=256 --set workload.concurrency=2 "
        "--set 'workload.data=\"none\"' --axis device=cpu"
    )
    assert run("results", "list").stdout.count("smoke") >= 1


@pytest.mark.usefixtures("project")
def test_what_a_replay_sweeps_or_is_given_is_not_the_project_s() -> None:
    arguments = ("replay", "builtin:chat", "--set", "workload.limit=2", "--json", "-")
    told = run(*arguments, "--axis", "prefix.policy=lru,fifo", "--gpu", "h200").stderr
    assert told == "settings: ../dsv4kv.yaml (results runs, model v4-pro)\n"


@pytest.mark.usefixtures("project")
def test_quiet_says_nothing_of_settings() -> None:
    done = run("replay", "builtin:chat", "--gpu", "h200", "--set", "workload.limit=2", "-q")
    assert (done.exit_code, done.output) == (0, "")


@pytest.mark.parametrize(
    ("words", "variable"), [(["--no-settings"], ""), ([], "1")], ids=["option", "variable"]
)
@pytest.mark.usefixtures("project")
def test_settings_can_be_ignored(
    words: list[str], variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, variable)
    done = run(*words, "budget", "--json")
    assert json.loads(done.stdout)["inputs"]["gpu"] is None
    assert done.stderr == ""


@pytest.mark.usefixtures("project")
def test_the_option_to_ignore_settings_may_be_anywhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["dsv4kv", "config", "settings", "--no-settings"])
    with pytest.raises(SystemExit) as end:
        main()
    assert (end.value.code, capsys.readouterr().out[:12]) == (0, "no settings:")


def test_launches_have_a_project_s_settings_as_arguments_alone() -> None:
    assert _environment(Task(()).tree, ())[VARIABLE]


@pytest.mark.usefixtures("project")
def test_config_shows_settings_and_where_they_are_written() -> None:
    lines = run("config", "settings").stdout.splitlines()
    assert lines[0] == "settings: ../dsv4kv.yaml"
    assert [line.split()[:3] for line in lines[3:]] == [
        ["results", "runs", "../dsv4kv.yaml:1"],
        ["gpu", "h100", "../dsv4kv.yaml:2"],
        ["model", "v4-pro", "../dsv4kv.yaml:3"],
        ["engine", "vllm", "../dsv4kv.yaml:4"],
        ["device", "cpu", "../dsv4kv.yaml:5"],
        ["bench.launches", "3", "../dsv4kv.yaml:7"],
        ["bench.set.cache.block_tokens", "256", "../dsv4kv.yaml:9"],
        ["bench.set.workload.concurrency", "2", "../dsv4kv.yaml:10"],
        ["replay.set.prefix.policy", "arc", "../dsv4kv.yaml:12"],
        ["budget.gpus", "8", "../dsv4kv.yaml:14"],
    ]


def test_config_says_that_there_are_no_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE)
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    assert run("config", "settings").stdout.startswith("no settings: neither dsv4kv.yaml nor ")


@pytest.mark.parametrize(
    ("text", "command", "sentence"),
    [
        ("gpus: 8\n", "budget", "dsv4kv.yaml:1: unknown setting gpus (did you mean gpu?): "),
        ("gpu: h2000\n", "budget", "dsv4kv.yaml:1: gpu: no GPU 'h2000' (did you mean h200"),
        ("model: [a]\n", "budget", "dsv4kv.yaml:1: model is [a]: write text or a number."),
        ("a: 1\nbudget: {gpus: 0}\n", "budget", "dsv4kv.yaml:1: unknown setting a: "),
        ("budget: {gpus: 0}\n", "budget", "dsv4kv.yaml:1: budget.gpus: 0 is too few: "),
        ("bench: {launches: x}\n", "bench", "dsv4kv.yaml:1: bench.launches: "),
        (
            "bench:\n  set:\n    cache.block_token: 1\n",
            "config show",
            "dsv4kv.yaml:3: unknown key cache.block_token (did you mean cache.block_tokens?); ",
        ),
        (
            "bench: {set: {cache: {block_tokens: 100}}}\n",
            "config show",
            "dsv4kv.yaml:1: cache.block_tokens is 100: give an integer above 0, a multiple",
        ),
        (
            "replay: {set: {prefix.policy: x}}\nengine: vlm\n",
            "config settings",
            "dsv4kv.yaml:2: engine: no engine 'vlm' (did you mean ",
        ),
        ("device: tpu\n", "config settings", "dsv4kv.yaml:1: device is 'tpu': give one of"),
        ("- a\n", "budget", "dsv4kv.yaml:1: the file is a list: settings are a mapping, "),
        ("gpu: h100\ngpu: h200\n", "budget", "dsv4kv.yaml:2: gpu is given twice, first on "),
        ("gpu: {\n", "budget", "dsv4kv.yaml:2: this is not YAML: "),
        ("\xff", "budget", "dsv4kv.yaml cannot be read (not UTF-8): mend it, or add --no-set"),
    ],
)
def test_a_wrong_setting_is_a_sentence_with_its_place(
    text: str, command: str, sentence: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    (project / YAML).write_text(text, "latin-1")
    done = run(*command.split())
    told = [line for line in done.stderr.splitlines() if not line.startswith("settings:")]
    assert (done.exit_code, done.stdout) == (2, "")
    assert [line.startswith(f"error: {sentence}") for line in told] == [True], told


@pytest.mark.parametrize(("language", "name"), [("yaml", YAML), ("toml", TOML)])
def test_the_guide_s_settings_are_right(language: str, name: str, project: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "settings.md").read_text("utf-8")
    (block,) = re.findall(rf"^```{language}\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    (project / "sub" / name).write_text(block, "utf-8")
    done = run("config", "settings")
    assert (done.exit_code, done.stdout.splitlines()[0]) == (0, f"settings: {name}")


def test_help_needs_no_settings(project: Path) -> None:
    (project / YAML).write_text("{", "utf-8")
    assert run("budget", "--help").exit_code == 0


def find(folder: Path) -> Path | None:
    found = find_project(folder)
    return found.path if found else None


def test_the_nearest_settings_count_and_yaml_before_toml(project: Path) -> None:
    toml = '[tool.dsv4kv]\ngpu = "b200"\n[tool.dsv4kv.bench.set]\ncache.block_tokens = 256\n'
    (project / TOML).write_text(toml, "utf-8")
    assert find(project / "sub") == project / YAML
    (project / "sub" / TOML).write_text(toml, "utf-8")
    assert find(project / "sub") == project / "sub" / TOML
    shown = [line.split()[:4] for line in run("config", "settings").stdout.splitlines()[3:]]
    key = "bench.set.cache.block_tokens"
    assert shown == [
        ["gpu", "b200", "pyproject.toml:", "tool.dsv4kv.gpu"],
        [key, "256", "pyproject.toml:", f"tool.dsv4kv.{key}"],
    ]


@pytest.mark.parametrize("text", ['[project]\ndependencies = ["dsv4kv"]\n', "[tool]\n", "no TOML"])
def test_a_pyproject_about_other_programs_is_passed_by(text: str, project: Path) -> None:
    (project / "sub" / TOML).write_text(text, "utf-8")
    assert find(project / "sub") == project / YAML


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[tool.dsv4kv\n", "pyproject.toml: this is not TOML ("),
        ("[tool]\ndsv4kv = 1\n", "pyproject.toml: tool.dsv4kv is 1: write a table"),
        ("[tool.dsv4kv]\na = 1\n", "pyproject.toml: tool.dsv4kv.a: unknown setting a: "),
    ],
)
def test_a_wrong_table_is_a_sentence(text: str, sentence: str, project: Path) -> None:
    (project / "sub" / TOML).write_text(text, "utf-8")
    done = run("budget")
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {sentence}")


def test_settings_above_a_repository_or_the_home_folder_are_not_looked_for(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "sub" / ".git").touch()  # as a work tree has it
    assert find(project / "sub") is None
    (project / "sub" / ".git").unlink()
    assert find(project / "sub") is not None
    monkeypatch.setenv("HOME", str(project / "sub"))
    assert find(project / "sub") is None


def test_settings_in_a_folder_above_that_everybody_can_write_to_are_not_looked_for(
    project: Path,
) -> None:
    project.chmod(0o777)
    assert find(project / "sub") is None
    assert find(project) == project / YAML


def test_settings_may_be_a_pipe_or_huge_and_nothing_hangs(project: Path) -> None:
    (project / YAML).write_bytes(b"#" * (2 << 20))
    done = run("budget")
    assert (done.exit_code, done.stderr.count("larger than 1 MiB")) == (2, 1)
