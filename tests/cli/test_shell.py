import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dsv4kv import __version__, errors
from dsv4kv.cli import app, main
from dsv4kv.errors import Dsv4kvError

TERMINAL = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
ERRORS: list[type[Dsv4kvError]] = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and value.__module__ == errors.__name__
]
HEAVY = ("torch", "numpy", "pydantic")
pytestmark = pytest.mark.usefixtures("handlers")  # main() sets them


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``dsv4kv config show`` end in an error, and ``main`` run it."""

    def load_config(*_: object) -> None:
        raise error

    monkeypatch.setattr("dsv4kv.config.load.load_config", load_config)
    monkeypatch.setattr(sys, "argv", ["dsv4kv", "config", "show"])


@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_is_told_on_stderr_line_by_line_with_its_exit_code(
    kind: type[Dsv4kvError], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(kind("this is wrong.\nand that [too]."), monkeypatch)
    with pytest.raises(SystemExit) as end:
        main()
    told = capsys.readouterr()
    assert end.value.code == kind.exit_code
    assert (told.out, told.err) == ("", "error: this is wrong.\nerror: and that [too].\n")


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_a_machine_that_is_full_is_a_sentence(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(error, monkeypatch)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert capsys.readouterr().err == "error: there is not enough memory for this.\n"


def test_an_unexpected_error_is_one_sentence_that_says_where_and_whom_to_tell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(KeyError("no\nsuch \x1b]52;c;eA==\a key"), monkeypatch)
    with pytest.raises(SystemExit) as end:
        main()
    told = capsys.readouterr()
    assert (end.value.code, told.out) == (70, "")
    (line,) = told.err.splitlines()
    assert line.startswith("error: this should not have happened (KeyError: ")
    assert "test_shell.py" not in line
    assert "saved.py:" in line
    assert f"dsv4kv {__version__}" in line
    assert "--debug" in line
    assert "\x1b" not in line


@pytest.mark.parametrize("words", [["--debug", "config", "show"], ["config", "show", "--debug"]])
def test_debug_shows_where_an_unexpected_error_came_from(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with(KeyError("gone"), monkeypatch)
    monkeypatch.setattr(sys, "argv", ["dsv4kv", *words])
    with pytest.raises(KeyError, match="gone"):
        main()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
@pytest.mark.parametrize(
    "command", [("budget",), ("config", "show"), ("bench", "--model", "—")], ids=" ".join
)
def test_a_stream_that_is_not_utf_8_loses_glyphs_and_not_the_answer(
    command: tuple[str, ...], encoding: str
) -> None:
    done = [
        subprocess.run(
            [sys.executable, "-m", "dsv4kv", *command],
            capture_output=True,
            env=os.environ | TERMINAL | {"PYTHONIOENCODING": each, "PYTHONUTF8": "0"},
            check=False,
        )
        for each in (encoding, "utf-8")
    ]
    assert done[0].returncode == done[1].returncode
    assert b"Traceback" not in done[0].stderr
    lossy, whole = (each.stdout + each.stderr for each in done)
    assert lossy.count(b"\n") == whole.count(b"\n") > 0


def test_json_is_utf_8_whatever_the_stream() -> None:
    command = [sys.executable, "-m", "dsv4kv", "budget", "--json"]
    lossy, whole = (
        subprocess.run(
            command, capture_output=True, env=os.environ | {"PYTHONIOENCODING": each}, check=True
        ).stdout
        for each in ("ascii", "utf-8")
    )
    assert lossy == whole
    json.loads(whole)


@pytest.mark.parametrize(
    ("module", "words", "code", "said"),
    [
        ("typer", ["--version"], -signal.SIGINT, ""),
        ("yaml", ["budget"], 130, "interrupted before there was an answer.\n"),
        ("mdurl", ["bench", "--none"], 130, "interrupted before there was an answer.\n"),
    ],
)
def test_ctrl_c_while_something_is_imported_is_no_traceback(
    module: str, words: list[str], code: int, said: str, tmp_path: Path
) -> None:
    interrupting = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(9)"
    (tmp_path / f"{module}.py").write_text(interrupting)
    path = os.pathsep.join([str(tmp_path), str(Path(errors.__file__).parents[1])])
    command = [sys.executable, "-P", "-m", "dsv4kv", *words]
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, said)


def test_a_full_disk_behind_stderr_leaves_the_exit_code() -> None:
    words = [sys.executable, "-P", "-m", "dsv4kv", "lint", "none.sh"]
    with Path("/dev/full").open("wb") as full:
        assert subprocess.run(words, stdout=full, stderr=full, check=False).returncode == 2


@pytest.mark.parametrize("arguments", [["--version"], ["config", "schema", "--json"]])
def test_a_closed_pipe_ends_the_program_quietly(arguments: list[str]) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "dsv4kv", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        told = process.stderr.read()
    assert (told, process.returncode) == (b"", 141)


def test_help_imports_neither_torch_nor_numpy_nor_pydantic() -> None:
    lines = (
        "--help|--version|bench --help|budget --help|compare --help|doctor --help|kernels --help"
        "|profile --help|replay --help|report --help|trace --help"
        "|trace info --help|trace mrc --help|config --help|config show --help"
    )
    commands = [line.split() for line in lines.split("|")]
    of_configurations = ["config", "show", "default"], ["config", "schema"]
    found = imported_by(*commands, *of_configurations)
    assert found == [*[[]] * len(commands), ["pydantic"], ["pydantic"]]


@pytest.mark.parametrize(("command", "most"), [("--help", 25), ("budget", 60)])
def test_few_of_our_own_modules_are_imported(command: str, most: int) -> None:
    code = (
        "import sys; from dsv4kv.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(*(name for name in sys.modules if name.startswith('dsv4kv')), file=sys.stderr)"
    )
    own = run_python("-c", code, command).stderr.split()
    assert "dsv4kv.cli" in own
    assert len(own) <= most, own


def imported_by(*commands: Sequence[str]) -> list[list[str]]:
    """Those of the heavy packages that are imported after each run of the program, of several."""
    program = (
        "import json, sys; from dsv4kv.cli import main\n"
        "for sys.argv[1:] in json.loads(sys.argv[1]):\n"
        "    try: main()\n"
        "    except SystemExit as end: assert not end.code, sys.argv\n"
        f"    print(*(name for name in {HEAVY} if name in sys.modules), file=sys.stderr)"
    )
    done = run_python("-c", program, json.dumps(commands))
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stderr.splitlines()]


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=600
    )


@pytest.mark.parametrize(
    "words", [("budget", "--model", "x" * 300), ("trace", "info", "x" * 300), ("lint", "x/" * 400)]
)
def test_what_a_file_system_refuses_is_a_sentence(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code in (2, 4)
    assert result.stderr.startswith("error: ")
    assert "x/x" in result.stderr or "xxx" in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("replay", "--set", "cost.gpu=h200"),
        ("trace", "mrc"),
        ("trace", "mrc", "--rule", "all", "--capacity", "1000"),
        ("plan", "--slo", "ttft_p99=2s"),
    ],
    ids=" ".join,
)
def test_the_name_of_a_trace_is_one_word_of_the_command_that_is_offered(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "$(touch x) 'y'.jsonl"
    row = {"arrival_s": 0, "input_tokens": 99, "output_tokens": 9}
    rows = [row | {"prefix_hashes": [1, at], "hash_block_tokens": 64} for at in (2, 3)]
    Path(name).write_text("".join(f"{json.dumps(each)}\n" for each in rows), encoding="utf-8")
    result = CliRunner(env=TERMINAL).invoke(app, [*words, name])
    assert result.exit_code == 0, result.output
    (line,) = (each for each in result.stdout.splitlines() if each.startswith("dsv4kv "))
    assert name in shlex.split(line)
