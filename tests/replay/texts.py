"""Small traces as trees of words, the same as path tables, and the published one."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from hypothesis import strategies as st

from dsv4kv.traces import load_paths
from dsv4kv.traces.paths import PathTable, collect_paths
from dsv4kv.traces.request import Request

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
CONVERSATION = DATA / "mooncake" / "conversation_trace.jsonl"
needs_conversation = pytest.mark.skipif(
    not CONVERSATION.exists(), reason="Mooncake's conversation trace is not on this machine"
)
BLOCK = 4  # tokens of an id in small traces

Text = tuple[int, ...]


@cache
def conversation() -> PathTable:
    return load_paths(CONVERSATION)


def texts(most_tokens: int = 40) -> st.SearchStrategy[list[Text]]:
    """Prompts as tokens: each begins with a part of an earlier one, and goes on in its own way."""

    @st.composite
    def draw_texts(draw: st.DrawFn) -> list[Text]:
        prompts: list[Text] = []
        for number in range(draw(st.integers(1, 14))):
            base: Text = draw(st.sampled_from([(), *prompts]))
            kept = base[: draw(st.integers(0, len(base)))]
            room = most_tokens - len(kept)
            low = 0 if kept else 1
            own = draw(st.integers(low, max(low, room)))
            prompts.append((*kept, *(1000 * (number + 1) + i for i in range(own))))
        return prompts

    return draw_texts()


def to_requests(prompts: Sequence[Text], block_tokens: int = BLOCK) -> list[Request]:
    """Ids of blocks, the last perhaps partial: equal tokens and history, equal id."""
    ids: dict[Text, int] = {}
    requests = []
    for number, prompt in enumerate(prompts):
        ends = [*range(block_tokens, len(prompt), block_tokens), len(prompt)]
        names = tuple(ids.setdefault(prompt[:end], len(ids)) for end in ends)
        requests.append(Request(float(number), len(prompt), 1, names, block_tokens))
    return requests


def to_table(prompts: Sequence[Text], block_tokens: int = BLOCK) -> PathTable:
    return collect_paths(to_requests(prompts, block_tokens))


def visible_blocks(prompt: Text, grain: int, block_tokens: int, *, whole: bool) -> list[Text]:
    """Blocks of a prompt by what stands for them: history as far as ids can tell.

    Ids do not tell tokens inside a block apart: a block finer than an id is known by the whole id.
    """
    blocks = []
    for begin in range(0, len(prompt), grain):
        end = begin + grain
        if end > len(prompt):
            if whole:
                break
            blocks.append((*prompt, -1))
            continue
        known = -(-end // block_tokens) * block_tokens
        blocks.append((*prompt[:known], -2 - end % block_tokens))
    return blocks


def ids_of(table: PathTable, request: int) -> list[int]:
    """The ids of a request."""
    low, high = table.offsets[request], table.offsets[request + 1]
    begins = [0, *table.ends[low:high].tolist()]
    return [
        start + place
        for run, start in enumerate(table.starts[low:high].tolist())
        for place in range(begins[run + 1] - begins[run])
    ]
