"""What is kept of a trace is a trace, and its intervals hold what the whole tells."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from dsv4kv.budget.lookup import find_model
from dsv4kv.cli import app
from dsv4kv.errors import ConfigError, TraceError
from dsv4kv.prefix.paths import PathTable
from dsv4kv.replay.mrc.curves import Question, measure_trace
from dsv4kv.replay.mrc.thin import PARTS, RUN_BYTES, Kept, _choice, measure_stream, thin
from dsv4kv.traces import read_batches, write_trace
from dsv4kv.traces.collect import check_histories, collect_paths, load_paths, tables_of
from dsv4kv.traces.request import Request
from tests.examples import FULL
from tests.prefix.traces import CONVERSATION, Text, needs_conversation, texts, to_table

MODEL = find_model("v4-flash")

SIZE = 16  # tokens of a block in made traces


def chats(seed: int, conversations: int = 1_500, system: int = 0) -> PathTable:
    """Conversations of a few turns over the same system prompt of ``system`` blocks."""
    random = np.random.default_rng(seed)
    told: list[tuple[float, tuple[int, ...]]] = []
    fresh = system
    for start in random.uniform(0, 1000, conversations):
        ids, time = tuple(range(system)), float(start)
        for _ in range(min(6, random.geometric(0.35))):
            more = min(20, int(random.geometric(0.15)))
            ids += tuple(range(fresh, fresh + more))
            fresh += more
            told.append((time, ids))
            time += float(random.exponential(25))
    told.sort()
    return collect_paths(Request(t, SIZE * len(ids), 1, ids, SIZE) for t, ids in told)


def some_at_a_time(table: PathTable, count: int) -> Iterator[PathTable]:
    for first in range(0, len(table), count):
        yield table.select(np.arange(first, min(first + count, len(table))))


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


@given(texts(), st.integers(0, 70), st.sampled_from([0, 1]), st.sampled_from([0, -5, 2**62]))
def test_of_every_two_neighbours_one_is_kept(
    prompts: list[Text], level: int, side: int, base: int
) -> None:
    table = to_table(prompts)
    all_of_it = Kept.all_of(table)
    all_of_it = Kept(all_of_it.request, all_of_it.start + base, all_of_it.count, all_of_it.lack)
    wanted = [chosen(path, level, side) for path in paths_of(all_of_it)]
    halved = all_of_it.halved(level, side)
    assert paths_of(halved) == [path for path in wanted if path]
    check_histories(halved.table(table.block_tokens), str)
    other = all_of_it.halved(level, 1 - side)
    assert halved.count.sum() + other.count.sum() == all_of_it.count.sum()
    assert halved.lack.sum() + other.lack.sum() == all_of_it.lack.sum()


@given(texts())
def test_all_that_is_kept_is_the_trace(prompts: list[Text]) -> None:
    table = to_table(prompts)
    kept = Kept.all_of(table).table(table.block_tokens)
    some = table.select(np.flatnonzero(table.counts))
    for mine, theirs in ((kept.starts, some.starts), (kept.ends, some.ends)):
        assert mine.tolist() == theirs.tolist()
    assert kept.path_tokens.tolist() == some.path_tokens.tolist()


def test_what_is_kept_fits_and_does_not_depend_on_how_it_is_read() -> None:
    table = chats(1)
    kept = [thin(some_at_a_time(table, count), 900) for count in (7, 200, 10_000)]
    assert len({level for _, _, level in kept}) == 1
    assert all(len(each.start) <= 900 for _, each, _ in kept)
    assert [paths_of(each) for _, each, _ in kept[1:]] == [paths_of(kept[0][1])] * 2
    assert kept[0][0] == kept[2][0]
    assert kept[0][0].references == table.references


def test_a_trace_that_fits_is_told_exactly() -> None:
    table = chats(2, 200)
    question = Question(MODEL, capacities_tokens=(SIZE * 400, SIZE * 1000))
    told = measure_stream(some_at_a_time(table, 50), question, 2**30)
    whole = measure_trace(table, question)
    assert told.kept_share == 1
    assert told.enough_tokens == whole.enough_tokens
    for one, other in zip(told.points, whole.points, strict=True):
        assert one.token_hits == pytest.approx(other.token_hits)
        assert one.block_hits == pytest.approx(other.block_hits)
        assert one.token_error == 0


def covered(table: PathTable, runs: int, blocks: tuple[int, ...]) -> list[bool]:
    """Whether the intervals hold what the whole trace gives, by capacity."""
    sizes = tuple(count * table.block_tokens for count in blocks)
    question = Question(MODEL, capacities_tokens=sizes)
    told = measure_stream(some_at_a_time(table, 97), question, runs * RUN_BYTES)
    whole = measure_trace(table, question)
    assert told.kept_share < 1
    return [
        abs(one.token_hits - other.token_hits) <= one.token_error
        and abs(one.block_hits - other.block_hits) <= one.block_error
        for one, other in zip(told.points, whole.points, strict=True)
    ]


def test_nine_intervals_in_ten_hold_what_the_whole_trace_gives() -> None:
    seeds = range(40 if FULL else 8)
    found = [covered(chats(s, system=s % 9), 1_500, (400, 1_500, 5_000, 15_000)) for s in seeds]
    assert np.mean(found) >= 0.9


@needs_conversation
@pytest.mark.parametrize("runs", [20_000, 4_000])
def test_intervals_hold_the_exact_curve_of_the_conversation_trace(runs: int) -> None:
    assert all(covered(load_paths(CONVERSATION), runs, (1_000, 3_656, 9_140, 18_279, 50_000)))


def test_more_memory_gives_smaller_errors() -> None:
    table, question = chats(5, 6_000), Question(MODEL, capacities_tokens=(SIZE * 3_000,))
    errors = [
        measure_stream([table], question, runs * RUN_BYTES).points[0].token_error
        for runs in (1_000, 16_000)
    ]
    assert errors[1] < errors[0] / 2


def answer(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["trace", "mrc", *words])
    return result.exit_code, " ".join(result.output.split())


def test_the_command_tells_estimates_with_their_intervals(tmp_path: Path) -> None:
    path, table = tmp_path / "a.jsonl", chats(3)
    requests = (
        Request(float(t), int(n), 1, tuple(range(s, s + n // SIZE)), SIZE)
        for t, n, s in zip(
            table.arrival_s, table.input_tokens, range(0, 10**9, 10**5), strict=False
        )
    )
    write_trace(requests, path)
    code, told = answer(str(path), "--memory", "1MB")
    assert code == 0
    assert "estimated from 0.031 of all blocks" in told
    first, error = re.findall(r"(\d\.\d+) ± (\d\.\d+)", told)[0]
    assert len(first) == len(error)
    assert len(error.removeprefix("0.").lstrip("0")) <= 2
    document = json.loads(answer(str(path), "--memory", "1MB", "--json")[1])
    assert document["kept_share"] < 1
    assert document["block_references"] == table.references
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
        measure_stream([chats(1, 3)], question, PARTS * RUN_BYTES - 1)
    with pytest.raises(TraceError, match="no request has block ids"):
        measure_stream([], question, 2**20)


def test_tables_of_batches_are_the_table_of_the_trace() -> None:
    tables = list(tables_of(read_batches("builtin:chat")))
    whole = load_paths("builtin:chat")
    assert sum(map(len, tables)) == len(whole)
    first = tables[0]
    for name in ("counts", "starts", "ends", "path_tokens"):
        found = getattr(first, name).tolist()
        assert found == getattr(whole, name).tolist()[: len(found)]
