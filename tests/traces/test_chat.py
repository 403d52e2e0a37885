"""The chat trace: conversations over one system prompt, each turn extending the last."""

import gzip
import itertools
import zlib
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from dsv4kv.traces import resolve_trace, write_trace
from dsv4kv.traces.request import Request
from dsv4kv.traces.synth import (
    BLOCK_TOKENS,
    CONVERSATIONS,
    MAX_PROMPT_TOKENS,
    SEED,
    SYSTEM_TOKENS,
    chat_trace,
)


def conversations(trace: list[Request]) -> list[list[Request]]:
    """Group turns by the first block after the system prompt, which one conversation shares."""
    system_blocks = SYSTEM_TOKENS // BLOCK_TOKENS
    turns = defaultdict(list)
    for request in trace:
        # a first turn may end inside that block, and its partial id never recurs
        turns[request.prefix_hashes[system_blocks]].append(request)
    return list(turns.values())


def test_the_shipped_trace_is_what_the_generator_makes_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl.gz"
    write_trace(chat_trace(CONVERSATIONS, SEED), path)
    made, shipped = path.read_bytes(), resolve_trace("builtin:chat").read_bytes()
    assert gzip.decompress(made) == gzip.decompress(shipped)
    if zlib.ZLIB_RUNTIME_VERSION.startswith("1.2."):  # others may compress the same text better
        assert made == shipped


@pytest.mark.parametrize("seed", range(8))
def test_conversations_share_the_system_prompt_and_turns_what_came_before(seed: int) -> None:
    trace = chat_trace(20, seed)
    assert trace == chat_trace(20, seed) != chat_trace(20, seed + 1)
    arrivals = [request.arrival_s for request in trace]
    assert (arrivals, arrivals[0]) == (sorted(arrivals), 0.0)
    system_blocks = SYSTEM_TOKENS // BLOCK_TOKENS
    assert len({request.prefix_hashes[:system_blocks] for request in trace}) == 1
    references = Counter(block for request in trace for block in request.prefix_hashes)
    for request in trace:
        assert SYSTEM_TOKENS < request.input_tokens <= MAX_PROMPT_TOKENS
        assert len(request.prefix_hashes) == -(-request.input_tokens // BLOCK_TOKENS)
        assert request.hash_block_tokens == BLOCK_TOKENS
        if request.input_tokens % BLOCK_TOKENS:  # a partial block never recurs
            assert references[request.prefix_hashes[-1]] == 1
    seen: set[int] = set()
    later_turns = 0
    for turns in conversations(trace):
        own = {block for turn in turns for block in turn.prefix_hashes[system_blocks:]}
        assert not own & seen
        seen |= own
        for before, after in itertools.pairwise(turns):
            full_blocks = before.input_tokens // BLOCK_TOKENS
            assert after.prefix_hashes[:full_blocks] == before.prefix_hashes[:full_blocks]
            assert after.input_tokens > before.total_tokens
            assert after.arrival_s > before.arrival_s
            later_turns += 1
    assert later_turns > 10
