"""What came of a fleet, in numbers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import lcm
from typing import Self

import numpy as np

from dsv4kv.replay.fleet.run import Fleet, Replica
from dsv4kv.traces.paths import Ints, collect_paths, find_reuse, number_prompts
from dsv4kv.traces.request import Request


def ideal_saved_tokens(
    requests: Sequence[Request], block_tokens: int, blocks: int | None = None
) -> int:
    """Tokens that an LRU pool of ``blocks`` would save, a request at a time; 0 without ids."""
    if not any(len(request.prefix_hashes) for request in requests):
        return 0
    table = collect_paths(requests)
    reuse = find_reuse(table, block_tokens, whole_blocks=True)
    usable = (table.input_tokens - 1) // block_tokens
    found = reuse.found_blocks(blocks)
    return int((found.clip(max=usable) * block_tokens).sum())


def shared_bytes(replica: Replica) -> int:
    return replica.replay.scheduler.cache.per_shared * replica.replay.memory.block_bytes


def held_blocks(replica: Replica) -> Ints:
    """int64: the shared blocks that the prompts it was given would find again."""
    look_up = replica.replay.scheduler.prompts.look_up
    return _distinct(served.keys[: look_up(served)] for served in replica.served)


def _distinct(blocks: Iterable[list[int]]) -> Ints:
    return np.unique(np.fromiter(chain.from_iterable(blocks), np.int64))


def repeated_bytes(fleet: Fleet) -> int:
    """What replicas have that one before has; other sizes count in common multiples."""
    replicas = fleet.replicas
    names = {
        (each.config.prefix.rule, each.config.prefix.speculation, each.parts.shared_tokens)
        for each in replicas
    }
    size = lcm(*(each.parts.shared_tokens for each in replicas))
    if len(names) == 1:
        held = [held_blocks(replica) for replica in replicas]
    elif any(len(request.prefix_hashes) for request in fleet.requests):
        path = number_prompts(collect_paths(fleet.requests), size).path
        held = [
            _distinct(path(each.number)[: it.found_tokens(each) // size] for each in it.served)
            for it in replicas
        ]
    else:
        return 0
    seen, total = np.zeros(0, np.int64), 0
    for replica, blocks in zip(replicas, held, strict=True):
        each_bytes = size // replica.parts.shared_tokens * shared_bytes(replica)
        total += int(np.isin(blocks, seen).sum()) * each_bytes
        seen = np.union1d(seen, blocks)
    return total


_NS = 1e9


@dataclass(frozen=True)
class Fates:
    """What requests waited for, in the order in which they ended."""

    numbers: list[int]  # requests that were served to their end
    # times by name, as ``replay.outcome`` has them; a split fleet's first token is the decode
    # replica's
    samples_ns: dict[str, list[int]]
    times: dict[int, dict[str, float]]  # the same by request, in s by name

    @classmethod
    def of(cls, fleet: Fleet) -> Self:
        ended = [
            (served.finished_s, served.number, replica.replay.outcome)
            for replica in fleet.replicas
            for served in replica.served
            if served.finished_s is not None and fleet.answers[served.number] is served
        ]
        times = {
            number: its.times(fleet.answers[number], fleet.prompts[number])
            for _, number, its in sorted(ended, key=lambda each: each[:2])
        }
        samples: dict[str, list[int]] = {n: [] for n in ("queueing", "ttft", "tpot", "latency")}
        for spans in times.values():
            for name, span_s in spans.items():
                samples[name].append(round(span_s * _NS))
        return cls(list(times), samples, times)

    def good(self, limits_s: Mapping[str, float]) -> list[int]:
        """Requests that kept every limit; a time that a request has not, it keeps."""
        return [
            number
            for number, spans in self.times.items()
            if all(spans.get(name, 0.0) <= limit_s for name, limit_s in limits_s.items())
        ]
