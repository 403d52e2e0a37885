"""Stack distances of stretches equal a list of blocks that is kept in order of use."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.errors import ConfigError
from dsv4kv.replay.mrc import capacity_for, hit_curve
from dsv4kv.traces.paths import find_reuse, number_prompts
from tests.replay import texts as te

GRAINS = st.sampled_from([1, 2, 4, 8, 12])


def found_by_lru(prompts: list[te.Text], grain: int, capacity: int, *, whole: bool) -> list[int]:
    """Leading blocks that are among the ``capacity`` blocks used last; then all are used."""
    order: list[te.Text] = []  # the most recent first
    found = []
    for prompt in prompts:
        path = te.visible_blocks(prompt, grain, te.BLOCK, whole=whole)
        cached = set(order[:capacity])
        hits = next((i for i, block in enumerate(path) if block not in cached), len(path))
        found.append(hits)
        order = path + [block for block in order if block not in set(path)]
    return found


@given(te.texts(), GRAINS, st.integers(0, 30), st.booleans())
def test_what_a_cache_finds_is_what_a_list_in_order_of_use_finds(
    prompts: list[te.Text], grain: int, capacity: int, whole: bool
) -> None:
    reuse = find_reuse(te.to_table(prompts), grain, whole_blocks=whole)
    expected = found_by_lru(prompts, grain, capacity, whole=whole)
    assert reuse.found_blocks(capacity).tolist() == expected


@given(te.texts(), GRAINS, st.lists(st.integers(0, 60), min_size=1))
def test_the_curve_is_exact(prompts: list[te.Text], grain: int, capacities: list[int]) -> None:
    reuse = find_reuse(te.to_table(prompts), grain)
    hits = np.interp(capacities, *hit_curve(reuse))
    assert hits.tolist() == [int(reuse.found_blocks(c).sum()) for c in capacities]


@given(te.texts(), GRAINS, st.floats(0.01, 1))
def test_the_smallest_capacity_is_found(prompts: list[te.Text], grain: int, share: float) -> None:
    reuse = find_reuse(te.to_table(prompts), grain)
    capacity = capacity_for(reuse, share)
    wanted = share * int(reuse.found_blocks(None).sum())
    if capacity is None:
        assert wanted == 0
        return
    assert reuse.found_blocks(capacity).sum() >= wanted - 1e-9
    assert reuse.found_blocks(capacity - 1).sum() < wanted


@given(te.texts(), GRAINS, st.booleans())
def test_equal_blocks_have_equal_numbers(prompts: list[te.Text], grain: int, whole: bool) -> None:
    numbered = number_prompts(te.to_table(prompts), grain, whole_blocks=whole)
    known: dict[te.Text, int] = {}
    for request, prompt in enumerate(prompts):
        path = te.visible_blocks(prompt, grain, te.BLOCK, whole=whole)
        assert numbered.path(request) == [known.setdefault(block, len(known)) for block in path]
    assert numbered.count == len(known)


@pytest.mark.parametrize("grain", [0, -4, 3, 6, 10])
def test_blocks_that_do_not_fit_the_ids_are_refused(grain: int) -> None:
    with pytest.raises(ConfigError, match=f"blocks of {grain} tokens do not fit ids .* 4 tokens"):
        find_reuse(te.to_table([(1, 2, 3, 4, 5)]), grain)


# Mooncake's conversation trace, exact LRU over whole ids, counted independently
PUBLISHED = {
    1_000: (0.04453, 0.04541), 1_828: (0.05247, 0.05350), 3_656: (0.07927, 0.08081),
    9_140: (0.19578, 0.19961), 18_279: (0.27891, 0.28439), 30_000: (0.32575, 0.33215),
    50_000: (0.35456, 0.36153), 100_000: (0.36369, 0.37084), None: (0.36641, 0.37362),
}  # fmt: skip


@te.needs_conversation
def test_the_conversation_trace_has_its_published_curve() -> None:
    table = te.conversation()
    reuse = find_reuse(table, 512)
    shares = {
        capacity: (
            round(int(reuse.found_blocks(capacity).sum()) / table.references, 5),
            round(int(reuse.found_tokens(capacity).sum()) / table.total_input_tokens, 5),
        )
        for capacity in PUBLISHED
    }
    assert shares == PUBLISHED
