"""No command runs code that is in the current folder, in none of its processes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from dsv4kv.cli import app
from dsv4kv.record.store import dumps
from tests.bench.settings import TINY
from tests.measure.profilers.exports import two_replays
from tests.measure.profilers.tools import install
from tests.record.records import make_case, make_record
from tests.traces.test_formats import SAMPLES

ROOT = Path(__file__).parents[1]
PACKAGES = (
    "aiohttp", "click", "dsv4kv", "jinja2", "matplotlib", "numpy", "pandas", "psutil", "pyarrow",
    "pydantic", "pynvml", "rich", "sglang", "sitecustomize", "tokenizers", "torch", "typer",
    "usercustomize", "vllm", "xxhash", "yaml", "zmq",
)  # fmt: skip
TRAPS = sorted({*sys.stdlib_module_names, *PACKAGES} - {"__main__"})
TINY_WORDS = [word for setting in TINY for word in ("--set", setting)]
RECORD = ["record", "recording", "--requests", "requests.log", "--once", "--quiet"]
_PROGRAM = "from dsv4kv.cli import main\nif __name__ == '__main__':\n    main()\n"

COMMANDS: dict[str, list[list[str]]] = {
    "bench": [
        ["bench", "smoke", *TINY_WORDS, "--set", "workload.data=none", "--launches", "2"],
        ["bench", "transfer", "--set", "layers=[0,2]", "--set", "timed_tokens=1024",
         "--set", "rounds=6", "--set", "decode_steps=2"],
        ["bench", "tiers", "--set", "lengths=[512]", "--set", "model.layers=[0,2]"],
    ],
    "budget": [["budget"]],
    "calibrate": [["calibrate", "results.jsonl", "--gpu", "h200"]],
    "compare": [["compare", "run.json", "run.json"]],
    "completion": [["completion", "bash"]],
    "config schema": [["config", "schema"]],
    "config settings": [["config", "settings"]],
    "config show": [["config", "show", "smoke"]],
    "config validate": [["config", "validate", "smoke"]],
    "conform": [["conform", "vllm"], ["conform", "sglang"]],
    "doctor": [["doctor"]],
    "inspect": [["inspect", "pages.npy"]],
    "kernels": [["kernels", "--arch", "sm_90a"]],
    "lint": [["lint", "vllm serve deepseek-ai/DeepSeek-V4-Flash"]],
    "plan": [["plan", "--isl", "1000", "--osl", "10", "--rate", "1", "--slo", "ttft_p99=9s",
              "--gpu", "h200", "--jobs", "2", "--quiet"]],
    "probe": [["probe", "http://127.0.0.1:9"]],
    "profile": [["profile", "smoke", *TINY_WORDS, f"--{tool}"] for tool in ("nsys", "ncu")],
    "record": [RECORD],
    "replay": [["replay", "trace.jsonl", "--axis", "cache.num_blocks=900,1000", "--set",
                "cache.memory_bytes=null", "--jobs", "2", "--quiet"]],
    "report": [["report", "run.json", "--html", "page.html"]],
    "results list": [["results", "list", "--folder", "."]],
    "results prune": [["results", "prune", "--folder", ".", "--keep", "9"]],
    "results show": [["results", "show", "run.json"]],
    "trace convert": [["trace", "convert", "trace.jsonl", "copy.jsonl"]],
    "trace info": [["trace", "info", "trace.jsonl"]],
    "trace mrc": [["trace", "mrc", "trace.jsonl", "--capacity", "1K,64K"]],
    "trace synth": [["trace", "synth", "made.jsonl"]],
    "trace tokenize": [["trace", "tokenize", "text.jsonl", "tokens.jsonl", "--tokenizer",
                        "tokenizer.json", "--text", "--processes", "2"]],
    "watch": [RECORD, ["watch", "recording", "--seconds", "0"]],
}  # fmt: skip


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    for name, each in getattr(command, "commands", {"": None}).items():
        yield from leaves(each, (*path, name)) if each else [" ".join(path)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Good files, and modules with everybody's names that leave a file where they are run."""
    folder: Path = tmp_path_factory.mktemp("traps") / "current"
    sprung = folder.parent / "sprung"
    folder.mkdir()
    sprung.mkdir()
    code = f"open({str(sprung)!r} + '/' + __name__, 'w').close()\nraise SystemExit('trapped')\n"
    for name in TRAPS:
        (folder / f"{name}.py").write_text(code)
    (folder / "run.json").write_text(dumps(make_record(make_case())))
    (folder / "trace.jsonl").write_text(SAMPLES["mooncake"])
    (folder / "requests.log").write_text("")
    (folder / "results.jsonl").write_text("{}\n")
    (folder / "text.jsonl").write_text("a b c\n" * 100)
    words = {"type": "WordLevel", "vocab": {"?": 0, "a": 1, "b": 2, "c": 3}, "unk_token": "?"}
    tokenizer = {"version": "1.0", "model": words, "pre_tokenizer": {"type": "WhitespaceSplit"}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    np.save(folder / "pages.npy", np.ones((4, 584 * 64), np.uint8))
    (folder.parent / "program.py").write_text(_PROGRAM)
    return folder


def run(folder: Path, start: list[str], words: list[str]) -> tuple[int, str, set[str]]:
    """Run a command in the folder: exit code, output and what was trapped."""
    sprung = folder.parent / "sprung"
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "DSV4KV_CACHE_DIR": str(folder / "cubins"),
    }
    environment.pop("PYTHONSAFEPATH", None)
    done = subprocess.run(
        [sys.executable, *start, *words],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    trapped = {path.name for path in sprung.iterdir()}
    for name in trapped:
        (sprung / name).unlink()
    return done.returncode, done.stdout, trapped


@pytest.mark.parametrize("name", sorted(leaves(typer.main.get_command(app))))
def test_no_command_runs_what_the_current_folder_holds(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "profile":
        for tool, ending in (("nsys", "sqlite"), ("ncu", "ncu-rep")):
            fake = install(tool, tmp_path / tool, monkeypatch)
            (tmp_path / "ready").write_text("a report")
            fake.does("profile", writes=tmp_path / "ready", runs=True)
            fake.does("export", writes=two_replays().save(tmp_path / f"{tool}.{ending}"))
    for words in COMMANDS[name]:
        code, output, trapped = run(folder, [str(folder.parent / "program.py")], words)
        assert not trapped, output
        assert code != 70, output
        assert "Traceback" not in output


def test_as_a_module_it_drops_the_current_folder_before_it_imports(folder: Path) -> None:
    early = {"json", "typing", "random", "re", "logging", "pathlib", "enum", "typer", "torch"}
    for name in set(TRAPS) - early:  # Python's own -m imports some before it runs anything
        (folder / f"{name}.py").unlink()
    code, output, trapped = run(folder, ["-m", "dsv4kv"], ["budget"])
    assert (code, trapped) == (0, set()), output
