"""Checkpoints and blocks as ledgers."""

import numpy as np
import pytest

from dsv4kv.errors import OutOfBlocks
from dsv4kv.prefix.block_hash import BlockHashIndex
from dsv4kv.replay.prompts import BlockLedger, CheckpointStore
from tests.replay.scenes import replay, request


def test_the_checkpoint_used_longest_ago_goes_first() -> None:
    store = CheckpointStore(2)
    assert [store.write(key) for key in (1, 2)] == [True, True]
    store.use(1)
    assert store.write(3)
    assert (1 in store, 2 in store, 3 in store) == (True, False, True)
    assert (store.written, store.evicted) == (3, 1)


def test_a_checkpoint_that_is_there_is_not_copied_again() -> None:
    store = CheckpointStore(None)
    assert (store.write(5), store.write(5), store.written) == (True, False, 1)


def test_a_store_without_room_keeps_nothing() -> None:
    store = CheckpointStore(0)
    assert not store.write(5)
    assert len(store) == store.written == 0


def test_a_checkpoint_goes_with_its_block() -> None:
    store, index = CheckpointStore(None), BlockHashIndex()
    ledger = BlockLedger(4, 1, index, store)
    keys = np.array([7, 8, 9])
    ledger.take(3)
    index.insert(keys, keys)
    ledger.give(3)
    store.write(8)
    store.write(9)
    ledger.take(2)  # one is free, so the last block of the chain goes
    assert (9 in store, 8 in store, store.orphaned) == (False, True, 1)
    assert (ledger.free, ledger.private, ledger.cached, ledger.evicted) == (0, 2, 2, 1)


def test_blocks_that_cannot_be_had_are_refused_and_nothing_changes() -> None:
    ledger = BlockLedger(4, 1, None, CheckpointStore(None))
    ledger.take(3)
    with pytest.raises(OutOfBlocks, match="2 blocks are needed and 1 can be had"):
        ledger.take(2)
    assert (ledger.free, ledger.private) == (1, 3)


def test_blocks_a_request_has_found_are_not_the_ones_it_is_promised() -> None:
    # 8 of 16 blocks are cached and found; 7 are held by another: 9 more cannot be had
    requests = [
        request(range(1, 9), at=0, output=1),
        request(range(100, 107), at=100, output=400),
        request([*range(1, 9), *range(50, 58)], at=100.01, output=1),
    ]
    made = replay(requests, cache__num_blocks=16, scheduler__paused_share=1.0)
    assert made.outcome.finished == 3
    waited_ns = max(made.outcome.samples_ns["queueing"])
    assert waited_ns > 400 * 2e6  # until the second had ended: a step takes 2 ms at least
    assert made.prompts.tally.saved_tokens in (0, 8 * 128)


def test_a_block_stored_and_gone_is_evicted_and_one_never_stored_is_in_flight() -> None:
    chain = list(range(1, 9))
    requests = [
        request(chain, at=0, output=1),
        request(range(100, 114), at=100, output=1),  # evicts
        request([*chain, 70], at=200, output=1),
    ]
    made = replay(requests, cache__num_blocks=16, prefix__strategy="full", prefix__defer=False)
    tally = made.prompts.tally
    assert tally.lost["evicted_block"] + tally.saved_tokens == 8 * 128
    assert tally.lost["evicted_block"] > 0
    assert tally.in_flight_tokens == 0
