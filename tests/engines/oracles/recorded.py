"""Random traces with the tokens that the engines' own managers hit, and how they are made.

A file holds one JSON object a line: the first says which engine, version and source files
answered, every other one is a trace: ``rule``, ``prompts`` as [tokens, page ids], ``pages`` of
the pool, ``chunk_pages``, and ``hits`` by speculation. ``record.py`` makes them again.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from dsv4kv.diagnose.conform import Prompt, draw_prompts
from dsv4kv.traces.paths import PathTable, collect_paths
from dsv4kv.traces.request import Request
from tests.engines.oracles.asking import HERE, read_kept

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
