"""What the engines' own publishers sent of random traces, and what their managers answered.

A file is a list of workloads, msgpack in xz: ``rule``, ``page`` (tokens of a page), ``prompts`` as
[tokens, page ids], ``pages`` of the pool, ``chunk_tokens``, ``frames`` as a subscriber received
them over tcp, and ``hits`` of every request. The first entry says which engine and version made
it. ``DSV4KV_ENGINES=… python -m tests.engines.oracles.published`` makes them again.
"""

import lzma
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import msgspec

from dsv4kv.diagnose.conform import Prompt
from tests.engines.oracles import recorded
from tests.engines.oracles.asking import HERE, ask
from tests.engines.oracles.recorded import PAGE, Trace

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
    workloads = [each for each in read_published(engine) if each.rule == rule]
    answers = ask("publisher.py", engine, map(question, workloads))
    return [
        replace(
            workload,
            hits=answer["hits"],
            frames=[[bytes.fromhex(frame) for frame in frames] for frames in answer["frames"]],
        )
        for workload, answer in zip(workloads, answers, strict=True)
    ]


if __name__ == "__main__":
    for engine, rules in RULES.items():
        about = msgspec.msgpack.decode(lzma.decompress(FILES[engine].read_bytes()))[0]
        workloads = [asdict(one) for rule in rules for one in published(engine, rule)]
        packed = msgspec.msgpack.encode([about, *workloads])
        FILES[engine].write_bytes(lzma.compress(packed, preset=9))
