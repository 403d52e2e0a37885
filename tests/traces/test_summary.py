"""The summary equals what a slow and obvious count gives."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.errors import TraceError
from dsv4kv.traces.paths import Batch
from dsv4kv.traces.request import IdRuns, Request
from dsv4kv.traces.summary import Histories
from tests.examples import examples
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
def test_hits_are_the_leading_blocks_of_earlier_ones(trace: list[tuple[int, ...]]) -> None:
    hits = 0
    for index, prompt in enumerate(trace):
        cached = {earlier[:end] for earlier in trace[:index] for end in range(1, 6)}
        hits += sum(prompt[: end + 1] in cached for end in range(len(prompt)))
    summary = summarize(Request(0.0, 1, 0, prompt, 1) for prompt in trace)
    assert summary.hit_blocks == hits
    assert summary.block_references == sum(map(len, trace))
    assert summary.distinct_blocks == len({block for prompt in trace for block in prompt})


SMALL = st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=6, unique=True), min_size=1)
BATCHES = st.sampled_from([1, 2, 3, 5, 9, 1000])


def read(prompts: list[list[int]], batch: int, runs: bool = False) -> Histories:
    """The ids of all prompts, in batches of so many runs."""
    histories = Histories(batch)
    for number, ids in enumerate(prompts):
        prompt = IdRuns.of(ids) if runs else tuple(ids)
        histories.add(number, Batch.of([Request(0.0, max(1, len(ids)), 0, prompt, 1)]))
    return histories


@st.composite
def trees(draw: st.DrawFn) -> list[list[int]]:
    """Prompts whose ids form a tree; ids that follow each other often count up."""
    prompts: list[list[int]] = [[]]
    fresh = draw(st.sampled_from([0, -50, 2**62]))
    for _ in range(draw(st.integers(1, 12))):
        before = draw(st.sampled_from(prompts))
        kept = before[: draw(st.integers(0, len(before)))]
        new = []
        for _ in range(draw(st.integers(0, 5))):
            fresh += draw(st.sampled_from([1, 1, 1, 2, 7]))
            new.append(fresh)
        fresh += draw(st.sampled_from([0, 1, 3]))  # the next one may count on, behind another id
        prompts.append(kept + new)
    return prompts


@examples(200)
@given(trees(), BATCHES, st.booleans())
def test_ids_are_counted_in_any_batches(prompts: list[list[int]], batch: int, runs: bool) -> None:
    histories = read(prompts, batch, runs)
    assert histories.check(str) == len({id_ for ids in prompts for id_ in ids})
    assert histories.references == sum(map(len, prompts))


@examples(250)
@given(SMALL, BATCHES)
def test_an_id_of_two_parents_is_refused(prompts: list[list[int]], batch: int) -> None:
    parents: dict[int, set[int | None]] = {}
    for ids in prompts:
        for before, id_ in zip([None, *ids], ids, strict=False):
            parents.setdefault(id_, set()).add(before)
    histories = read(prompts, batch)
    if all(len(those) == 1 for those in parents.values()):
        histories.check(str)
        return
    with pytest.raises(TraceError, match="has another history than at") as caught:
        histories.check(lambda number: f"<{number}")
    there, _, rest = str(caught.value).removeprefix("<").partition(": block id ")
    told = rest.split(" ")[0], rest.split("<")[1].split(":")[0]
    id_, here = map(int, told)
    histories_of = {
        tuple(prompts[number][: prompts[number].index(id_)]) for number in (int(there), here)
    }
    assert len({before[-1:] for before in histories_of}) == 2
