"""The index of whole blocks: ids of a trace, or digests of tokens with a guard."""

import numpy as np
import pytest

from dsv4kv.errors import ConfigError
from dsv4kv.prefix.block_hash import BlockHashIndex, resumable_blocks
from dsv4kv.prefix.index import BlockHasher, Digests
from dsv4kv.prefix.policies import make_policy
from tests.prefix.indexes import INDEXES, make_index
from tests.prefix.trees import check_tree

HASHER = BlockHasher(4)


def test_ids_match_up_to_the_first_that_differs() -> None:
    index = BlockHashIndex()
    index.insert(np.array([1, 2, 3]), np.array([10, 11, 12]))
    match = index.match(np.array([1, 2, 9, 3]))
    assert (match.length, match.values.tolist()) == (2, [10, 11])


def test_the_second_turn_of_a_chat_hits_what_decoding_computed() -> None:
    index = BlockHashIndex(digests=True)
    prompt, answer = np.arange(10), np.arange(100, 109)
    lease = index.pin(HASHER.digest(prompt))
    keys = HASHER.digest(prompt)
    index.extend(lease, keys, np.array([0, 1]))
    keys = HASHER.digest(np.concatenate([prompt, answer])[8:], keys)
    index.extend(lease, keys.after(2), np.array([2, 3]))
    index.release(lease)
    second = np.concatenate([prompt, answer, np.arange(200, 210)])
    assert index.pin(HASHER.digest(second)).values.tolist() == [0, 1, 2, 3]


def test_equal_keys_of_other_tokens_are_counted_and_not_reused() -> None:
    index = BlockHashIndex(digests=True)
    keys = HASHER.digest(np.arange(12))
    index.insert(keys, np.array([0, 1, 2]))
    forged = Digests(keys.data, keys.guards + np.array([0, 1, 0]))
    lease = index.pin(forged)
    assert (lease.length, lease.values.tolist()) == (1, [0])
    assert index.stats().collisions == 1
    insertion = index.extend(lease, forged.after(1), np.array([0, 8, 9]))
    assert (insertion.stored, insertion.taken.size) == (1, 0)
    index.release(lease)
    assert index.pin(keys).length == 3
    assert index.stats().collisions == 1


def test_a_collision_of_the_first_block_matches_nothing() -> None:
    index = BlockHashIndex(digests=True)
    keys = HASHER.digest(np.arange(4))
    index.insert(keys, np.array([0]))
    lease = index.pin(Digests(keys.data, keys.guards + 1))
    assert lease.length == 0
    check_tree(index, [lease])


@pytest.mark.parametrize("digests", [True, False])
def test_an_index_takes_the_keys_it_was_made_for(digests: bool) -> None:
    index = BlockHashIndex(digests=digests)
    with pytest.raises(ConfigError, match="this index was made for keys that are"):
        index.match(np.array([1]) if digests else HASHER.digest(np.arange(4)))


def test_ids_must_be_whole_numbers_in_one_row() -> None:
    with pytest.raises(ConfigError, match="block ids must be one row of whole numbers"):
        BlockHashIndex().match(np.array([0.5]))


@pytest.mark.parametrize("name", INDEXES)
def test_every_index_of_the_registry_can_be_made(name: str) -> None:
    index = make_index(name, 4, make_policy("lru"))
    keys = np.arange(8) if name == "radix" else HASHER.digest(np.arange(8))
    index.insert(keys, np.array([0, 1]))
    assert index.match(keys).values.tolist() == [0, 1]


def test_every_lookup_is_counted() -> None:
    index = BlockHashIndex()
    index.insert(np.arange(1, 6), np.arange(5))
    index.release(index.pin(np.array([1, 2, 9])))
    index.evict(2)
    stats = index.stats()
    assert (stats.lookups, stats.asked, stats.hit) == (1, 3, 2)
    assert (stats.inserted, stats.evicted, stats.cached, stats.held) == (5, 2, 3, 3)


@pytest.mark.parametrize("block_tokens", [1, 2, 16])
def test_a_prompt_resumes_behind_as_many_blocks_as_leave_two_tokens(block_tokens: int) -> None:
    for tokens in range(1, 70):
        for matched in range(tokens // block_tokens + 1):
            found = resumable_blocks(matched, tokens, block_tokens)
            fits = [n for n in range(matched + 1) if tokens - n * block_tokens >= 2]
            assert found == max(fits, default=0)
