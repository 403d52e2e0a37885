"""Answers fill a screen: 25 lines of 100 columns, 30 of 80, whatever they are about.

Of many files the headlines alone may be more: ``test_explain.py``. Where commands of a kind are
many, every third is tried at each width, another one; ``make full`` tries all at both.
"""

import shlex
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dsv4kv.cli import app
from tests.budget.launches import LAUNCHES
from tests.budget.pasted import PASTED
from tests.cli.test_explain import TEXTS
from tests.cli.test_golden import make_folder, rows
from tests.engines.logs.test_pasted import ROWS
from tests.examples import FULL
from tests.gpu_twin import FEW_REPLAYS
from tests.profile.captures import WRITERS, piecewise

SCREENS = {100: 25, 80: 30}
EIGHT = ("bench", "budget", "compare", "explain", "plan", "profile", "replay", "trace mrc")
ENGINES = ("dsv4kv", "ktransformers", "llama.cpp", "sglang:0.5.20", "sglang", "trtllm", "vllm")
MODELS = {"v4-flash": "--context 1M", "v4-pro": "--concurrency 40", "v3.2": "", "v4.1-flash": ""}
COMMANDS = {
    "golden lines": [
        line.removeprefix("dsv4kv ")
        for line, _ in rows()
        if line.startswith(tuple(f"dsv4kv {each} " for each in EIGHT)) and "--help" not in line
    ],
    "launch commands": [
        f"{words} launch{n}.sh --gpu {each.gpu}"
        for n, each in enumerate(LAUNCHES)
        for words in ("explain", "budget --command")
    ],
    "what people paste": [f"explain pasted{n}.sh" for n in range(len(PASTED))],
    "start-up logs": [f"explain row{n}.log {e.options}" for n, e in enumerate(ROWS)],
    "several files": [
        *("explain old new", "explain two --gpu b200", "explain new sglang run result"),
        *(f"explain {each}" for each in TEXTS),
    ],
    "engines and models": [
        f"budget --engine {engine} --model {model} --gpu b200 --gpus 8 {more}"
        for engine in ENGINES
        for model, more in MODELS.items()
    ],
    "profiles": [
        f"{words} {name}/capture.{suffix}"
        for name, suffix in (("Chrome_trace", "json"), ("nsys", "sqlite"))
        for words in ("explain", "profile --from")
    ],
    "measured now": [
        "bench smoke",
        "bench smoke --axis workload.concurrency=1,2,3 --axis cache.block_tokens=64,128,256",
        "bench op gather_window --context 1K,2K --batch 1,2 --seconds 1.5",
        "compare before.json slower.json",
    ],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("screens")
    with chdir(place):
        make_folder(place)
        texts = {f"launch{n}.sh": each.text for n, each in enumerate(LAUNCHES)}
        texts |= {f"pasted{n}.sh": each.text for n, each in enumerate(PASTED)}
        texts |= {f"row{n}.log": "\n".join(each.log) for n, each in enumerate(ROWS)} | TEXTS
        for name, text in texts.items():
            Path(name).write_text(text, encoding="utf-8")
        for name, write in WRITERS.items():
            capture = Path(name.replace(" ", "_"))
            capture.mkdir()
            write(piecewise(), capture)
        yield place


@pytest.mark.usefixtures("folder", "fresh_faults")
@pytest.mark.parametrize("width", SCREENS)
@pytest.mark.parametrize("kind", COMMANDS)
def test_answers_are_a_screen(kind: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsv4kv.bench.protocol.RULES", FEW_REPLAYS)
    terminal = {"COLUMNS": str(width), "NO_COLOR": "1", "TERM": "dumb"}
    longer, answered, commands = {}, 0, COMMANDS[kind]
    if len(commands) > 12 and not FULL:
        commands = commands[width == 80 :: 3]
    for command in commands:
        result = CliRunner(env=terminal).invoke(app, shlex.split(command))
        count = len(result.output.splitlines())
        answered += result.stdout != ""
        if count > SCREENS[width]:
            longer[command] = count
    assert longer == {}
    assert answered or kind == "golden lines"  # most are errors
