"""Random requests in a closed loop and the steps in which vLLM's own scheduler served them.

``python -m tests.engines.oracles.scheduled`` asks it again, in the environment that ``make
engines`` makes, and writes ``vllm_scheduled_0.33.0.jsonl.gz``: the first line says what answered,
every other one is a workload and its steps, equal steps in a row together.
"""

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby

from tests.engines.oracles.asking import HERE, ask, keep, read_kept

FILE = HERE / "vllm_scheduled_0.33.0.jsonl.gz"
PAGE, WORKLOADS, AMPLE = 256, 80, 60_000
LONG = 40  # further workloads with long answers, whose blocks are not cached
ONE = 40  # further ones with context alone
MADE = (
    "Scheduler of the wheel on a CPU with DeepSeek-V4's groups or context alone, no drafts, first "
    "come first served; a request is added as soon as another has ended"
)
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


def draw_workloads() -> Iterator[Workload]:
    """Half of the first in a pool that holds everything, the others in one that does not."""
    for seed in range(WORKLOADS + LONG + ONE):
        long, one = seed >= WORKLOADS, seed >= WORKLOADS + LONG
        draw = random.Random(f"scheduled {seed}")
        heads = [draw.sample(range(10**6), draw.randint(1, 12)) for _ in range(3)]
        requests = []
        for _ in range(draw.randint(8, 24)):
            head = draw.choice(heads) if draw.random() < 0.6 else []
            new = [draw.randrange(10**6, 10**9) for _ in range(draw.randint(1, 10))]
            pages = head[: draw.randint(0, len(head))] + new
            tokens = len(pages) * PAGE - draw.randint(0, PAGE - 1)
            requests.append((pages, tokens, draw.randint(1, 400 if long else 40)))
        chunk = draw.choice([512, 2048, 8192])
        longest = max(tokens for _, tokens, _ in requests)
        windows = sum(min(longest, chunk) // size for size in (64, 64, 4, 8)) + 40
        least = longest // PAGE + (3 if one else windows)
        yield Workload(
            AMPLE if seed % 2 and not long else int(least * draw.uniform(1.05, 2.5)),
            draw.choice([2, 4, 16, 64]),
            chunk,
            None if one else draw.choice([0, 4096, None]),
            draw.choice([1, 4, 16, 64]),
            requests,
            caches_answers=not long,
            one_group=one,
        )


def answered() -> list[Workload]:
    """Workloads with the steps of vLLM's scheduler."""
    workloads = list(draw_workloads())
    steps = map(together, ask("vllm_scheduler.py", "vllm", map(asdict, workloads)))
    return [replace(each, steps=its) for each, its in zip(workloads, steps, strict=True)]


def read_workloads() -> list[Workload]:
    """All that were written."""
    found = [Workload(**row) for row in read_kept(FILE)]
    return [replace(each, steps=[(n, step) for n, step in each.steps]) for each in found]


if __name__ == "__main__":
    keep(FILE, MADE, map(asdict, answered()))
