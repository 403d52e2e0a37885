"""One request at a time and none of its output, a replay hits what ``trace mrc --rule`` hits."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.budget.gpus import load_gpu
from dsv4kv.core.outcome import SeenIds
from dsv4kv.engines.names import RULES
from dsv4kv.engines.rule import SPECULATIONS
from dsv4kv.model.presets import load_model
from dsv4kv.replay.build import Replay
from dsv4kv.replay.rules import Outcome, Pool, run_rule
from dsv4kv.traces.paths import collect_paths
from dsv4kv.traces.request import IdRuns, Request, list_runs
from tests.examples import examples
from tests.replay import scenes
from tests.replay.scenes import random_requests
from tests.replay.texts import Text, to_requests

ENGINES = [name for name, rule in RULES.items() if rule.engine and "v4" in rule.kinds]
MODEL = load_model("v4-flash")
BLOCK = 128
LETTER = BLOCK // 2  # tokens
CHUNK = 2 * BLOCK
# prompts of ten blocks; with windows and states of a chunk, or a tenth as many pages of windows
SMALLEST = {"vllm": 10, "vllm-ascend": 10, "sglang": 10, "vllm-v4": 200, "sglang-v4": 100,
            "llama.cpp": 30, "ds4": 30}  # fmt: skip
SLOTS = 3


def replay_alone(requests: list[Request], rule: str, blocks: int, **chosen: Any) -> Replay:
    """Serve requests one after the other, without decoding, in as many blocks as asked."""
    return scenes.replay(
        requests,
        prefix__rule=rule,
        cache__num_blocks=blocks,
        workload__arrivals="closed",
        workload__concurrency=1,
        workload__max_output_tokens=1,
        **chosen,
    )


def analyse(
    requests: list[Request],
    rule: str,
    blocks: int,
    size: int,
    chunk: int,
    speculation: str = "none",
) -> Outcome:
    """The same by ``trace mrc``."""
    drafts = SPECULATIONS[speculation]
    pool = Pool(collect_paths(requests), blocks * size, size, MODEL, chunk, drafts, slots=SLOTS)
    return run_rule(rule, pool)


def assert_same(made: Replay, expected: Outcome) -> None:
    tally = made.prompts.tally
    assert not made.outcome.rejected
    assert tally.saved_tokens == expected.hit_tokens
    assert tally.lost == expected.losses
    assert tally.seen_tokens == expected.hit_tokens + sum(expected.losses.values())
    assert tally.in_flight_tokens == 0
    ledger = made.scheduler.cache
    assert (ledger.private, ledger.shared) == (0, 0)


@pytest.mark.parametrize(
    ("rule", "gpu", "blocks", "lost"),
    [
        ("vllm-v41", "b200", 150, "replay"),
        ("vllm-v41", "h200", 300, "replay"),
        ("sglang-v41", "b200", 120, "last_token"),
        ("sglang-v41:encoder", "b200", 30, "replay"),
    ],
)
def test_v41_computes_windows_again_in_a_replay_as_in_an_analysis(
    rule: str, gpu: str, blocks: int, lost: str
) -> None:
    drawn = random_requests(1, 80, 20, [1], block=LETTER)
    whole = ((n, len(each.prefix_hashes) * LETTER, each) for n, each in enumerate(drawn))
    requests = [replace(each, arrival_s=float(n), input_tokens=size) for n, size, each in whole]
    chunk, chosen = 4 * BLOCK, {"model__preset": "v4.1-flash", "scheduler__step_tokens": 4 * BLOCK}
    made = replay_alone(requests, rule, blocks, cost__gpu=gpu, **chosen)
    arch = load_gpu(gpu).arch
    size = RULES[rule].block_tokens_on(arch) or 0
    pool = Pool(
        collect_paths(requests), blocks * size, size, load_model("v4.1-flash"), chunk, arch=arch
    )
    expected = run_rule(rule, pool)
    assert_same(made, expected)
    evicted = expected.losses["evicted_block"] + expected.losses["evicted_checkpoint"]
    assert expected.losses[lost] > 0 < evicted


def lengthen(requests: list[Request]) -> list[Request]:
    """Letters become half a block."""
    return [
        Request(
            each.arrival_s,
            each.input_tokens * LETTER,
            1,
            each.prefix_hashes,
            each.hash_block_tokens * LETTER,
        )
        for each in requests
    ]


@st.composite
def draw_prompts(draw: st.DrawFn, letters: int = 1) -> list[Text]:
    """Prompts of up to 20 letters, whole multiples; each begins with a part of an earlier one."""
    prompts: list[Text] = []
    for number in range(draw(st.integers(1, 14))):
        base: Text = draw(st.sampled_from([(), *prompts]))
        kept = base[: draw(st.integers(0, min(len(base), 20 - letters) // letters)) * letters]
        own = draw(st.integers(1, (20 - len(kept)) // letters)) * letters
        again = draw(st.booleans()) and letters == 1 and bool(base)
        fresh = tuple(1000 * (number + 1) + place for place in range(own))
        prompts.append(base if again else (*kept, *fresh))
    return prompts


@examples(200)
@given(
    draw_prompts(),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(ENGINES),
    st.sampled_from([0, 3, 20, 100, 10_000]),
    st.sampled_from([16, 100, 5000]),
)
def test_a_replay_hits_and_loses_what_the_rule_does_on_the_trace_alone(
    prompts: list[Text], id_letters: int, rule: str, spare: int, step: int
) -> None:
    requests = lengthen(to_requests(prompts, id_letters))
    any_step = RULES[rule].policy.index != "slots" and "v4" not in rule
    step = step if any_step else CHUNK  # without windows however a prompt is cut
    blocks = SMALLEST[rule.partition(":")[0]] + spare
    chosen = {"cache__block_tokens": BLOCK, "scheduler__step_tokens": step}
    made = replay_alone(requests, rule, blocks, scheduler__max_requests=SLOTS, **chosen)
    assert_same(made, analyse(requests, rule, blocks, BLOCK, CHUNK))


# trace mrc's ideal rule also keeps and finds the partial last block of a prompt and lets a hit
# cover the last token; the serving loop computes both, and names them as losses.


@examples(100)
@given(draw_prompts(), st.sampled_from([1, 2, 4]))
def test_without_bound_ideal_saves_all_but_partial_blocks_and_last_tokens(
    prompts: list[Text], id_letters: int
) -> None:
    requests = lengthen(to_requests(prompts, id_letters))
    made = replay_alone(requests, "ideal", 10_000, prefix__strategy="full")
    tally = made.prompts.tally
    computed = tally.lost["alignment"] + tally.lost["last_token"]
    expected = analyse(requests, "ideal", 10_000, id_letters * LETTER, CHUNK)
    assert tally.saved_tokens + computed == expected.hit_tokens == tally.seen_tokens


def random_chains(seed: int, count: int) -> list[list[int]]:
    """Chains that part from others anywhere; an id always follows the same one."""
    draw = random.Random(seed)
    chains: list[list[int]] = []
    fresh = draw.choice([0, 2**63 - 2_000, 2**63])  # ids of 64 bits wrap around
    for _ in range(count):
        before = draw.choice([[], *chains])
        chain = before[: draw.randint(0, len(before))]
        for _ in range(draw.randint(0, 4)):
            fresh += draw.randint(1, 3)
            length = draw.randint(1, 6)
            chain = [*chain, *range(fresh, fresh + length)]
            fresh += length
        chains.append(chain)
    return chains


@given(st.integers(0, 2**20), st.integers(1, 30), st.integers(1, 4))
def test_what_was_seen_is_what_a_set_of_tokens_has(seed: int, count: int, size: int) -> None:
    seen, plain, draw = SeenIds(), set[tuple[int, int]](), random.Random(seed)
    for number, chain in enumerate(random_chains(seed, count)):
        runs = chain and max(chain) < 2**63 and number % 2
        tokens = len(chain) * size - (draw.randrange(size) if chain else 0)
        had = [(chain[token // size], token % size) for token in range(tokens)]
        known = seen.add(*list_runs(IdRuns.of(chain) if runs else chain), size, tokens)
        assert known == sum(one in plain for one in had)
        plain.update(had)
