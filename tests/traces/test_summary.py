"""The summary equals what a slow and obvious count gives."""

import math

from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.traces.request import Request
from tests.traces.scenes import summarize

LENGTHS = st.lists(st.integers(1, 2**31 - 1), min_size=1, max_size=200)


def nearest_rank(lengths: list[int], percent: int) -> int:
    return sorted(lengths)[math.ceil(percent * len(lengths) / 100) - 1]


@given(LENGTHS)
def test_percentiles_are_lengths_of_the_nearest_rank(lengths: list[int]) -> None:
    summary = summarize(Request(0.0, length, 0) for length in lengths).input_tokens
    assert (summary.p50, summary.p90, summary.p99) == tuple(
        nearest_rank(lengths, percent) for percent in (50, 90, 99)
    )
    assert (summary.total, summary.max) == (sum(lengths), max(lengths))


def prompts() -> st.SearchStrategy[list[tuple[int, ...]]]:
    """Few distinct prefixes, so that many return; an id stands for a block and its history."""
    words = st.lists(st.text("ab", min_size=0, max_size=5), min_size=1, max_size=30)
    return words.map(
        lambda texts: [
            tuple(hash(text[:end]) for end in range(1, len(text) + 1)) for text in texts
        ]
    )


@given(prompts())
def test_hits_are_the_leading_blocks_some_earlier_prompt_began_with(
    trace: list[tuple[int, ...]],
) -> None:
    hits = 0
    for index, prompt in enumerate(trace):
        cached = {earlier[:end] for earlier in trace[:index] for end in range(1, 6)}
        hits += sum(prompt[: end + 1] in cached for end in range(len(prompt)))
    summary = summarize(Request(0.0, 1, 0, prompt, 1) for prompt in trace)
    assert summary.hit_blocks == hits
    assert summary.block_references == sum(map(len, trace))
    assert summary.distinct_blocks == len({block for prompt in trace for block in prompt})
