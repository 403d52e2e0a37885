"""``dsv4kv profile``: from the command to the table, with real and with made-up profilers."""

import gzip
import os
import re
import shlex
import socket
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner, Result

from dsv4kv.cli import app
from dsv4kv.profile.run import choose_tool
from dsv4kv.runs.parts import KernelTable, Profile
from dsv4kv.runs.schema import RunRecord
from dsv4kv.runs.store import load_record
from tests.bench.settings import TINY
from tests.cli import shell
from tests.profile.exports import two_replays
from tests.profile.test_ncu_report_file import context
from tests.profile.tools import Tool, install
from tests.profile.traces import gpu_events, save

invoke = partial(shell.invoke, "profile")

TERMINAL = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
TINY_OPTIONS = [word for setting in TINY for word in ("--set", setting)]
SECRET = "hf_dont_tell_anybody"


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a blank and a quote, without any profiler on PATH."""
    folder = tmp_path / "John's runs"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("HF_TOKEN", SECRET)
    if sys.path[0] not in ("", "."):
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


@pytest.fixture
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    """An nsys that runs the program and then shows what it always shows."""
    tool = install("nsys", tmp_path, monkeypatch)
    (tmp_path / "ready").write_text("a report")
    tool.does("profile", writes=tmp_path / "ready", runs=True)
    tool.does("export", writes=two_replays().save(tmp_path / "ready.sqlite"))
    return tool


@pytest.fixture
def ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    """An ncu that runs the program, and a package that finds one kernel in any report."""
    tool = install("ncu", tmp_path, monkeypatch)
    (tmp_path / "ready").write_text("a report")
    tool.does("profile", writes=tmp_path / "ready", runs=True)
    metrics: dict[str, tuple[float | str, str]] = {
        "gpu__time_duration.sum": (2_000.0, "ns"),
        "dram__bytes_read.sum": (4_000.0, "byte"),
        "dram__bytes_write.sum": (1_000.0, "byte"),
    }
    found = context([[("gather_window", metrics)]])
    monkeypatch.setitem(sys.modules, "ncu_report", SimpleNamespace(load_report=lambda _: found))
    return tool


def profile(*arguments: str) -> Result:
    """Three steps of three short requests."""
    return invoke("smoke", *TINY_OPTIONS, "--steps", "3", *arguments)


def the_record() -> RunRecord:
    (path,) = Path("results").glob("*.json")
    return load_record(path)


def the_profile() -> Profile:
    (case,) = the_record().cases
    assert case.profile is not None
    return case.profile


def the_table() -> KernelTable:
    table = the_profile().table
    assert table is not None
    return table


def refused(result: Result, code: int) -> str:
    assert result.exit_code == code, result.output
    assert result.stderr.startswith("error: ")
    return result.stderr


# ---- torch.profiler, for real -------------------------------------------------------------------


@pytest.fixture(scope="module")
def torch_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A folder and what was printed in it; one run, which many tests look at."""
    folder = tmp_path_factory.mktemp("torch")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("HF_TOKEN", SECRET)
        return folder, profile("--torch", "--set", "measure.memcpy_bytes=2MiB")


@pytest.fixture
def profiled(torch_run: tuple[Path, Result], monkeypatch: pytest.MonkeyPatch) -> Result:
    """Goes into its folder."""
    monkeypatch.chdir(torch_run[0])
    return torch_run[1]


def test_times_of_a_cpu_profile_add_up_to_the_step_within_10_percent(profiled: Result) -> None:
    assert profiled.exit_code == 0
    table, steps = the_table(), the_table().steps
    assert steps is not None
    total = sum(row.total_ns for row in table.kernels)
    assert total + sum(steps.gap_ns) == sum(steps.host_ns)
    # of the step that the machine disturbed least: its schedule is not the profile's doing
    gaps = [gap / host for gap, host in zip(steps.gap_ns, steps.host_ns, strict=True)]
    assert min(gaps) <= 0.1
    assert {"op", "range"} == {row.kind for row in table.kernels}
    found = {row.category for row in table.kernels}
    assert {"insert", "compress", "indexer", "attention"} <= found


def test_neither_secrets_nor_the_hosts_name_are_in_any_file(profiled: Result) -> None:
    for path in Path("results").rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            content = gzip.decompress(data) if path.suffix == ".gz" else data
            assert SECRET.encode() not in content
            assert f'"{socket.gethostname()}"'.encode() not in content
    assert SECRET not in profiled.output


def test_nsys_is_chosen_where_it_and_a_gpu_are(
    nsys: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsv4kv.profile.run.find_device", lambda _: object())
    assert choose_tool(None, "auto") == ("nsys", f"nsys, since it is installed ({nsys.path})")
    monkeypatch.setenv("PATH", "/nowhere")
    tool, why = choose_tool(None, "auto")
    assert (tool, why) == ("torch", "torch.profiler, since nsys is not installed")


# ---- nsys and ncu, made up ----------------------------------------------------------------------


def test_nsys_runs_the_workload_and_its_report_becomes_the_record_without_a_secret(
    nsys: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    result = profile("--nsys")
    assert result.exit_code == 0, result.output
    assert [words[0] for words in nsys.calls()] == ["profile", "export"]
    for environment in nsys.environments():
        assert SECRET not in environment.values()
        assert environment["OMP_NUM_THREADS"] == "1"
    for path in Path("results").rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes()
    found, table = the_profile(), the_table()
    assert table.tool_version == "2025.5.1.121-255136380782v0"
    assert [row.operation for row in table.kernels[:3]] == [
        "window_insert",
        "flush",
        "gather_topk",
    ]
    assert found.step_requests == [2, 2, 2]  # as the program told, which ran
    assert "window_insert swa" in found.useful_bytes
    assert found.command[0] == str(nsys.path)
    assert [Path(name).name for name in found.files] == ["step.nsys-rep", "step.sqlite"]
    assert the_record().argv[0] == "dsv4kv"


def test_the_command_is_printed_so_that_a_shell_takes_it(nsys: Tool) -> None:
    result = profile("--nsys", "--print-command", "--set", "workload.trace=my trace's.jsonl")
    assert result.exit_code == 0
    words = shlex.split(result.stdout)
    assert words[:2] == [str(nsys.path), "profile"]
    program = words[words.index(sys.executable) :]
    assert program[1:6] == ["-P", "-m", "dsv4kv", "profile", "smoke"]
    assert "workload.trace=my trace's.jsonl" in program
    assert program[-2] == "--child"
    assert nsys.calls() == []
    assert not Path("results").exists()


def test_a_printed_command_does_what_it_says(nsys: Tool) -> None:
    result = profile("--nsys", "--print-command", "--out", "elsewhere")
    words = shlex.split(result.stdout)
    program = words[words.index("dsv4kv") + 1 :]
    CliRunner(env=TERMINAL).invoke(app, program, catch_exceptions=False)
    (told,) = Path("elsewhere").rglob("run.json")
    (case,) = load_record(told).cases
    assert case.profile is not None
    assert case.profile.table is None


def test_ctrl_c_names_what_is_left(nsys: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_command: object, log: Path, _timeout: float) -> int:
        log.with_name("step.nsys-rep").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("dsv4kv.profile.launch.run_child", interrupted)
    result = profile("--nsys")
    assert result.exit_code == 130
    assert re.search(r"stopped\. Files left: results/\S+/step\.nsys-rep\.", result.stderr)
    assert not list(Path("results").glob("*.json"))


def test_ncu_counts_bytes_beside_those_that_must_be_moved(ncu: Tool) -> None:
    result = profile("--ncu", "--kernel", "gather")
    assert result.exit_code == 0, result.output
    (words,) = ncu.calls()
    assert "--kernel-name=regex:gather" in words
    (operation,) = the_table().operations
    assert (operation.name, operation.dram_bytes) == ("gather_window", 5_000)
    assert the_table().tool_version == "2025.3.1.0"


def test_a_report_that_could_not_be_read_is_not_made(
    ncu: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ncu_report", None)
    assert "pip install 'dsv4kv[profile]'" in refused(profile("--ncu"), 9)
    assert not ncu.calls()


@pytest.mark.parametrize("tool", ["nsys", "ncu"])
def test_a_profiler_that_is_not_installed_is_named(tool: str) -> None:
    assert f"{tool} is not on PATH" in refused(profile(f"--{tool}"), 9)
    assert not Path("results").exists()


# ---- profiles that exist ------------------------------------------------------------------------


def test_rules_that_take_for_ever_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsv4kv.profile.table._MATCHED_S", 0.2)
    events = gpu_events()
    events += [{**each, "name": "a" * 40 + "!"} for each in events if "dur" in each]
    trace = save(Path("trace.json"), events)
    Path("rules.yaml").write_text("engine: x\nrules: {other: [(a+)+$]}\n")
    said = refused(invoke(str(trace), "--rules", "rules.yaml"), 2)
    assert "write them without repeats of repeats" in said


def test_a_report_of_nsys_is_exported_or_its_export_taken(nsys: Tool) -> None:
    Path("server.nsys-rep").touch()
    assert "window_insert" in invoke("server.nsys-rep").stdout
    assert [words[0] for words in nsys.calls()] == ["export"]
    two_replays().save(Path("server.sqlite"))
    assert "window_insert" in invoke("server.nsys-rep").stdout
    assert len(nsys.calls()) == 1
    assert {path.name for path in Path().glob("server*")} == {"server.nsys-rep", "server.sqlite"}


def test_a_report_newer_than_its_export_is_exported_anew(nsys: Tool) -> None:
    os.utime(two_replays().save(Path("server.sqlite")), (1, 1))
    Path("server.nsys-rep").touch()
    assert "older than" not in invoke("server.nsys-rep").stdout
    assert [words[0] for words in nsys.calls()] == ["export"]


def test_a_profile_of_another_program_is_kept_as_a_record_where_a_folder_is_named() -> None:
    two_replays().save(Path("server.sqlite"))
    shown = invoke(
        "server.sqlite", "--html", "server.html", "--out", "results"
    ).stdout.splitlines()
    (kept,) = Path("results").iterdir()
    assert shown[-1] == f"record: {kept}"
    Path("server.sqlite").unlink()
    assert invoke(str(kept)).stdout.splitlines()[:-1] == shown[:-2]
    assert "gather_topk" in Path("server.html").read_text("utf-8")
    rows = CliRunner().invoke(app, ["report", str(kept), "--csv"]).stdout.splitlines()
    profile = load_record(kept).cases[0].profile
    assert profile
    assert profile.table
    assert len(rows) == 1 + len(profile.table.kernels)


def test_halves_of_characters_in_names_are_shown_and_kept_as_question_marks() -> None:
    events = gpu_events()
    for event in events:
        event["name"] = event["name"].replace("flush", "flush\ud800")
    save(Path("server.json"), events)
    assert "flush?" in invoke("server.json", "--out", "results").stdout
    (kept,) = Path("results").iterdir()
    assert "flush?" in invoke(str(kept)).stdout
