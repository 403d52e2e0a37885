"""Policies simulated on a trace: least recently used is the curve; others are as published."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.errors import ConfigError
from dsv4kv.replay.mrc import apply_policy
from dsv4kv.replay.rules import Outcome
from dsv4kv.traces.paths import PathTable, find_reuse, number_prompts
from tests.replay.texts import Text, texts, to_table


def run(name: str, table: PathTable, grain: int, capacity: int) -> Outcome:
    numbered = number_prompts(table, grain, whole_blocks=False)
    return apply_policy(name, table, find_reuse(table, grain), numbered, capacity)


@given(texts(), st.sampled_from([2, 4, 8]), st.integers(0, 20))
def test_least_recently_used_simulated_is_what_the_distances_say(
    prompts: list[Text], grain: int, spare: int
) -> None:
    table = to_table(prompts)
    reuse = find_reuse(table, grain)
    capacity = int(reuse.blocks.max()) + spare
    outcome = run("lru", table, grain, capacity)
    assert outcome.resumed_tokens.tolist() == reuse.found_tokens(capacity).tolist()
    assert outcome.losses["evicted_block"] + outcome.hit_tokens == reuse.found_tokens(None).sum()


def test_a_cache_smaller_than_a_prompt_is_refused() -> None:
    table = to_table([tuple(range(9))])
    with pytest.raises(ConfigError, match="2 blocks is smaller than the longest prompt, 3 blocks"):
        run("lru", table, 4, 2)
