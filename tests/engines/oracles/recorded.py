"""Random traces with the tokens that the engines' own managers hit, and how they are made.

A file holds one JSON object a line: the first says which engine, version and source files
answered, every other one is a trace: ``rule``, ``prompts`` as [tokens, page ids], ``pages`` of
the pool, ``chunk_pages``, and ``hits`` by speculation. ``python -m`` this asks the managers again.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from dsv4kv.diagnose.conform import Prompt, draw_prompts
from dsv4kv.engines.names import RULES as KNOWN
from dsv4kv.traces.paths import PathTable, collect_paths
from dsv4kv.traces.request import Request
from tests.engines.oracles.asking import HERE, ask, keep, read_kept

SPECULATIONS = {
    "vllm": ("none", "dspark", "mtp", "mtp+connector"),
    "sglang": ("none", "dspark", "mtp"),
}
RETENTION = {"vllm-v4:dense": None, "vllm-v4:4096": 4096, "vllm-v4:semantic": 0}
ONE_POOL = ("sglang", "sglang-v41:encoder")
REPLAYS = {"sglang-v41": "decoder", "sglang-v41:encoder": "encoder"}
GROUPS = {"vllm": "none", "vllm-v41": "v41"}
RULES = {
    "vllm": ("vllm", *RETENTION, "vllm-v41"),
    "sglang": ("sglang", "sglang-v4:dense", "sglang-v4:tail", "sglang-v41", "sglang-v41:encoder"),
}
VERSIONS = {"vllm": "0.33.0", "sglang": "0.5.23"}
MADE = {
    "vllm": "KVCacheManager of the wheel on a CPU, one request after the other, no output; with "
    "drafts the second window group is the draft layer's",
    "sglang": "UnifiedRadixCache (Python tree) of the wheel on a CPU, one request after the "
    "other, no output; a checkpoint after every chunk, one more at the end",
}
PAGE = 256
FILES = {"vllm": HERE / "vllm_0.33.0.jsonl.gz", "sglang": HERE / "sglang_0.5.23.jsonl.gz"}
TRACES = 100
"""Of every rule."""


@dataclass(frozen=True)
class Trace:
    """A random trace, the pool it is served in, and what every request hit, by speculation."""

    rule: str
    prompts: list[Prompt]
    pages: int
    chunk_pages: int
    hits: dict[str, list[int]]

    @property
    def table(self) -> PathTable:
        """The prompts as a trace of ids of one page each."""
        return collect_paths(
            [
                Request(float(number), tokens, 1, tuple(pages), PAGE)
                for number, (tokens, pages) in enumerate(self.prompts)
            ]
        )


@cache
def read_traces(engine: str) -> tuple[Trace, ...]:
    """All traces that an engine answered."""
    traces = [Trace(**row) for row in read_kept(FILES[engine])]
    return tuple(replace(t, prompts=[(tokens, ids) for tokens, ids in t.prompts]) for t in traces)


def draw_traces(rule: str) -> Iterator[Trace]:
    """The traces of a rule, without answers."""
    for seed in range(TRACES):
        draw = random.Random(f"{rule} {seed}")
        prompts = draw_prompts(draw, count=16, longest=draw.choice([5, 9, 14, 18]))
        chunk = draw.choice([2, 3, 5, 32])
        yield Trace(rule, prompts, _pool(draw, rule, prompts, chunk), chunk, {})


def _pool(draw: random.Random, rule: str, prompts: list[Prompt], chunk: int) -> int:
    """Pages that hold the longest prompt, some so few that most of it is evicted soon."""
    longest = max(len(pages) for _, pages in prompts)
    match rule.split(":"):
        case ["sglang-v4", _] | ["sglang-v41"]:
            return 10 * (longest + draw.choice([0, 1, 3, 10]))
        case ["vllm-v41"]:  # blocks of 128 tokens, five tables of windows of 32, a ring
            held = min(2 * chunk, 2 * longest) * 5 * 4 + 5 * 5 + 1
            return 2 * longest + held + draw.choice([1, 4, 10, 25, 60, 400])
        case ["vllm-v4", _]:
            held = min(chunk, longest) * (4 + 4 + 32 + 64) + 2 + 2 + 16 + 2
            return longest + held + draw.choice([4, 20, 60, 200, 600, 5000])
        case _:
            return longest + draw.choice([1, 3, 10, 60, 1000])


def question(trace: Trace, speculation: str) -> dict[str, Any]:
    """A trace as a manager reads it."""
    about: dict[str, Any] = {"prompts": trace.prompts}
    if trace.rule.startswith("vllm"):
        return about | {
            "blocks": trace.pages,
            "groups": GROUPS.get(trace.rule, "v4"),
            "retention": RETENTION.get(trace.rule),
            "chunk_tokens": trace.chunk_pages * PAGE,
            "speculation": speculation,
        }
    windows = None if trace.rule in ONE_POOL else trace.pages // 10
    return about | {
        "pages": trace.pages,
        "window_pages": windows,
        "chunk_pages": trace.chunk_pages if windows else 1 << 20,
        "free": not trace.rule.endswith("dense"),
        "speculation": speculation,
        "replay": REPLAYS.get(trace.rule),
    }


def answered(engine: str, rule: str) -> list[Trace]:
    """The traces of a rule with the manager's answers."""
    traces = list(draw_traces(rule))
    for speculation in [known for known in SPECULATIONS[engine] if known in KNOWN[rule].drafts]:
        asked = [question(trace, speculation) for trace in traces]
        answers = ask(f"{engine}_manager.py", engine, asked)
        traces = [
            replace(trace, hits=trace.hits | {speculation: hits})
            for trace, hits in zip(traces, answers, strict=True)
        ]
    return traces


def main() -> None:
    """Write both files."""
    for engine, rules in RULES.items():
        traces = [vars(trace) for rule in rules for trace in answered(engine, rule)]
        keep(FILES[engine], MADE[engine], traces)


if __name__ == "__main__":
    main()
