"""What is kept of a trace is a trace, and its intervals hold what the whole tells."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from dsv4kv.budget.scenario import find_model
from dsv4kv.cli import app
from dsv4kv.errors import ConfigError, TraceError
from dsv4kv.replay.mrc import Question, measure_trace
from dsv4kv.replay.thin import PARTS, RUN_BYTES, Kept, _choice, measure_stream, thin
from dsv4kv.traces import read_trace, write_trace
from dsv4kv.traces.paths import Batch, collect_paths
from dsv4kv.traces.request import Request
from dsv4kv.traces.summary import check_histories
from tests.examples import FULL
from tests.replay import texts as te

MODEL = find_model("v4-flash")

SIZE = 16  # tokens of a block in made traces


def chats(seed: int, conversations: int = 1_500, system: int = 0) -> list[Request]:
    """Conversations of a few turns over the same system prompt of ``system`` blocks."""
    random = np.random.default_rng(seed)
    turns: list[tuple[float, tuple[int, ...]]] = []
    fresh = system
    for start in random.uniform(0, 1000, conversations):
        ids, time = tuple(range(system)), float(start)
        for _ in range(min(6, random.geometric(0.35))):
            more = min(20, int(random.geometric(0.15)))
            ids += tuple(range(fresh, fresh + more))
            fresh += more
            turns.append((time, ids))
            time += float(random.exponential(25))
    return [Request(t, SIZE * len(ids), 1, ids, SIZE) for t, ids in sorted(turns)]


def some_at_a_time(requests: list[Request], count: int) -> Iterator[Batch]:
    for first in range(0, len(requests), count):
        yield Batch.of(requests[first : first + count])


def paths_of(kept: Kept) -> list[list[int]]:
    """The numbers of every request."""
    paths: list[list[int]] = [[] for _ in kept.lack]
    rows = zip(kept.request.tolist(), kept.start.tolist(), kept.count.tolist(), strict=True)
    for request, start, count in rows:
        paths[request].extend(range(start, start + count))
    return paths


def chosen(path: list[int], level: int, side: int) -> list[int]:
    """One id after the other."""
    pairs = np.array(path, np.int64) >> 1
    which = _choice(pairs, level, side).tolist()
    return [
        pair for id_, pair, one in zip(path, pairs.tolist(), which, strict=True) if id_ & 1 == one
    ]


@given(te.texts(), st.integers(0, 70), st.sampled_from([0, 1]), st.sampled_from([0, -5, 2**62]))
def test_of_every_two_neighbours_one_is_kept(
    prompts: list[te.Text], level: int, side: int, base: int
) -> None:
    all_of_it = Kept.all_of(Batch.of(te.to_requests(prompts)))
    all_of_it = Kept(all_of_it.request, all_of_it.start + base, all_of_it.count, all_of_it.lack)
    wanted = [chosen(path, level, side) for path in paths_of(all_of_it)]
    halved = all_of_it.halved(level, side)
    assert paths_of(halved) == [path for path in wanted if path]
    check_histories(halved.table(te.BLOCK), str)
    other = all_of_it.halved(level, 1 - side)
    assert halved.count.sum() + other.count.sum() == all_of_it.count.sum()
    assert halved.lack.sum() + other.lack.sum() == all_of_it.lack.sum()


@given(te.texts())
def test_all_that_is_kept_is_the_trace(prompts: list[te.Text]) -> None:
    kept = Kept.all_of(Batch.of(te.to_requests(prompts))).table(te.BLOCK)
    table = te.to_table(prompts)
    some = table.select(np.flatnonzero(table.counts))
    for mine, theirs in ((kept.starts, some.starts), (kept.ends, some.ends)):
        assert mine.tolist() == theirs.tolist()
    assert kept.path_tokens.tolist() == some.path_tokens.tolist()


def test_what_is_kept_fits_and_does_not_depend_on_how_it_is_read() -> None:
    trace = chats(1)
    kept = [thin(some_at_a_time(trace, count), 900) for count in (7, 200, 10_000)]
    assert len({level for _, _, level in kept}) == 1
    assert all(len(each.start) <= 900 for _, each, _ in kept)
    assert [paths_of(each) for _, each, _ in kept[1:]] == [paths_of(kept[0][1])] * 2
    assert kept[0][0] == kept[2][0]
    assert kept[0][0].references == sum(len(each.prefix_hashes) for each in trace)


def test_a_trace_that_fits_is_measured_exactly() -> None:
    trace = chats(2, 200)
    question = Question(MODEL, capacities_tokens=(SIZE * 400, SIZE * 1000))
    found = measure_stream(some_at_a_time(trace, 50), question, 2**30)
    whole = measure_trace(collect_paths(trace), question)
    assert found.kept_share == 1
    assert found.enough_tokens == whole.enough_tokens
    for one, other in zip(found.points, whole.points, strict=True):
        assert one.token_hits == pytest.approx(other.token_hits)
        assert one.block_hits == pytest.approx(other.block_hits)
        assert one.token_error == 0


def covered(trace: list[Request], runs: int, blocks: tuple[int, ...]) -> list[bool]:
    """Whether the intervals hold what the whole trace gives, by capacity."""
    sizes = tuple(count * trace[0].hash_block_tokens for count in blocks)
    question = Question(MODEL, capacities_tokens=sizes)
    told = measure_stream(some_at_a_time(trace, 97), question, runs * RUN_BYTES)
    whole = measure_trace(collect_paths(trace), question)
    assert told.kept_share < 1
    return [
        abs(one.token_hits - other.token_hits) <= one.token_error
        for one, other in zip(told.points, whole.points, strict=True)
    ]


def test_nine_intervals_in_ten_hold_what_the_whole_trace_gives() -> None:
    seeds = range(40 if FULL else 8)
    found = [covered(chats(s, system=s % 9), 1_500, (400, 1_500, 5_000, 15_000)) for s in seeds]
    assert np.mean(found) >= 0.9


@te.needs_conversation
@pytest.mark.parametrize("runs", [20_000, 4_000])
def test_intervals_hold_the_exact_curve_of_the_conversation_trace(runs: int) -> None:
    assert all(
        covered(list(read_trace(te.CONVERSATION)), runs, (1_000, 3_656, 9_140, 18_279, 50_000))
    )


def test_more_memory_gives_smaller_errors() -> None:
    trace, question = chats(5, 6_000), Question(MODEL, capacities_tokens=(SIZE * 3_000,))
    errors = [
        measure_stream(some_at_a_time(trace, 97), question, runs * RUN_BYTES).points[0].token_error
        for runs in (1_000, 16_000)
    ]
    assert errors[1] < errors[0] / 2


def answer(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["trace", "mrc", *words])
    return result.exit_code, " ".join(result.output.split())


def test_the_command_tells_estimates_with_their_intervals(tmp_path: Path) -> None:
    path, trace = tmp_path / "a.jsonl", list[Request]()
    for first, each in zip(range(0, 10**9, 10**5), chats(3), strict=False):
        ids = tuple(range(first, first + len(each.prefix_hashes)))
        trace.append(replace(each, prefix_hashes=ids))
    write_trace(trace, path)
    code, told = answer(str(path), "--memory", "1MB")
    assert code == 0
    assert "estimated from 0.031 of all blocks" in told
    assert "With unlimited memory, <8 % of prompt tokens hit." in told  # none does
    document = json.loads(answer(str(path), "--memory", "1MB", "--json")[1])
    assert document["kept_share"] < 1
    assert document["block_references"] == sum(len(each.prefix_hashes) for each in trace)
    for row in document["rows"]:
        assert row["hit_share_low"] <= row["hit_share"] <= row["hit_share_high"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--rule", "vllm"), "--rule needs whole prompts"),
        (("--strategy", "ends"), "--strategy needs whole prompts"),
        (("--capacity", "512"), "is smaller than the longest prompt"),
    ],
)
def test_what_some_blocks_cannot_tell_is_refused(words: tuple[str, str], sentence: str) -> None:
    code, told = answer("builtin:chat", "--memory", "1GiB", *words)
    assert code == 2
    assert sentence in told


def test_no_memory_and_no_ids_are_sentences() -> None:
    question = Question(MODEL)
    with pytest.raises(ConfigError, match="holds nothing of a trace"):
        measure_stream([], question, PARTS * RUN_BYTES - 1)
    with pytest.raises(TraceError, match="no request has block ids"):
        measure_stream([], question, 2**20)
