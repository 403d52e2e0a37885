"""Ids seen before are those of a plain set, whatever the runs they come in."""

import random

from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.core.outcome import SeenIds
from dsv4kv.traces.request import IdRuns, list_runs


def random_chains(seed: int, count: int) -> list[list[int]]:
    """Chains that part from others anywhere; an id always follows the same one."""
    draw = random.Random(seed)
    chains: list[list[int]] = []
    fresh = draw.choice([0, 2**63 - 2_000, 2**63])  # ids of 64 bits wrap around
    for _ in range(count):
        before = draw.choice([[], *chains])
        chain = before[: draw.randint(0, len(before))]
        for _ in range(draw.randint(0, 4)):
            fresh += draw.randint(1, 3)
            length = draw.randint(1, 6)
            chain = [*chain, *range(fresh, fresh + length)]
            fresh += length
        chains.append(chain)
    return chains


@given(st.integers(0, 2**20), st.integers(1, 30), st.integers(1, 4))
def test_what_was_seen_is_what_a_set_of_tokens_has(seed: int, count: int, size: int) -> None:
    seen, plain, draw = SeenIds(), set[tuple[int, int]](), random.Random(seed)
    for number, chain in enumerate(random_chains(seed, count)):
        runs = chain and max(chain) < 2**63 and number % 2
        tokens = len(chain) * size - (draw.randrange(size) if chain else 0)
        had = [(chain[token // size], token % size) for token in range(tokens)]
        known = seen.add(*list_runs(IdRuns.of(chain) if runs else chain), size, tokens)
        assert known == sum(one in plain for one in had)
        plain.update(had)
