"""Random traces with the tokens that the engines' own managers hit.

A file holds one JSON object a line: the first says which engine, version and source files
answered, every other one is a trace: ``rule``, ``prompts`` as [tokens, page ids], ``pages`` of
the pool, ``chunk_pages``, and ``hits`` by speculation. ``python -m`` this asks the managers again.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from dsv4kv.diagnose.conform import Prompt
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
    traces = [trace for trace in read_traces(engine) if trace.rule == rule]
    hits = {
        speculation: ask(
            f"{engine}_manager.py", engine, [question(trace, speculation) for trace in traces]
        )
        for speculation in SPECULATIONS[engine]
        if speculation in KNOWN[rule].drafts
    }
    return [
        replace(trace, hits={speculation: found[number] for speculation, found in hits.items()})
        for number, trace in enumerate(traces)
    ]


if __name__ == "__main__":
    for engine, rules in RULES.items():
        keep(FILES[engine], [vars(trace) for rule in rules for trace in answered(engine, rule)])
