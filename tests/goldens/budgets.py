"""Pinned budgets: 300 drawn questions, with the numbers of every answer.

``python -m tests.goldens.budgets`` asks all of them and writes ``budgets.json``.
"""

import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from dsv4kv.cli import app

RESULTS = Path(__file__).with_suffix(".json")
COUNT = 300
CHOICES: dict[str, list[str]] = {
    "--model": ["v4-flash", "v4-flash", "v4-pro", "v4-pro", "v4.1-flash", "v3.2"],
    "--gpu": ["h100", "h200", "b200", "b300", "h20", "a100-80gb", "mi355x", "rtx-pro-6000"],
    "--engine": [
        "dsv4kv", "vllm", "vllm:0.23", "vllm:0.26", "vllm:0.29", "vllm:0.33", "sglang",
        "sglang:0.5.15", "sglang:0.5.21", "sglang:0.5.23", "trtllm",
    ],
    "--gpus": ["8", "16", "32"],
    "--tp": ["1", "2", "4", "8"],
    "--dp": ["1", "2", "8"],
    "--pp": ["2", "4"],
    "--context": ["4K", "32K", "100000", "128K", "1M"],
    "--concurrency": ["1", "16", "64", "500"],
    "--block-tokens": ["64", "128", "256"],
    "--main-format": ["bf16", "fp8", "fp4"],
    "--indexer-format": ["mxfp4", "fp8"],
    "--state": ["bf16", "online"],
    "--draft-layers": ["1"],
    "--draft-tokens": ["1", "3"],
    "--step-tokens": ["2048", "16384"],
    "--memory-fraction": ["0.8", "0.95"],
    "--kv-memory": ["7.01GiB", "30GiB"],
    "--request-limit": ["32", "256"],
    "--host-tier": ["hicache", "native", "simple", "lmcache"],
    "--retention": ["4096", "dense"],
}  # fmt: skip
OFTEN = {
    "--model": 0.9,
    "--gpu": 0.8,
    "--engine": 0.9,
    "--gpus": 0.8,
    "--tp": 0.5,
    "--context": 0.6,
}
WHOLE = ("fits", "context_tokens", "concurrency", "max_concurrency", "max_context_tokens")
SECTIONS = ("request", "gpu_memory", "weights")
DIGESTS = ("pools", "concurrency_by_context", "prefix", "host", "sent_bytes", "peak")


def questions() -> Iterator[tuple[str, ...]]:
    """Draw the options of every question; most have four to eight."""
    draw = random.Random(0)
    for _ in range(COUNT):
        words: list[str] = []
        for option, values in CHOICES.items():
            value = draw.choice(values)
            if draw.random() < OFTEN.get(option, 0.05):
                words += [option, value]
        yield tuple(words)


def measure(words: tuple[str, ...]) -> dict[str, Any]:
    """Answer one question: numbers of its answer, digests of its lists, or its exit code alone."""
    result = CliRunner().invoke(app, ["budget", *words, "--json"])
    if not result.stdout.startswith("{"):
        return {"exit": result.exit_code}
    answer = json.loads(result.stdout)
    capacity = (answer["engine"] or {}).get("capacity") or {}
    numbers = {key: _numbers(answer.get(key)) for key in SECTIONS}
    return {
        "exit": result.exit_code,
        "answer": [answer[key] for key in WHOLE],
        "engine": _numbers(capacity),
        **numbers,
        "digests": {key: _digest(answer.get(key)) for key in DIGESTS},
    }


def _numbers(values: Any) -> list[int | float]:
    found = values if isinstance(values, dict) else {}
    return [value for value in found.values() if isinstance(value, int | float)]


def _digest(value: Any) -> str:
    """Digest numbers and their names, and no sentence."""
    return hashlib.sha256(json.dumps(_bare(value), sort_keys=True).encode()).hexdigest()[:8]


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: _bare(each) for key, each in value.items()}
        return {key: each for key, each in kept.items() if each is not None}
    if isinstance(value, list):
        return [_bare(each) for each in value]
    return None if isinstance(value, str) else value


if __name__ == "__main__":
    lines = [f"{json.dumps(' '.join(q))}: {json.dumps(measure(q))}" for q in questions()]
    RESULTS.write_text("{\n" + ",\n".join(dict.fromkeys(lines)) + "\n}\n")
