"""Pinned plans: questions × traces, with everything that was simulated.

``python -m tests.goldens.plans`` asks all of them and writes ``plans.json``.
"""

import json
from pathlib import Path
from typing import Any

from tests.goldens.replays import CONVERSATION, write_anew
from tests.replay.clock.test_fit import run

RESULTS = Path(__file__).with_suffix(".json")

CHAT = ("builtin:chat",)
BOTH = ("--slo", "ttft_p99=5s", "--slo", "tpot_p50=50ms")
ALIKE = ("--split", "none", "--router", "round_robin")
VLLM = ("--engine", "vllm")
DEPLOYMENT = ("replicas", "gpu", "layout", "variant", "router")
HOST = "--enable-hierarchical-cache --hicache-ratio 2"


def conversation(requests: int, *words: str) -> tuple[str, ...]:
    """Ask about the first so many requests of the conversation trace."""
    return (str(CONVERSATION), "--set", f"workload.limit={requests}", *words)


CASES = {
    "chat": (*CHAT, "--slo", "ttft_p90=250ms"),
    "chat, prices, near": (
        *CHAT, "--slo", "ttft_p90=400ms", "--price", "h200=2.5", "--price", "b200=4",
    ),
    "chat, 4 GPUs": (*CHAT, "--slo", "ttft_p90=250ms", "--gpus", "4"),
    "chat, vllm, latency": (*CHAT, *VLLM, "--slo", "latency_p50=3s", "--slo", "tpot_p90=20ms"),
    "chat, faster, nothing keeps it": (
        *CHAT, "--slo", "ttft_p90=400ms", "--gpu", "b200", "--most-gpus", "2", "--speed", "1000",
    ),
    "chat, splits and args": (
        *CHAT, "--slo", "ttft_p90=5s", "--gpu", "b200", "--split", "1:2,1:1", "--args", "",
        "--args", HOST, "--speed", "200",
    ),
    "conversation": conversation(150, *BOTH),
    "conversation, faster": conversation(100, *BOTH, "--speed", "4"),
    "conversation, prices, safer": conversation(
        100, "--slo", "ttft_p90=6s", "--price", "h200=1", "--price", "b200=9", *ALIKE
    ),
    "conversation, vllm, split": conversation(
        80, *VLLM, "--slo", "ttft_p90=8s", "--split", "1:1", "--gpu", "b200", "--speed", "3"
    ),
    "conversation, 8 GPUs": conversation(
        120, "--slo", "ttft_p50=1s", "--gpus", "8", "--gpu", "b200", *ALIKE
    ),
    "conversation, window": conversation(
        450, *BOTH, "--gpu", "b200", "--most-gpus", "16", *ALIKE
    ),
    "conversation, window, nothing keeps it": conversation(
        450, "--slo", "ttft_p99=900ms", "--gpu", "b200", "--most-gpus", "4", *ALIKE
    ),
    "one length": (
        "--isl", "2000", "--osl", "30", "--rate", "15", "--slo", "ttft_p90=1s", "--gpu", "b200",
        *ALIKE,
    ),
}  # fmt: skip


def measure(words: tuple[str, ...]) -> dict[str, Any]:
    """Give the document of a plan, with each deployment that was simulated in a line."""
    done = run(["plan", *words, "--json", "-"])
    document = json.loads(done.stdout)
    for key in ("simulated", "confirmed"):
        document[key] = [
            [
                " ".join(str(each[name]) for name in DEPLOYMENT),
                *(each[name] for name in ("cost", "requests", "keeps_all", "near")),
                *(each[name] for name in ("speed", "good_share", "seconds")),
            ]
            for each in document[key]
        ]
    return {"exit": done.exit_code, **document}


if __name__ == "__main__":
    write_anew(RESULTS, CASES, measure)
