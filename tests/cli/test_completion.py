"""What shells are offered, asked as they ask."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer._completion_classes import completion_init
from typer.testing import CliRunner

from dsv4kv import choices
from dsv4kv.cli import app
from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.keys import keys
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.resources import shipped_names


@pytest.fixture(scope="module", autouse=True)
def shells() -> None:
    completion_init()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where keys of settings are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dsv4kv"


def complete(line: str, shell: str = "bash") -> list[str]:
    """What a shell is offered at the end of a line."""
    words = line.split(" ")
    env = {
        "_DSV4KV_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = CliRunner().invoke(app, [], env=env, prog_name="dsv4kv")
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


@pytest.mark.parametrize(("command", "root"), [("bench", BenchConfig), ("replay", ReplayConfig)])
@pytest.mark.parametrize("option", ["--set", "--axis"])
def test_keys_of_settings_are_offered(command: str, root: type[BenchConfig], option: str) -> None:
    values = [f"{path}=" for path, key in keys(root).items() if not key.is_section]
    assert [word for word in complete(f"dsv4kv {command} {option} ") if word] == values


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("dsv4kv bench --set cache.sharing=", ["model", "type", "layer"]),
        ("dsv4kv bench --set cache.prefix.policy=l", ["lru", "lfu", "lfu-aged"]),
        ("dsv4kv replay --set prefix.defer=", ["true", "false"]),
        ("dsv4kv bench --set model.formats.main=n", ["null"]),
    ],
)
def test_values_that_are_choices_are_offered_behind_their_key(
    line: str, offered: list[str]
) -> None:
    key = line.rsplit(" ", maxsplit=1)[-1].partition("=")[0]
    assert complete(line) == [f"{key}={name}" for name in offered]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("dsv4kv replay --axis prefix.policy=lru,s", ["lru,sieve", "lru,s3fifo"]),
        ("dsv4kv budget --axis gpu=h200,h1", ["h200,h100"]),
    ],
)
def test_a_value_of_a_sweep_is_offered_once_and_behind_those_before_it(
    line: str, offered: list[str]
) -> None:
    key = line.rsplit(" ", maxsplit=1)[-1].partition("=")[0]
    assert complete(line) == [f"{key}={values}" for values in offered]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("budget --gpu ", shipped_names("gpus")),
        ("budget --model ", ["gqa8", *shipped_names("models")]),
        ("budget --engine sglang:", [n for n in choices.ENGINES if n.startswith("sglang:")]),
        ("budget --state ", list(choices.SIZED_STATES)),
        ("bench ", ["systems", "tiers", "transfer", *shipped_names("bench")]),
        ("bench --backend ", [*choices.BACKENDS, *choices.PEERS]),
        ("replay --config ", shipped_names("replay")),
        ("replay --rule v", [n for n in choices.RULES if n.startswith("v")]),
        ("replay --strategy ", list(choices.STRATEGIES)),
        ("trace info --format ", ["auto", *choices.TRACE_FORMATS]),
        ("trace mrc t.jsonl --policy ", [*choices.POLICIES, *choices.OFFLINE_POLICIES]),
        ("trace convert a b --to ", [*choices.TRACE_LINES, *choices.TRACE_FILES]),
        ("config show ", shipped_names("bench")),
    ],
)
def test_names_are_offered_where_one_is_wanted(line: str, offered: list[str]) -> None:
    assert complete(f"dsv4kv {line}") == offered


def test_saved_runs_are_offered_newest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("results").mkdir()
    for name in ("20260101-a", "20260102-b", ".index"):
        Path("results", f"{name}.json").touch()
    assert complete("dsv4kv results show ") == ["last", "20260102-b", "20260101-a"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_shells_that_show_it_are_told_what_a_choice_does(shell: str) -> None:
    offered = "\n".join(complete("dsv4kv replay --policy sie", shell))
    assert "sieve" in offered
    assert choices.POLICIES["sieve"].explains in offered


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_words_that_it_parts_itself() -> None:
    lines = ["dsv4kv bench --set cache.prefix.policy=si", "dsv4kv budget --engine vllm:0.33"]
    asked = "\n".join(
        f'COMP_LINE="{line}" COMP_POINT={len(line)}; _dsv4kv_completion dsv4kv; '
        'echo "${COMPREPLY[*]}"'
        for line in lines
    )
    script = CliRunner().invoke(app, ["completion", "bash"]).output
    program = script.replace("complete_bash $1", f"complete_bash {sys.executable} -m dsv4kv")
    done = subprocess.run(
        ["bash", "--norc", "-c", f"{program}\n{asked}"], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["sieve", "0.33"]


def imported_by(line: str) -> tuple[list[str], list[str]]:
    """What a new process offers at the end of a line, and the heavy packages it imports."""
    program = (
        "import os, sys; from dsv4kv.cli import main\n"
        "os.environ.update(_DSV4KV_COMPLETE='complete_bash', COMP_CWORD='3')\n"
        f"os.environ['COMP_WORDS'] = {line!r}\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'yaml', 'importlib.metadata'}\n"
        "print(*sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines(), done.stderr.split()


def test_a_schema_is_imported_for_the_first_completion_only() -> None:
    line = "dsv4kv bench --set cache.prefix.policy=si"
    first, second = imported_by(line), imported_by(line)
    assert first[0] == second[0] == ["cache.prefix.policy=sieve"]
    assert "pydantic" in first[1]
    assert not {"torch", "numpy"} & set(first[1])
    assert second[1] == []


def test_names_are_completed_without_a_schema() -> None:
    assert imported_by("dsv4kv replay --policy si") == (["sieve"], [])


def test_keys_that_were_kept_are_not_offered_once_a_file_of_the_schema_has_changed(
    cache: Path, tmp_path: Path
) -> None:
    line = "dsv4kv bench --set cache.sharing="
    offered = complete(line)
    kept = cache / "settings-bench.json"
    old = json.loads(kept.read_text())
    old["settings"] = {"cache.sharing": ["", [["of-old", ""]]]}
    kept.write_text(json.dumps(old))
    assert complete(line) == ["cache.sharing=of-old"]
    source = tmp_path / "axes.py"
    source.touch()
    old["made_from"][str(source)] = [0, 0]
    kept.write_text(json.dumps(old))
    assert complete(line) == offered


@pytest.mark.parametrize("kept", ["", "{}", "[]", '{"package": 1}', '{"made_from": 3}'])
def test_what_was_kept_and_is_damaged_is_made_anew(kept: str, cache: Path) -> None:
    line = "dsv4kv replay --set prefix.defer="
    complete(line)
    (cache / "settings-replay.json").write_text(kept)
    assert complete(line) == ["prefix.defer=true", "prefix.defer=false"]


def test_keys_are_offered_where_nothing_can_be_kept(cache: Path) -> None:
    cache.parent.touch()
    assert complete("dsv4kv bench --set cache.sharing=m") == ["cache.sharing=model"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_asks_the_program(shell: str) -> None:
    script = CliRunner().invoke(app, ["completion", shell]).output
    assert f"_DSV4KV_COMPLETE=complete_{shell}" in script
