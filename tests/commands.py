"""A small run of every command, and the files for it."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from dsv4kv import cli
from dsv4kv.runs.store import dumps
from tests.bench.settings import TINY
from tests.runs.records import make_case, make_record
from tests.systems.small import SETTINGS as SMALL_SYSTEMS
from tests.traces.test_formats import SAMPLES

TINY_WORDS = [word for setting in TINY for word in ("--set", setting)]
RECORD = ["record", "recording", "--requests", "requests.log", "--once", "--quiet"]
SYSTEMS_WORDS = [word for setting in SMALL_SYSTEMS for word in ("--set", setting)]

COMMANDS: dict[str, list[list[str]]] = {
    "bench": [["bench", "smoke", *TINY_WORDS, "--set", "workload.data=none", "--launches", "2"]],
    "bench op": [["bench", "op", "gather_window", "--context", "1K", "--seconds", "1.5"]],
    "bench systems": [["bench", "systems", *SYSTEMS_WORDS]],
    "bench tiers": [["bench", "tiers", "--set", "lengths=[512]", "--set", "model.layers=[0,2]"]],
    "bench transfer": [["bench", "transfer", "--set", "model.layers=[0,2]", "--set", "rounds=6",
                        "--set", "timed_tokens=1024", "--set", "decode_steps=2"]],
    "budget": [["budget"]],
    "compare": [["compare", "run.json", "run.json"]],
    "config schema": [["config", "schema"]],
    "config show": [["config", "show", "smoke"]],
    "conform": [["conform", "vllm"], ["conform", "sglang"]],
    "doctor": [["doctor"]],
    "explain": [["explain", "vllm serve deepseek-ai/DeepSeek-V4-Flash"]],
    "inspect": [["inspect", "pages.npy"]],
    "kernels": [["kernels", "--arch", "sm_90a"]],
    "lint": [["lint", "vllm serve deepseek-ai/DeepSeek-V4-Flash"]],
    "plan": [["plan", "--isl", "1000", "--osl", "10", "--rate", "1", "--slo", "ttft_p99=9s",
              "--gpu", "h200", "--quiet"]],
    "probe": [["probe", "http://127.0.0.1:9"]],
    "profile": [["profile", "smoke", *TINY_WORDS, f"--{tool}"] for tool in ("nsys", "ncu")],
    "record": [RECORD],
    "replay": [["replay", "trace.jsonl", "--axis", "cache.num_blocks=900,1000", "--set",
                "cache.memory_bytes=null", "--jobs", "2", "--quiet"]],
    "replay calibrate": [["replay", "calibrate", "results.jsonl", "--gpu", "h200"]],
    "report": [["report", "run.json", "--html", "page.html"]],
    "report list": [["report", "list", "--folder", "."]],
    "trace convert": [["trace", "convert", "trace.jsonl", "copy.jsonl"]],
    "trace info": [["trace", "info", "trace.jsonl"]],
    "trace mrc": [["trace", "mrc", "trace.jsonl", "--capacity", "1K,64K"]],
    "trace synth": [["trace", "synth", "made.jsonl"]],
    "trace tokenize": [["trace", "tokenize", "text.jsonl", "tokens.jsonl", "--tokenizer",
                        "tokenizer.json", "--text", "--processes", "2"]],
    "watch": [RECORD, ["watch", "recording", "--seconds", "0"]],
}  # fmt: skip


def leaves() -> dict[str, Any]:
    """Every command that has no commands, by its name."""
    found: dict[str, Any] = {}
    for name in cli.COMMANDS:
        command = cli.load_command(name)
        below = getattr(command, "commands", None)
        found |= {f"{name} {each}": below[each] for each in below} if below else {name: command}
    return found


def write_files(folder: Path) -> None:
    """The files that the commands name."""
    (folder / "run.json").write_text(dumps(make_record(make_case())))
    (folder / "trace.jsonl").write_text(SAMPLES["mooncake"])
    (folder / "requests.log").write_text("")
    (folder / "results.jsonl").write_text("{}\n")
    (folder / "text.jsonl").write_text("a b c\n" * 100)
    words = {"type": "WordLevel", "vocab": {"?": 0, "a": 1, "b": 2, "c": 3}, "unk_token": "?"}
    tokenizer = {"version": "1.0", "model": words, "pre_tokenizer": {"type": "WhitespaceSplit"}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    np.save(folder / "pages.npy", np.ones((4, 584 * 64), np.uint8))
