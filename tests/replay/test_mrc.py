"""Strategies and policies on a trace against plain replays, and against a replay with a tier."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.core.prompts import Strategy
from dsv4kv.errors import ConfigError
from dsv4kv.model.presets import load_model
from dsv4kv.replay.mrc import Question, apply_policy, apply_strategy, measure_trace, parse_strategy
from dsv4kv.replay.rules import Outcome
from dsv4kv.traces.paths import PathTable, collect_paths, find_reuse, number_prompts
from dsv4kv.traces.request import Request
from tests.replay import scenes
from tests.replay.texts import BLOCK, Text, conversation, needs_conversation, texts, to_table
from tests.traces.test_paths import found_by_lru

NAMES = ["full", "periodic:8", "periodic:4", "zero", "zero:bounded", "ends", "ends+junctions"]
CAPACITIES = st.one_of(st.none(), st.integers(0, 25))


def parse(name: str, window: int = 2, layers: int = 3) -> Strategy:
    return parse_strategy(name, window_tokens=window, layers=layers)


class PlainCheckpoints:
    """Checkpoints by the text they end; a text's checkpoint goes when its last block is missed."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.kept: set[Text] = set()
        self.ever: set[Text] = set()
        self.written = self.forgotten = 0

    def serve(self, prompt: Text, found: int) -> int:
        places = range(BLOCK, len(prompt) + 1, BLOCK)
        self.kept -= {prompt[:place] for place in places if place > found}
        start = max((p for p in places if p <= found and prompt[:p] in self.kept), default=0)
        once = max((p for p in places if p <= found and prompt[:p] in self.ever), default=0)
        self.forgotten += once - start
        new = {len(prompt) // BLOCK * BLOCK}
        new |= {found} if self.kind == "ends+junctions" else set()
        new = {place for place in new if place > start}
        self.written += len(new)
        self.kept |= {prompt[:place] for place in new}
        self.ever |= {prompt[:place] for place in new}
        return start


@given(texts(), st.sampled_from(["ends", "ends+junctions"]), CAPACITIES)
def test_marks_are_found_where_prompts_left_them_and_go_with_their_blocks(
    prompts: list[Text], name: str, capacity: int | None
) -> None:
    table = to_table(prompts)
    outcome = apply_strategy(parse(name), table, find_reuse(table, BLOCK), capacity)
    found = found_by_lru(prompts, BLOCK, 10**6 if capacity is None else capacity, whole=False)
    plain = PlainCheckpoints(name)
    expected = [
        plain.serve(prompt, min(blocks * BLOCK, len(prompt)) // BLOCK * BLOCK)
        for prompt, blocks in zip(prompts, found, strict=True)
    ]
    assert outcome.resumed_tokens.tolist() == expected
    assert (outcome.checkpoints, outcome.losses["evicted_checkpoint"]) == (
        plain.written,
        plain.forgotten,
    )


@given(texts(), st.sampled_from(NAMES), CAPACITIES)
def test_hits_and_losses_add_up_to_what_a_cache_without_bound_hits(
    prompts: list[Text], name: str, capacity: int | None
) -> None:
    table = to_table(prompts)
    reuse = find_reuse(table, BLOCK)
    outcome = apply_strategy(parse(name), table, reuse, capacity)
    assert outcome.hit_tokens + sum(outcome.losses.values()) == reuse.found_tokens(None).sum()
    assert (outcome.resumed_tokens >= 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_where_a_model_has_no_windows_every_block_found_is_resumed(name: str) -> None:
    table = to_table([tuple(range(14)), tuple(range(14))])
    outcome = apply_strategy(parse(name, window=0), table, find_reuse(table, 4))
    assert outcome.resumed_tokens.tolist() == [0, 12]
    assert outcome.losses["no_checkpoint"] == outcome.losses["replay"] == 0


def test_a_checkpoint_inside_a_partial_last_block_is_never_found_so_it_is_moved_out() -> None:
    prompt = tuple(range(7))  # blocks of ids are 4 tokens: the second is partial
    table = to_table([prompt, (*prompt, 8, 9)])
    reuse = find_reuse(table, 2)
    snapped = apply_strategy(parse("ends"), table, reuse)
    assert snapped.resumed_tokens.tolist() == [0, 4]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("some", r"is not a strategy.*: choose one of full, periodic:TOKENS"),
        ("periodic:-1", "is not a strategy"),
        ("zero:", "is not a strategy"),
        ("periodic:6", "a period of 6 tokens does not fit blocks of 4"),
    ],
)
def test_there_is_no_other_strategy(name: str, said: str) -> None:
    table = to_table([(1, 2, 3, 4, 5)])
    with pytest.raises(ConfigError, match=said):
        apply_strategy(parse(name), table, find_reuse(table, 4))


# Mooncake's conversation trace, compressed cache without bound: not computed, written per token
PUBLISHED = {
    ("full", 43): (0.3734, 1.0),
    ("periodic:512", 43): (0.3734, 0.241),
    ("periodic:1024", 43): (0.3396, 0.123),
    ("periodic:2048", 43): (0.3210, 0.059),
    ("periodic:4096", 43): (0.2912, 0.028),
    ("periodic:8192", 43): (0.2397, 0.012),
    ("zero", 43): (0.2153, 0.0),
    ("zero", 61): (0.1812, 0.0),
    ("zero:bounded", 43): (0.3628, 0.0),
    ("ends", 43): (0.3497, 0.014),
    ("ends+junctions", 43): (0.3586, 0.014),
}


@needs_conversation
@pytest.mark.parametrize(("name", "layers"), PUBLISHED)
def test_the_conversation_trace_resumes_as_published(name: str, layers: int) -> None:
    table, strategy = conversation(), parse(name, window=128, layers=layers)
    outcome = apply_strategy(strategy, table, find_reuse(table, 512))
    found = (round(outcome.hit_share, 4), round(outcome.written_per_new_token, 3))
    assert found == PUBLISHED[name, layers]


def run(name: str, table: PathTable, grain: int, capacity: int) -> Outcome:
    numbered = number_prompts(table, grain, whole_blocks=False)
    return apply_policy(name, table, find_reuse(table, grain), numbered, capacity)


@given(texts(), st.sampled_from([2, 4, 8]), st.integers(0, 20))
def test_least_recently_used_simulated_is_what_the_distances_say(
    prompts: list[Text], grain: int, spare: int
) -> None:
    table = to_table(prompts)
    reuse = find_reuse(table, grain)
    capacity = int(reuse.blocks.max()) + spare
    outcome = run("lru", table, grain, capacity)
    assert outcome.resumed_tokens.tolist() == reuse.found_tokens(capacity).tolist()
    assert outcome.losses["evicted_block"] + outcome.hit_tokens == reuse.found_tokens(None).sum()


def test_a_cache_smaller_than_a_prompt_is_refused() -> None:
    table = to_table([tuple(range(9))])
    with pytest.raises(ConfigError, match="2 blocks is smaller than the longest prompt, 3 blocks"):
        run("lru", table, 4, 2)


MODEL = load_model("v4-flash")
FULL_BLOCK_BYTES = 328_512
"""A block of three layers of Flash with the windows and states that ``full`` keeps beside it."""


def parting(count: int) -> list[Request]:
    """Prompts of whole blocks, each of which ends with a block of its own."""
    return [
        replace(
            each,
            input_tokens=scenes.BLOCK * (1 + len(each.prefix_hashes)),
            output_tokens=1,
            prefix_hashes=(*each.prefix_hashes, -number),
        )
        for number, each in enumerate(scenes.random_requests(5, count, 8), start=1)
    ]


@pytest.mark.parametrize("blocks", [40, 90])
def test_a_replay_with_a_tier_saves_what_the_curve_finds_at_its_size(blocks: int) -> None:
    requests = parting(150)
    question = Question(MODEL, capacities_tokens=(16 * scenes.BLOCK, blocks * scenes.BLOCK))
    answer = measure_trace(collect_paths(requests), question)
    gpu, host, _ = answer.points
    served = scenes.replay(
        requests,
        workload__arrivals="closed",
        workload__concurrency=1,
        prefix__strategy="full",
        cache__num_blocks=16,
        tiers__host__capacity_bytes=blocks * FULL_BLOCK_BYTES,
        tiers__host__read_gbps=10**6,
        tiers__host__write_gbps=10**6,
        tiers__host__latency_us=0,
        tiers__compare=False,
    )
    tally = served.prompts.tally
    assert served.tiers
    assert served.tiers.stored.objects.context_bytes == FULL_BLOCK_BYTES
    assert tally.saved_tokens == round(host.token_hits * answer.input_tokens)
    assert host.token_hits > gpu.token_hits > 0
