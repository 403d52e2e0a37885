"""A batch over shared blocks gives everybody's own answers, whatever memory makes it do."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dsv4kv.bench.block_system import Batch
from dsv4kv.bench.systems import Outcome
from dsv4kv.cache.blocks import Policy
from tests.examples import examples
from tests.systems.small import MODEL, small


def served(policy: Policy = "lru", **blocks: Any) -> Batch:
    config = small(blocks=blocks)
    batch = Batch(config, MODEL, policy, Outcome("blocks"))
    batch.serve(config)
    return batch


@examples(50)
@given(
    policy=st.sampled_from(["lru", "ref_zero"]),
    least=st.integers(10, 20),
    paused=st.integers(0, 10),
    requests=st.integers(1, 6),
    block_tokens=st.sampled_from([14, 16, 20]),
    unified=st.booleans(),
    reset=st.sampled_from(["none", "all", "prefix_cache", "counters", "both"]),
)
def test_answers_kv_and_routing_are_those_of_a_run_without_a_cache(
    policy: Policy, least: int, **blocks: Any
) -> None:
    blocks["paused_blocks"] = blocks.pop("paused")
    batch = served(policy, rank_blocks=(least + 3, least), **blocks)
    checks = batch.outcome
    assert checks.failures == []
    assert {"KV", "tokens", "routing"} <= set(checks.checks)
    assert batch.blocks.pool.num_unused == batch.blocks.pool.num_blocks


def test_the_small_run_shares_defers_pauses_and_starts_again() -> None:
    counts = served(reset="none").counts
    happened = (
        *("prompt tokens reused", "requests deferred", "requests paused", "requests restarted"),
        "max blocks of paused requests",
    )
    assert all(counts[each] for each in happened), counts


def test_a_preserved_prefix_cache_is_found_after_a_reset_and_preserved_counters_go_on() -> None:
    kept, fresh = (served(reset=each).counts for each in ("both", "counters"))
    assert kept["prompt tokens reused"] > fresh["prompt tokens reused"]
    assert served(reset="all").counts["prompt tokens"] < fresh["prompt tokens"]


@pytest.mark.parametrize(("unified", "blocks"), [(False, 11), (True, 15)])
def test_unified_memory_adds_what_paused_requests_keep_to_the_least_of_the_ranks(
    unified: bool, blocks: int
) -> None:
    config = small(blocks={"unified": unified})
    batch = Batch(config, MODEL, "lru", Outcome("blocks"))
    assert batch.blocks.pool.num_blocks == batch.blocks.dummy_block_idx == blocks


def test_a_conversation_that_never_fits_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"takes 9 blocks and there are 3: raise blocks\."):
        served(rank_blocks=(3,), paused_blocks=1)
