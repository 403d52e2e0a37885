"""Agentic conversations as public ones are: long contexts, many turns, ids in long runs.

After Weka's (callanjfox/kv-cache-tester): a turn goes on with the whole one before it, in nearly
half of them the block that this ended in comes anew, and now and then a conversation begins again
after what its system prompt and tools take.
"""

from pathlib import Path

import numpy as np

from dsv4kv.traces.request import IdRuns, Request
from dsv4kv.traces.weka import write_weka

BLOCK_TOKENS = 64
SYSTEM_BLOCKS = 270
MOST_BLOCKS = 894_371 // BLOCK_TOKENS


def made_agents(folder: Path, conversations: int, seed: int = 0) -> int:
    """Write a folder of them, some 70 turns each; returns the block references they make."""
    rng = np.random.default_rng(seed)
    requests: list[Request] = []
    first_id = 1
    for _ in range(conversations):
        turns, first_id = _converse(rng, first_id)
        requests += turns
    write_weka(sorted(requests, key=lambda request: request.arrival_s), folder)
    return sum(len(request.prefix_hashes) for request in requests)


def _converse(rng: np.random.Generator, first_id: int) -> tuple[list[Request], int]:
    """The turns of one conversation, and the first id that is free after it."""
    ids, fresh = np.arange(first_id, first_id + SYSTEM_BLOCKS), first_id + SYSTEM_BLOCKS
    growth, arrival_s, turns = rng.lognormal(3.3, 0.5), 0.0, list[Request]()
    for _ in range(rng.poisson(70) + 1):
        kept = SYSTEM_BLOCKS if rng.random() < 0.01 else len(ids) - int(rng.random() < 0.45)
        added = min(1 + int(rng.exponential(growth)), MOST_BLOCKS - kept)
        if added <= 0:
            break
        ids = np.concatenate([ids[:kept], np.arange(fresh, fresh + added)])
        fresh += added
        arrival_s += 5 + rng.exponential(60)
        turns.append(
            Request(
                arrival_s=round(arrival_s, 3),
                input_tokens=len(ids) * BLOCK_TOKENS + int(rng.integers(BLOCK_TOKENS)),
                output_tokens=1 + int(rng.exponential(560)),
                prefix_hashes=IdRuns.of(ids.tolist()),
                hash_block_tokens=BLOCK_TOKENS,
            )
        )
    return turns, fresh
