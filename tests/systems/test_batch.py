"""A batch over shared blocks gives everybody's own answers, whatever memory makes it do."""

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dsv4kv.bench import block_system
from dsv4kv.bench.block_system import Batch, Request, names_of
from dsv4kv.bench.systems import _FACTOR, Outcome, Turn
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
    assert batch.pool.num_unused == batch.pool.num_blocks
    assert (batch.experts == -1).all() == (batch.pool.num_cached == 0)


def test_the_small_run_shares_defers_pauses_and_starts_again() -> None:
    counts = served(reset="none").counts
    happened = (
        *("prompt tokens reused", "requests deferred", "requests paused", "requests restarted"),
        "max blocks of paused requests",
    )
    assert all(counts[each] for each in happened), counts


def test_an_lru_cache_reuses_more_than_one_that_frees_at_once() -> None:
    lru, ref_zero = (served(policy, reset="none").counts for policy in ("lru", "ref_zero"))
    assert lru["prompt tokens reused"] > ref_zero["prompt tokens reused"] > 0


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
    assert batch.pool.num_blocks == blocks


def test_a_conversation_that_never_fits_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"takes 9 blocks and there are 3: raise blocks\."):
        served(rank_blocks=(3,), paused_blocks=1)


# ---- paused requests ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_no_more_are_restarted_than_a_plain_search_finds(seed: int) -> None:
    draw = Random(seed)
    batch = Batch(
        small(blocks={"rank_blocks": (40,), "paused_blocks": draw.randint(0, 12)}),
        MODEL,
        "lru",
        Outcome("blocks"),
    )
    pool, budget = batch.pool, batch._section.paused_blocks
    running, plain = pool.acquire(draw.randint(1, 12)), list[set[int]]()
    nothing = np.zeros(0, np.int32)
    for _ in range(draw.randint(1, 6)):
        known = [block for held in plain for block in held] + running.tolist()
        shared = set(draw.sample(known, draw.randint(0, min(4, len(set(known))))))
        pool.retain(np.array(sorted(shared), np.int64))
        held = np.array([*sorted(shared), *pool.acquire(draw.randint(1, 5))], np.int64)
        plain.append(set(held.tolist()))
        batch.paused.append(Request(Turn(0, 0, nothing, 1), nothing, held))
    pool.acquire(max(0, pool.num_free - draw.randint(0, 3)))  # others that run
    requests, free = [*batch.paused], pool.num_free
    expected = plain_restarts(plain, running.tolist(), free, budget)
    assert batch.restart_paused() == expected
    kept = len(requests) - expected
    assert [*batch.paused] == requests[:kept]
    assert [*batch.waiting] == requests[kept:]
    assert batch.held_by_paused(pool.num_free) <= budget


def plain_restarts(paused: list[set[int]], running: list[int], free: int, budget: int) -> int:
    """The fewest of the newest without which what cannot resume keeps to the budget."""
    for restarted in range(len(paused) + 1):
        kept = paused[: len(paused) - restarted]
        still = set(running).union(*kept)
        able = free + len(set[int]().union(*paused) - still)  # each lacks one block
        active = set(running).union(*kept[:able])
        if len(set[int]().union(*kept[able:]) - active) <= budget:
            return restarted
    raise AssertionError("without paused requests nothing is over budget")


# ---- names, and the stand-in for a model --------------------------------------------------------

TOKENS = st.lists(st.integers(0, 129_279), min_size=1, max_size=40)


@given(tokens=TOKENS, at=st.integers(0, 39))
def test_a_changed_token_changes_the_names_from_its_block_on(tokens: list[int], at: int) -> None:
    before = names_of(np.array(tokens, np.int32), 4)
    changed = tokens.copy()
    if at < len(tokens):
        changed[at] ^= 1
    after = names_of(np.array(changed, np.int32), 4)
    first = at // 4 if at < len(tokens) else len(before)
    assert before[:first] == after[:first]
    assert not set(before[first:]) & set(after[first:])


def test_names_are_never_0_or_minus_1(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [value.to_bytes(8, "little", signed=True) * 4 for value in (0, -1, 7)]
    monkeypatch.setattr(block_system, "page_digests", lambda *_: keys)
    assert names_of(np.arange(3, dtype=np.int32), 1) == [2, 2, 7]


@given(TOKENS)
def test_the_history_is_a_plain_recurrence(tokens: list[int]) -> None:
    history, told = 0, []
    for token in tokens:
        history = (_FACTOR * history + token + 1) % 2**64
        told.append(history)
    found = MODEL.compute(np.array(tokens, np.int32), None)
    assert found[:, 0].tolist() == told


def test_hashed_layers_route_by_the_token_alone_and_the_others_by_its_history() -> None:
    words = np.array([5, 6, 5], np.int32)
    experts = MODEL.route(words, MODEL.compute(words, None))
    for number, spec in enumerate(MODEL.layers):
        same = np.array_equal(experts[0, number], experts[2, number])
        assert same == spec.routes_by_id
