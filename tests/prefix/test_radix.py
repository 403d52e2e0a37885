"""The radix index over a paged cache: matches to the token, blocks shared and forked."""

import numpy as np
import pytest

from dsv4kv.errors import ConfigError
from dsv4kv.prefix.radix import RadixIndex
from dsv4kv.prefix.tree import Ids
from tests.prefix.trees import check_tree

BLOCK = 4


def tokens(text: str) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)


def ids(*blocks: int) -> Ids:
    return np.array(blocks, dtype=np.int64)


def index_with(**chains: tuple[int, ...]) -> RadixIndex:
    index = RadixIndex(BLOCK)
    for text, blocks in chains.items():
        index.insert(tokens(text), ids(*blocks))
    return index


def test_a_match_that_ends_inside_a_block_names_that_block_last() -> None:
    match = index_with(abcdefgh=(10, 11)).match(tokens("abcdefxx"))
    assert (match.length, match.values.tolist()) == (6, [10, 11])


def test_below_a_fork_inside_a_block_the_copy_counts() -> None:
    index = index_with(abcdefgh=(10, 11))
    insertion = index.insert(tokens("abcdefxy"), ids(12))  # 12 has a copy of e and f
    assert (insertion.present, insertion.taken.tolist()) == (6, [12])
    assert index.match(tokens("abcdefxy")).values.tolist() == [10, 12]
    assert index.match(tokens("abcdefgh")).values.tolist() == [10, 11]
    assert index.match(tokens("abcdef")).values.tolist() == [10, 11]
    check_tree(index, [])


def test_going_on_in_the_same_block_takes_it_once() -> None:
    index = index_with(abcdef=(10, 11))
    assert index.insert(tokens("abcdefghi"), ids(11, 12)).taken.tolist() == [12]
    assert index.stats().held == 3
    assert sorted(index.evict(3).tolist()) == [10, 11, 12]


def test_a_block_across_a_fork_goes_with_the_last_run_that_holds_it() -> None:
    index = index_with(abcdefgh=(10, 11))
    index.insert(tokens("abcdefxy"), ids(12))
    assert index.evict(1).tolist() == [12]  # g and h go first: their block is e's and f's, too
    assert index.match(tokens("abcdefgh")).values.tolist() == [10, 11]
    assert index.evict(1).tolist() == [11]
    assert index.match(tokens("abcdefgh")).length == 4
    assert index.evict(1).tolist() == [10]


def test_evicting_a_block_takes_its_tokens_and_no_others() -> None:
    index = index_with(abcdefghij=(10, 11, 12))
    assert index.evict(1).tolist() == [12]
    assert index.match(tokens("abcdefghij")).length == 8
    assert index.evict(1).tolist() == [11]
    assert index.match(tokens("abcdefghij")).length == 4


def test_values_given_for_cached_tokens_stay_the_callers() -> None:
    index = index_with(abcdefgh=(10, 11))
    insertion = index.insert(tokens("abcdefgh"), ids(20, 21))
    assert (insertion.present, insertion.taken.size) == (8, 0)
    assert index.match(tokens("abcdefgh")).values.tolist() == [10, 11]


def test_values_that_begin_after_the_cached_prefix_are_refused() -> None:
    index = index_with(abcd=(10,))
    with pytest.raises(ConfigError, match="begin at key 8, and 4 are cached"):
        index.insert(tokens("abcdefghij"), ids(12))
    with pytest.raises(ConfigError, match="2 values for a chain of 4 keys"):
        index.insert(tokens("abcd"), ids(1, 2))
    check_tree(index, [])


def test_a_lease_holds_what_it_matched_and_nothing_more() -> None:
    index = index_with(abcdefghijkl=(10, 11, 12))
    lease = index.pin(tokens("abcdefgh"))
    assert index.stats().pinned == 2
    assert index.evict(index.stats().evictable).tolist() == [12]
    check_tree(index, [lease])


def test_a_lease_grows_over_what_its_request_inserts() -> None:
    index = index_with(abcd=(10,))
    lease = index.pin(tokens("abcdefgh"))
    index.extend(lease, tokens("efgh"), ids(11))
    assert (lease.length, index.stats().pinned) == (8, 2)
    index.extend(lease, tokens("ijkl"), ids(12))  # decoding went on
    assert (lease.length, index.stats().pinned) == (12, 3)
    index.release(lease)
    assert index.stats().pinned == 0
    check_tree(index, [])


def test_a_lease_also_holds_what_another_inserted_on_its_way() -> None:
    index = RadixIndex(BLOCK)
    first, second = index.pin(tokens("abcdefgh")), index.pin(tokens("abcdefgh"))
    index.extend(first, tokens("abcdefgh"), ids(10, 11))
    index.extend(second, tokens("abcdefgh"), ids(20, 21))
    index.release(first)
    assert index.stats().pinned == 2
    check_tree(index, [second])


def test_a_lease_is_extended_inside_a_block_it_shares() -> None:
    index = index_with(abcdef=(10, 11))
    lease = index.pin(tokens("abcdef"))
    insertion = index.extend(lease, tokens("ghi"), ids(11, 12))
    assert (insertion.present, insertion.stored, insertion.taken.tolist()) == (6, 9, [12])
    assert index.match(tokens("abcdefghi")).values.tolist() == [10, 11, 12]
    check_tree(index, [lease])


def test_what_extends_a_lease_follows_what_it_holds() -> None:
    index = index_with(abcd=(10,))
    lease = index.pin(tokens("abcd"))
    with pytest.raises(ConfigError, match="begin at key 8, and 4 are cached"):
        index.extend(lease, tokens("efghij"), ids(12))
    assert (lease.length, index.stats().cached) == (4, 4)
    check_tree(index, [lease])


def test_looking_up_changes_nothing() -> None:
    index = index_with(abcdefgh=(10, 11))
    before = index.stats()
    index.match(tokens("abcde"))
    assert index.stats() == before


def test_long_runs_are_compared_to_the_first_difference() -> None:
    index = RadixIndex(BLOCK)
    prompt = np.arange(5_000, dtype=np.int32)
    index.insert(prompt, np.arange(1_250))
    for at in (0, 1, 255, 256, 257, 2_303, 2_304, 2_305, 4_999):
        other = prompt.copy()
        other[at] += 10_000
        assert index.match(other).length == at


def test_a_block_without_tokens_is_refused() -> None:
    with pytest.raises(ConfigError, match="give at least 1"):
        RadixIndex(0)


def test_what_follows_a_leaf_takes_it_out_of_the_order_without_a_lease() -> None:
    index = index_with(abcd=(10,))
    index.insert(tokens("abcdefgh"), ids(11))
    check_tree(index, [])
    assert index.evict(1).tolist() == [11]
    assert index.match(tokens("abcd")).values.tolist() == [10]


@pytest.mark.parametrize("evicted", range(1, 8))
def test_a_run_that_lost_its_end_can_be_followed_by_another(evicted: int) -> None:
    index = RadixIndex(BLOCK)
    prompt = np.arange(8 * BLOCK, dtype=np.int32)
    index.insert(prompt, np.arange(8))
    index.evict(evicted)
    other = np.concatenate([prompt[: (8 - evicted) * BLOCK], prompt[:8] + 1_000])
    index.insert(other, np.arange(100, 102))
    assert index.match(other).values.tolist() == [*range(8 - evicted), 100, 101]
    assert index.match(prompt).length == (8 - evicted) * BLOCK
    index.insert(prompt, np.arange(200, 200 + evicted))
    assert index.match(prompt).values.tolist() == [*range(8 - evicted), *range(200, 200 + evicted)]
    check_tree(index, [])


def test_a_block_is_taken_once_although_another_run_lies_between() -> None:
    """Three requests part inside one block; the second goes on where the third has been."""
    index = index_with(abcdef=(10, 11))
    second, third = index.pin(tokens("abcde")), index.pin(tokens("abcde"))
    assert index.extend(second, tokens("x"), ids(12)).taken.tolist() == [12]
    assert index.extend(third, tokens("xy"), ids(13)).taken.tolist() == [13]
    assert index.extend(second, tokens("yz"), ids(12)).taken.tolist() == []
    assert index.match(tokens("abcdexyz")).values.tolist() == [10, 12]
    check_tree(index, [second, third])
    for lease in (second, third):
        index.release(lease)
    assert sorted(index.evict(index.stats().held).tolist()) == [10, 11, 12, 13]
