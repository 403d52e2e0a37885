"""What the engines' own publishers sent of random traces, and what their managers answered.

A file is a list of workloads, msgpack in xz: ``rule``, ``page`` (tokens of a page), ``prompts`` as
[tokens, page ids], ``pages`` of the pool, ``chunk_tokens``, ``frames`` as a subscriber received
them over tcp, and ``hits`` of every request. The first entry says which engine and version made
it. ``DSV4KV_ENGINES=… python -m tests.engines.oracles.published`` makes them again.
"""

import lzma
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import islice
from typing import Any

import msgspec

from dsv4kv.diagnose.conform import Prompt, draw_prompts
from tests.engines.oracles import recorded
from tests.engines.oracles.asking import HERE, ask
from tests.engines.oracles.recorded import PAGE, Trace, draw_traces

RULES = {
    "vllm": ("vllm", "vllm-v4:semantic", "vllm-v4:4096", "vllm-v4:dense"),
    "sglang": ("sglang", "sglang-v4:tail", "sglang-v4:dense"),
}
FILES = {
    "vllm": HERE / "vllm_published_0.33.0.msgpack.xz",
    "sglang": HERE / "sglang_published_0.5.23.msgpack.xz",
}
SEEDS = 4
"""Workloads of every rule."""
SMALL_PAGE = 16
"""Tokens of a block where context alone is kept: what vLLM takes for most models."""
MANAGERS = {"vllm": "KVCacheManager", "sglang": "UnifiedRadixCache"}


@dataclass(frozen=True)
class Workload:
    """A random workload, the messages that a subscriber received, and what every request hit."""

    rule: str
    page: int
    prompts: list[Prompt]
    pages: int
    chunk_tokens: int
    frames: list[list[bytes]]
    hits: list[int]

    def tokens(self, number: int) -> list[int]:
        """The tokens of a prompt."""
        count, pages = self.prompts[number]
        return [page * self.page + i for page in pages for i in range(self.page)][:count]


@cache
def read_published(engine: str) -> tuple[Workload, ...]:
    """All workloads that an engine served."""
    _, *workloads = msgspec.msgpack.decode(lzma.decompress(FILES[engine].read_bytes()))
    return tuple(msgspec.convert(workload, Workload) for workload in workloads)


def draw_workloads(rule: str) -> Iterator[Workload]:
    """The workloads of a rule, without answers."""
    if rule == "vllm":
        for seed in range(SEEDS):
            draw = random.Random(f"published {rule} {seed}")
            prompts = draw_prompts(draw, count=16, longest=40, page=SMALL_PAGE)
            pool = max(len(pages) for _, pages in prompts) + draw.choice([3, 20, 60, 1000])
            chunk = draw.choice([64, 160, 1024])
            yield Workload(rule, SMALL_PAGE, prompts, pool, chunk, [], [])
        return
    drawn = sorted(islice(draw_traces(rule), 5 * SEEDS), key=lambda trace: trace.pages)
    for trace in drawn[2::5]:  # from tight pools to roomy ones
        yield Workload(rule, PAGE, trace.prompts, trace.pages, trace.chunk_pages * PAGE, [], [])


def question(workload: Workload) -> dict[str, Any]:
    """A workload as a publisher's program reads it."""
    chunk_pages = workload.chunk_tokens // PAGE
    trace = Trace(workload.rule, workload.prompts, workload.pages, chunk_pages, {})
    asked = recorded.question(trace, "none") | {"page": workload.page}
    if "chunk_tokens" in asked:
        asked["chunk_tokens"] = workload.chunk_tokens
    return asked


def published(engine: str, rule: str) -> list[Workload]:
    """The workloads of a rule, served and published by an engine."""
    workloads = list(draw_workloads(rule))
    answers = ask("publisher.py", engine, map(question, workloads))
    return [
        replace(
            workload,
            hits=answer["hits"],
            frames=[[bytes.fromhex(frame) for frame in frames] for frames in answer["frames"]],
        )
        for workload, answer in zip(workloads, answers, strict=True)
    ]


def main() -> None:
    """Write both files."""
    for engine, rules in RULES.items():
        workloads = [asdict(one) for rule in rules for one in published(engine, rule)]
        made = f"{MANAGERS[engine]} and ZmqEventPublisher of the wheel on a CPU, received over tcp"
        about = {"engine": engine, "version": recorded.VERSIONS[engine], "made": made}
        packed = msgspec.msgpack.encode([about, *workloads])
        FILES[engine].write_bytes(lzma.compress(packed, preset=9))


if __name__ == "__main__":
    main()
