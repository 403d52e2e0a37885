"""Families hold all that prompts share; what is told from a sample covers the whole simulation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.errors import ConfigError
from dsv4kv.mrc import sample as sampling
from dsv4kv.mrc.sample import CLASSES, Simulation, draw_sample, find_families, replay_policy
from dsv4kv.prefix.paths import Ints, PathTable, find_reuse
from dsv4kv.traces.collect import collect_paths
from dsv4kv.traces.request import Request
from tests.examples import FULL
from tests.prefix.traces import Text, conversation, ids_of, needs_conversation, texts, to_table

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


def shared_ids(table: PathTable, requests: Ints) -> set[int]:
    return set[int]().union(*(ids_of(table, request) for request in requests.tolist()))


@given(texts(), st.floats(0, 1))
def test_families_share_nothing_but_the_common_beginnings(
    prompts: list[Text], most: float
) -> None:
    table = to_table(prompts)
    families = find_families(table, most)
    own = [
        shared_ids(table, np.flatnonzero(families.of_request == n)) for n in range(families.count)
    ]
    several = {id_ for n, ids in enumerate(own) for id_ in ids if ids_elsewhere(own, n, id_)}
    assert len(several) <= families.common_ids


def ids_elsewhere(own: list[set[int]], number: int, id_: int) -> bool:
    return any(id_ in ids for other, ids in enumerate(own) if other != number)


def test_a_system_prompt_of_all_is_common_and_families_start_behind_it() -> None:
    table = chats(1, system=7)
    assert find_families(table, 1.0).count == 1
    families = find_families(table, 0.1)
    assert families.common_ids == 7
    assert families.count == 1_500
    assert families.heaviest_share < 0.02


def test_one_long_conversation_is_no_common_beginning() -> None:
    long = [(*range(10_000, 10_000 + 40 * n),) for n in range(1, 20)]
    table = chats(1)
    requests = [Request(0.0, SIZE * len(ids), 1, ids, SIZE) for ids in long]
    requests += [
        Request(1.0, int(table.input_tokens[r]), 1, (*ids,), SIZE)
        for r in range(len(table))
        for ids in [ids_of(table, r)]
    ]
    families = find_families(collect_paths(requests), 0.01)
    assert families.common_ids == 0
    assert families.heaviest_share > 0.1


@given(texts(), st.data())
def test_a_selection_has_the_paths_of_its_requests(
    prompts: list[Text], data: st.DataObject
) -> None:
    table = to_table(prompts)
    chosen = data.draw(st.lists(st.integers(0, len(prompts) - 1), unique=True).map(sorted))
    part = table.select(np.array(chosen, np.int64))
    assert len(part) == len(chosen)
    for at, request in enumerate(chosen):
        assert ids_of(part, at) == ids_of(table, request)
        assert part.path_tokens[at] == table.path_tokens[request]


def test_the_classes_make_the_sample_and_have_no_family_in_common() -> None:
    table = chats(2)
    sample = draw_sample(table, find_reuse(table, SIZE), 0.4)
    parts = [set(part.table.starts.tolist()) for part in sample.classes]
    assert len(parts) == CLASSES
    assert sum(map(len, parts)) == len(set.union(*parts))
    assert set.union(*parts) == set(sample.whole.table.starts.tolist())
    assert sum(part.scale for part in sample.classes) == pytest.approx(sample.whole.scale)
    assert sample.whole.scale == pytest.approx(0.4, abs=0.04)


def test_a_part_has_room_for_all_of_it_where_the_trace_has() -> None:
    table = chats(2, system=60)
    reuse = find_reuse(table, SIZE)
    sample = draw_sample(table, reuse, 0.4)
    for part in (sample.whole, *sample.classes):
        assert sample.scaled(part, reuse.different_blocks) == part.reuse.different_blocks
        assert sample.scaled(part, sample.common_blocks) == 60


def test_least_recently_used_is_known_without_an_error() -> None:
    table = chats(3, system=2)
    reuse = find_reuse(table, SIZE)
    sample = draw_sample(table, reuse, 0.3)
    told = sample.estimate("lru", reuse, table.total_input_tokens, 3_000)
    exact = int(reuse.found_tokens(3_000).sum()) / table.total_input_tokens
    assert told.low == told.hit_share == told.high == pytest.approx(exact)


def covers(table: PathTable, share: float, capacity: int, policies: list[str]) -> list[bool]:
    reuse = find_reuse(table, table.block_tokens)
    sample = draw_sample(table, reuse, share)
    assert not sample.lack(capacity)
    told = []
    for policy in policies:
        hits = sample.estimate(policy, reuse, table.total_input_tokens, capacity)
        assert hits.low <= hits.hit_share <= hits.high
        whole = replay_policy(policy, table, reuse, capacity).hit_share
        told.append(hits.low - 1e-12 <= whole <= hits.high + 1e-12)
    return told


@pytest.mark.parametrize(("system", "capacity"), [(0, 2_500), (6, 3_500)])
def test_the_interval_covers_the_whole_simulation_nine_times_in_ten(
    system: int, capacity: int
) -> None:
    policies = ["lfu", "s3fifo", "belady"]
    trials = [
        covered
        for seed in range(5 if FULL else 2)
        for covered in covers(chats(seed, system=system), 0.25, capacity, policies)
    ]
    assert sum(trials) >= 0.9 * len(trials)


@needs_conversation
def test_the_interval_covers_the_conversation_trace() -> None:
    policies = ["lfu", "s3fifo", "belady"]
    assert covers(conversation(), 0.2, 18_279, policies) == [True] * len(policies)


REFUSED = {
    "family": (chats(4), 0.02, 3_000, "one family of prompts makes .* --sample 0.0"),
    "few": (chats(4, conversations=60), 0.3, 3_000, "holds 18 of 60 families .* 25 are the few"),
    "common": (
        chats(4, system=400),
        0.3,
        3_000,
        "400 blocks are common beginnings .* 10% of a cache of 3,000",
    ),
    "room": (chats(4), 0.3, 300, "300 blocks becomes 1[0-9], fewer than its longest prompt"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_sample_that_would_tell_nothing_is_refused(name: str) -> None:
    table, share, capacity, sentence = REFUSED[name]
    with pytest.raises(ConfigError, match=sentence):
        Simulation(table, find_reuse(table, SIZE), ("lfu",), share, [5_000, capacity])


@pytest.mark.parametrize("share", [0.0, -0.1, 1.5])
def test_a_share_is_above_nothing_and_at_most_everything(share: float) -> None:
    table = chats(5, conversations=20)
    with pytest.raises(ConfigError, match="give a share above 0, at most 1"):
        Simulation(table, find_reuse(table, SIZE), ("lfu",), share, [1_000])


def simulate(table: PathTable, share: float | None, capacity: int = 3_000) -> Simulation:
    return Simulation(table, find_reuse(table, SIZE), ("lfu", "arc"), share, [capacity])


def test_a_short_trace_is_simulated_whole_unless_a_sample_is_asked_for() -> None:
    table = chats(6)
    whole, asked = simulate(table, None), simulate(table, 0.3)
    assert (whole.sampling.share, whole.estimates(3_000)) == (1.0, ())
    assert [o.name for o in whole.outcomes(3_000)] == ["lfu", "arc"]
    assert (asked.sampling.share, asked.outcomes(3_000)) == (0.3, ())
    assert [e.name for e in asked.estimates(3_000)] == ["lfu", "arc"]
    assert whole.outcomes(None) == ()
    assert asked.estimates(None) == ()
    assert not whole.sampling.automatic


def test_a_long_simulation_draws_the_sample_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    table = chats(6)
    work = table.references * 2
    monkeypatch.setattr(sampling, "LONG_REFERENCES", work // 2)
    drawn = simulate(table, None).sampling
    assert drawn.automatic
    assert drawn.share == pytest.approx(0.25, abs=0.001)
    assert simulate(table, 1.0).sampling.share == 1.0


def test_a_long_simulation_that_cannot_be_sampled_is_whole_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sampling, "LONG_REFERENCES", 1)
    refused = simulate(chats(6, conversations=60), None)
    assert refused.sampling.automatic
    assert refused.sampling.share == 1
    assert "holds 3 of 60 families" in refused.sampling.refused
    assert len(refused.outcomes(3_000)) == 2


def test_only_capacities_that_no_sample_tells_are_simulated_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = chats(6)
    monkeypatch.setattr(sampling, "LONG_REFERENCES", table.references)
    both = Simulation(table, find_reuse(table, SIZE), ("lfu",), None, [300, 3_000])
    assert [o.name for o in both.outcomes(300)] == ["lfu"]
    assert (both.estimates(300), both.outcomes(3_000)) == ((), ())
    assert [e.name for e in both.estimates(3_000)] == ["lfu"]
    assert "a cache of 300 blocks becomes" in both.sampling.refused
