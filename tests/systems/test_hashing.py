"""Keys of blocks stand for their tokens and everything before them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.bench.systems.block_system import digest, names_of, resumable_blocks

TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=40)


@given(tokens=TOKENS, at=st.integers(0, 39))
def test_a_changed_token_changes_the_keys_from_its_block_on(tokens: list[int], at: int) -> None:
    before = digest(np.array(tokens, dtype=np.int64), 4)
    changed = tokens.copy()
    if at < len(tokens):
        changed[at] ^= 1
    after = digest(np.array(changed, dtype=np.int64), 4)
    first = at // 4 if at < len(tokens) else len(before)
    assert before[:first] == after[:first]
    assert not set(before[first:]) & set(after[first:])


@given(tokens=TOKENS, at=st.integers(0, 9))
def test_hashing_may_go_on_where_it_stopped(tokens: list[int], at: int) -> None:
    row = np.array(tokens, dtype=np.int64)
    begun = digest(row[: 4 * at], 4)
    assert digest(row[4 * at :], 4, begun) == digest(row, 4)


def test_names_for_allocators_are_never_0_or_minus_1() -> None:
    keys = [value.to_bytes(8, "little", signed=True) * 2 for value in (0, -1, 7)]
    assert names_of(keys) == [2, 2, 7]


@pytest.mark.parametrize("block_tokens", [1, 2, 16])
def test_a_prompt_resumes_behind_as_many_blocks_as_leave_two_tokens(block_tokens: int) -> None:
    for tokens in range(1, 70):
        for matched in range(tokens // block_tokens + 1):
            found = resumable_blocks(matched, tokens, block_tokens)
            fits = [n for n in range(matched + 1) if tokens - n * block_tokens >= 2]
            assert found == max(fits, default=0)
