"""Keys of blocks stand for their tokens and everything before them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.bench import block_system
from dsv4kv.bench.block_system import names_of, resumable_blocks

TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=40)


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


def test_names_for_allocators_are_never_0_or_minus_1(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [value.to_bytes(8, "little", signed=True) * 4 for value in (0, -1, 7)]
    monkeypatch.setattr(block_system, "page_digests", lambda *_: keys)
    assert names_of(np.arange(3, dtype=np.int32), 1) == [2, 2, 7]


@pytest.mark.parametrize("block_tokens", [1, 2, 16])
def test_a_prompt_resumes_behind_as_many_blocks_as_leave_two_tokens(block_tokens: int) -> None:
    for tokens in range(1, 70):
        for matched in range(tokens // block_tokens + 1):
            found = resumable_blocks(matched, tokens, block_tokens)
            fits = [n for n in range(matched + 1) if tokens - n * block_tokens >= 2]
            assert found == max(fits, default=0)
