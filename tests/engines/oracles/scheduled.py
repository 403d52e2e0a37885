"""Random requests in a closed loop and the steps in which vLLM's own scheduler served them.

``python -m tests.engines.oracles.scheduled`` asks it again, in the environment that ``make
engines`` makes, and writes ``vllm_scheduled_0.33.0.jsonl.gz``: the first line says what answered,
every other one is a workload and its steps, equal steps in a row together.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby

from tests.engines.oracles.asking import HERE, ask, keep, read_kept

FILE = HERE / "vllm_scheduled_0.33.0.jsonl.gz"
PAGE = 256
Step = dict[int, int]
"""Tokens that are scheduled, by request."""


@dataclass(frozen=True)
class Workload:
    """Requests (pages, tokens, output tokens), the server they come to, and its steps.

    Blocks that decoding fills may be cached, as the engine does it; ``one_group`` is context
    alone. A step has how often it comes in a row.
    """

    blocks: int
    running: int
    chunk_tokens: int
    retention: int | None
    concurrency: int
    requests: list[tuple[list[int], int, int]]
    caches_answers: bool = True
    one_group: bool = False
    steps: list[tuple[int, dict[str, int]]] = field(default_factory=list)

    @property
    def each_step(self) -> list[Step]:
        """Every step by itself."""
        found = ((n, {int(key): many for key, many in step.items()}) for n, step in self.steps)
        return [step for count, step in found for _ in range(count)]


def together(steps: Iterator[dict[str, int]]) -> list[tuple[int, dict[str, int]]]:
    """Equal steps in a row as one."""
    return [(len(list(same)), step) for step, same in groupby(steps)]


def answered() -> list[Workload]:
    """Workloads with the steps of vLLM's scheduler."""
    workloads = read_workloads()
    steps = map(together, ask("vllm_scheduler.py", "vllm", map(asdict, workloads)))
    return [replace(each, steps=its) for each, its in zip(workloads, steps, strict=True)]


def read_workloads() -> list[Workload]:
    """All that were written."""
    found = [Workload(**row) for row in read_kept(FILE)]
    return [replace(each, steps=[(n, step) for n, step in each.steps]) for each in found]


if __name__ == "__main__":
    keep(FILE, map(asdict, answered()))
