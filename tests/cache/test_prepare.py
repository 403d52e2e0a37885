"""Before a step every request holds the blocks it needs, or nothing at all has changed."""

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

from dsv4kv.cache.manager import KVCacheManager, prepare_forward
from dsv4kv.cache.table import NO_BLOCK
from dsv4kv.errors import CacheError, ContextOverflow, NotOwner, OutOfBlocks
from dsv4kv.model.schema import Sharing
from tests.cache.caches import admit, allocators, bookkeeping, small_plan, snapshot

SHARINGS: list[Sharing] = ["model", "type", "layer"]
BY_SHARING = pytest.mark.parametrize("sharing", SHARINGS)
CONTEXT = 1000
TOKENS = st.integers(0, CONTEXT)


class NoTorch(TorchFunctionMode):
    """Fails at any use of torch."""

    def __torch_function__(self, func: Callable[..., Any], *args: object, **_: object) -> NoReturn:
        raise AssertionError(f"{func} was called")


def check_holds(manager: KVCacheManager, slot: int, tokens: int) -> None:
    """The slot holds exactly the blocks of ``tokens`` tokens, in every lane of every table."""
    assert manager.tokens[slot] == tokens
    for table in manager.tables:
        needed = table.group.blocks_for(tokens)
        assert table.held[slot] == needed
        assert (table.blocks[:, slot, :needed] != NO_BLOCK).all()
        assert (table.blocks[:, slot, needed:] == NO_BLOCK).all()


def refuses(
    manager: KVCacheManager, error: type[CacheError], match: str, *arguments: object
) -> None:
    before = snapshot(manager)
    with pytest.raises(error, match=match):
        prepare_forward(manager, *arguments)  # type: ignore[arg-type]
    assert snapshot(manager) == before


@BY_SHARING
@given(tokens=st.lists(TOKENS, min_size=3, max_size=3))
def test_a_prompt_gets_the_blocks_of_its_entries(sharing: Sharing, tokens: list[int]) -> None:
    manager = bookkeeping(sharing=sharing)
    prepare_forward(manager, admit(manager, 3), [0, 0, 0], tokens)
    for slot, count in enumerate(tokens):
        check_holds(manager, slot, count)
    for table in manager.tables:
        assert table.allocator.num_held == table.held.sum()


@BY_SHARING
@given(first=TOKENS, second=TOKENS)
def test_what_is_held_follows_from_what_is_needed_alone(
    sharing: Sharing, first: int, second: int
) -> None:
    """Growing, standing still and going back are one rule, whatever was held before."""
    manager = bookkeeping(sharing=sharing)
    (slot,) = admit(manager, 1)
    prepare_forward(manager, [slot], [0], [first])
    prepare_forward(manager, [slot], [first], [second])
    check_holds(manager, slot, second)


@BY_SHARING
@given(before=TOKENS, after=TOKENS)
def test_preparing_a_step_twice_changes_nothing(sharing: Sharing, before: int, after: int) -> None:
    manager = bookkeeping(sharing=sharing)
    slots = admit(manager, 2)
    prepare_forward(manager, slots, [0, 0], [before, after])
    prepare_forward(manager, slots, [before, after], [after, after])
    once = snapshot(manager)
    prepare_forward(manager, slots, [before, after], [after, after])
    assert snapshot(manager) == once


@BY_SHARING
@given(tokens=TOKENS, drafts=st.integers(0, 300))
def test_rolling_back_leaves_the_cache_as_if_nothing_had_been_drafted(
    sharing: Sharing, tokens: int, drafts: int
) -> None:
    manager = bookkeeping(sharing=sharing, max_context_tokens=CONTEXT + 300)
    (slot,) = admit(manager, 1)
    prepare_forward(manager, [slot], [0], [tokens])
    kept = [table.blocks.tolist() for table in manager.tables]
    free = [allocator.num_free for allocator in allocators(manager)]
    prepare_forward(manager, [slot], [tokens], [tokens + drafts])
    prepare_forward(manager, [slot], [tokens + drafts], [tokens])
    assert [table.blocks.tolist() for table in manager.tables] == kept
    assert [allocator.num_free for allocator in allocators(manager)] == free


@BY_SHARING
def test_a_resumed_request_gets_all_its_blocks(sharing: Sharing) -> None:
    manager = bookkeeping(sharing=sharing)
    (slot,) = admit(manager, 1)
    prepare_forward(manager, [slot], [900], [901])
    check_holds(manager, slot, 901)


@BY_SHARING
@given(steps=st.lists(st.integers(1, 90), max_size=20))
def test_a_prompt_in_chunks_holds_what_it_would_hold_at_once(
    sharing: Sharing, steps: list[int]
) -> None:
    manager = bookkeeping(sharing=sharing, max_context_tokens=2000)
    (slot,) = admit(manager, 1)
    position = 0
    for step in steps:
        prepare_forward(manager, [slot], [position], [position + step])
        position += step
        check_holds(manager, slot, position)


@BY_SHARING
def test_blocks_of_running_requests_are_their_own(sharing: Sharing) -> None:
    manager = bookkeeping(sharing=sharing)
    prepare_forward(manager, admit(manager, 3), [0, 0, 0], [1000, 500, 777])
    for table in manager.tables:
        for lane in table.blocks:
            held = lane[lane != NO_BLOCK].tolist()
            assert len(set(held)) == len(held) == table.held.sum()


@BY_SHARING
def test_too_few_blocks_for_the_last_request_leave_the_first_without(sharing: Sharing) -> None:
    manager = bookkeeping(sharing=sharing, num_blocks=10)
    slots = admit(manager, 3)
    prepare_forward(manager, slots[:1], [0], [256])
    refuses(manager, OutOfBlocks, "Nothing was changed", slots, [256, 0, 0], [384, 500, 700])


@pytest.mark.parametrize("sharing", ["type", "layer"])
@pytest.mark.parametrize("exhausted", [0, 1])
def test_one_exhausted_pool_leaves_all_pools_as_they_were(
    sharing: Sharing, exhausted: int
) -> None:
    manager = bookkeeping(sharing=sharing, num_blocks=8)
    slots = admit(manager, 2)
    for _ in range(7):
        manager.allocate_block(exhausted)
    refuses(manager, OutOfBlocks, "than the 1 free of 8", slots, [0, 0], [256, 128])


@BY_SHARING
def test_a_retry_after_freeing_takes_exactly_what_is_needed(sharing: Sharing) -> None:
    manager = bookkeeping(sharing=sharing, num_blocks=8)
    first, second = admit(manager, 2)
    prepare_forward(manager, [first], [0], [640])
    for _ in range(3):
        refuses(manager, OutOfBlocks, "Nothing was changed", [second], [0], [1000])
    manager.release_request(first, manager.generation(first))
    prepare_forward(manager, [second], [0], [1000])
    check_holds(manager, second, 1000)
    for table in manager.tables:
        assert table.allocator.num_free == 8 - table.group.blocks_for(1000)


def test_one_requests_rollback_pays_for_anothers_growth_in_the_same_step() -> None:
    manager = bookkeeping(num_blocks=8)
    first, second = admit(manager, 2)
    prepare_forward(manager, [first, second], [0, 0], [896, 128])
    prepare_forward(manager, [first, second], [896, 128], [128, 896])
    check_holds(manager, first, 128)
    check_holds(manager, second, 896)


@BY_SHARING
@pytest.mark.parametrize("block_tokens", [128, 256, 384])
@pytest.mark.parametrize("context", [8_000, 1_000_000])
def test_a_context_that_is_no_multiple_of_a_block_stays_in_its_row(
    sharing: Sharing, block_tokens: int, context: int
) -> None:
    manager = bookkeeping(
        sharing=sharing, block_tokens=block_tokens, max_context_tokens=context, num_slots=3
    )
    slots = admit(manager, 3)
    prepare_forward(manager, slots[1:2], [0], [context])
    check_holds(manager, slots[1], context)
    for table in manager.tables:
        assert (table.blocks[:, [0, 2]] == NO_BLOCK).all()
        ratio = table.group.ratio
        assert table.blocks.shape[2] * block_tokens >= context - context % ratio
    refuses(manager, ContextOverflow, "1 tokens and", slots[1:2], [0], [context + 1])


def test_a_request_beyond_the_context_says_what_to_raise() -> None:
    manager = bookkeeping()
    slots = admit(manager, 1)
    refuses(
        manager, ContextOverflow, "would have 1001 .* row holds 1000: raise", slots, [0], [1001]
    )
    refuses(manager, ContextOverflow, "raise cache.max_context", slots, [0], [2**63 - 1])


@pytest.mark.parametrize(
    ("slots", "before", "after"),
    [([0, 1], [0], [1]), ([0], [0, 0], [1]), ([0], [0], [1, 1]), ([[0]], [[0]], [[1]]), (0, 0, 1)],
)
def test_lists_of_different_lengths_are_refused(
    slots: object, before: object, after: object
) -> None:
    manager = bookkeeping()
    admit(manager, 2)
    refuses(manager, CacheError, "must be three lists of one length", slots, before, after)


def test_a_slot_named_twice_is_refused() -> None:
    manager = bookkeeping()
    refuses(manager, NotOwner, "slots 0, 0: ", [*admit(manager, 1)] * 2, [0, 0], [128, 256])


@pytest.mark.parametrize("slot", [1, 2, 3, -1, -3, -4, -6, 10**6])
def test_a_slot_in_which_no_request_runs_is_refused(slot: int) -> None:
    manager = bookkeeping()
    first, second, third = admit(manager, 3)
    manager.release_request(second, manager.generation(second))
    manager.release_request(third, manager.generation(third))
    refuses(manager, NotOwner, "not all are held", [first, slot], [0, 0], [128, 128])


@pytest.mark.parametrize(("before", "after"), [(0, -1), (-1, 5), (-(2**62), -1)])
def test_negative_tokens_are_refused(before: int, after: int) -> None:
    manager = bookkeeping()
    slots = admit(manager, 2)
    refuses(manager, CacheError, "fewer than 0 tokens", slots, [0, before], [100, after])


@BY_SHARING
def test_a_step_without_requests_changes_nothing(sharing: Sharing) -> None:
    manager = bookkeeping(sharing=sharing)
    prepare_forward(manager, admit(manager, 1), [0], [300])
    before = snapshot(manager)
    prepare_forward(manager, [], [], [])
    assert snapshot(manager) == before


def test_layers_without_compressed_kv_are_prepared_without_tables() -> None:
    manager = bookkeeping(layers=[0, 1])
    (slot,) = admit(manager, 1)
    prepare_forward(manager, [slot], [0], [1000])
    assert manager.tokens[slot] == 1000
    refuses(manager, ContextOverflow, "a table row holds 1000", [slot], [1000], [1001])


def test_every_lane_is_a_table_of_its_own() -> None:
    manager = bookkeeping(sharing="layer", num_blocks=8)
    (slot,) = admit(manager, 1)
    prepare_forward(manager, [slot], [0], [256])
    first, second = (manager.tables[0].view(layer) for layer in (2, 4))
    assert first[slot, :2].tolist() == second[slot, :2].tolist()
    assert first.data_ptr() != second.data_ptr()
    manager.release_request(slot, manager.generation(slot))
    assert manager.num_held_blocks == 0


def test_a_pipeline_stage_prepares_its_own_layers() -> None:
    manager = KVCacheManager(
        small_plan(layers=None, stage=1, stages=4, sharing="layer"), data=False
    )
    (slot,) = admit(manager, 1)
    prepare_forward(manager, [slot], [0], [700])
    check_holds(manager, slot, 700)
    layers = {layer for table in manager.tables for layer in table.group.layers}
    assert layers == set(range(11, 22))


def test_no_step_touches_a_tensor() -> None:
    """Host arrays are the truth: nothing waits for a device."""
    manager = KVCacheManager(small_plan())
    slots = admit(manager, 2)
    with NoTorch():
        prepare_forward(manager, slots, [0, 0], [700, 128])
        prepare_forward(manager, slots, [700, 128], [500, 129])
        manager.release_request(slots[0], manager.generation(slots[0]))
    with pytest.raises(AssertionError, match="was called"), NoTorch():
        torch.zeros(1).item()


def test_a_block_that_another_request_holds_too_does_not_become_free() -> None:
    """One goes back by a shared block while the other needs one: refused, and nothing is lost."""
    manager = bookkeeping(sharing="model", num_blocks=3)
    (table,), (first, second, third) = manager.tables, admit(manager, 3)
    prepare_forward(manager, [first], [0], [256])
    shared = table.blocks[0, first, :2].astype(np.int64)
    table.allocator.retain(shared)
    table.adopt(second, shared)
    manager.tokens[second] = 256
    prepare_forward(manager, [third], [0], [128])
    before = table.blocks.tolist(), table.held.tolist(), manager.tokens.tolist()
    with pytest.raises(OutOfBlocks, match=r"Nothing was changed\."):
        prepare_forward(manager, [second, third], [256, 128], [100, 256])
    assert (table.blocks.tolist(), table.held.tolist(), manager.tokens.tolist()) == before
    assert table.allocator.refs(shared).tolist() == [2, 2]
    prepare_forward(manager, [second, first, third], [256, 256, 128], [0, 128, 256])
    assert table.held.tolist() == [1, 0, 2]
