"""Commands where torch cannot be imported: answers all the same, or one sentence."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dsv4kv.cli import COMMANDS
from dsv4kv.runs.store import dumps
from tests.bench.compare.launched import make_launched_record

LOG = Path(__file__).parents[1] / "record" / "logs" / "vllm.log"
BROKEN = "libcudart.so.13: cannot open shared object file"
PROGRAM = """
import json, sys
from typer.testing import CliRunner
from dsv4kv.cli import app
for line in json.loads(sys.argv[1]):
    done = CliRunner().invoke(app, line.split())
    defect = done.exception and not isinstance(done.exception, SystemExit)
    print(json.dumps([70 if defect else done.exit_code, done.output + str(done.exception)]))
"""
ANSWERED = {
    "--help": 0,
    "budget": 0,
    "budget --gpus 8 --axis context=4K,1M": 0,
    "replay calibrate trace.jsonl": 7,  # no server's results
    "compare a.json a.json": 0,
    "config show default": 0,
    "conform vllm": 8,  # which is not installed
    "explain serve.sh": 1,
    "doctor": 8,  # with what is broken
    "inspect pages.npy": 1,
    "lint serve.sh": 0,
    "plan builtin:chat --slo ttft_p99=10s --gpu h200": 0,
    "probe http://127.0.0.1:1": 5,
    "profile absent.sqlite": 9,
    "record server --requests requests.log --once": 0,
    "replay builtin:chat --quiet --json replay.json": 0,
    "replay builtin:chat --quiet --set fleet.replicas=2": 0,
    "report a.json --html page.html": 0,
    "report a --folder .": 0,
    "trace convert builtin:chat trace.jsonl": 0,
    "trace info builtin:chat": 0,
    "trace mrc builtin:chat": 0,
    "trace synth made.jsonl --set requests=4": 0,
    "watch server --seconds 0": 0,
}
NEEDED = (
    "bench smoke",
    "bench systems",
    "bench tiers",
    "bench transfer",
    "kernels --check",
    "profile smoke",
)
"""It is the bytes that are moved."""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Exit code and output of every line, one after the other in one process."""
    folder = tmp_path_factory.mktemp("without")
    (folder / "stub" / "torch").mkdir(parents=True)
    (folder / "stub" / "torch" / "__init__.py").write_text(f"raise OSError({BROKEN!r})")
    (folder / "a.json").write_text(dumps(make_launched_record()))
    (folder / "serve.sh").write_text("vllm serve deepseek-ai/DeepSeek-V4-Flash\n")
    (folder / "requests.log").write_bytes(LOG.read_bytes())
    np.save(folder / "pages.npy", np.zeros((4, 1000), np.uint8))
    lines = [*ANSWERED, *NEEDED]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(lines)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder / "stub"), "DSV4KV_CACHE_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pairs = map(json.loads, done.stdout.splitlines())
    return {line: (code, text) for line, (code, text) in zip(lines, pairs, strict=True)}


@pytest.mark.parametrize(("line", "code"), ANSWERED.items())
def test_what_needs_no_torch_answers(
    line: str, code: int, printed: dict[str, tuple[int, str]]
) -> None:
    found, text = printed[line]
    assert (found, "needs torch" in text) == (code, False), text


@pytest.mark.parametrize("line", NEEDED)
def test_what_needs_torch_says_so_in_a_sentence(
    line: str, printed: dict[str, tuple[int, str]]
) -> None:
    code, text = printed[line]
    name = line if line in COMMANDS else line.split(maxsplit=1)[0]
    wanted = f"error: `dsv4kv {name}` needs torch, which cannot be imported"
    assert (code, text.startswith(f"{wanted} (OSError: {BROKEN}): pip install")) == (8, True), text


def test_every_command_is_tried() -> None:
    tried = {line.split()[0] for line in (*ANSWERED, *NEEDED)} - {"--help"}
    assert tried == {name.split()[0] for name in COMMANDS}


def test_rooms_that_report_are_imported_whole() -> None:
    program = """
import importlib, pkgutil, sys
sys.modules["torch"] = None  # importing it fails
for room in map(importlib.import_module, sys.argv[1:]):
    for module in pkgutil.walk_packages(getattr(room, "__path__", ()), room.__name__ + "."):
        importlib.import_module(module.name)
"""
    rooms = "runs", "view", "profile.read", "bench.compare", "diagnose.doctor"
    names = [f"dsv4kv.{room}" for room in rooms]
    subprocess.run([sys.executable, "-c", program, *names], check=True)
