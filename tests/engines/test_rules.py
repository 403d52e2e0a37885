"""The engines' rules on prompts whose hits are known, and on the conversation trace."""

import os
from functools import cache

import numpy as np
import pytest

from dsv4kv.engines.names import RULES
from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.presets import load_model
from dsv4kv.replay.rules import Outcome, Pool, rule_of, run_rule
from dsv4kv.traces.paths import PathTable, collect_paths, find_reuse
from dsv4kv.traces.request import Request
from tests.replay.texts import conversation, needs_conversation, to_table

MODEL = load_model("v4-flash")


def to_requests_of(lengths: list[int]) -> PathTable:
    """Prompts of so many tokens of one text, in ids of 256 tokens."""
    return collect_paths(
        [Request(float(n), t, 1, tuple(range(-(-t // 256))), 256) for n, t in enumerate(lengths)]
    )


def model_of(rule: str) -> DSV4Config:
    """A model of the rule's generation."""
    return MODEL if "v4" in RULES[rule].kinds else load_model("v4.1-flash")


@pytest.mark.parametrize(
    ("rule", "model"), [("vllm-v4:dense", "v4.1-flash"), ("vllm-v41", "v4-flash"),
                        ("sglang-v4:tail", "v3.2")]
)  # fmt: skip
def test_a_rule_of_another_generation_is_refused_with_those_that_fit(
    rule: str, model: str
) -> None:
    pool = Pool(to_requests_of([600, 700]), 10_000, 256, load_model(model))
    with pytest.raises(ConfigError, match=f"{rule} is not one of {model}: take ideal, vllm, sg"):
        run_rule(rule, pool)


@pytest.mark.parametrize(
    ("arch", "block_tokens", "windows", "hits"),
    [(None, 128, 5, [0, 512 - 128]), ("sm_100", 128, 5, [0, 384]), ("sm_90", 64, 7, [0, 448])],
)
def test_vllms_blocks_of_v41_are_those_of_the_gpu(
    arch: str | None, block_tokens: int, windows: int, hits: list[int]
) -> None:
    """vllm#56871: seven groups of windows on Hopper, whose blocks have 64 tokens."""
    assert RULES["vllm-v41"].block_tokens_on(arch) == block_tokens
    prompts = [tuple(range(700)), (*range(600), *range(-100, 0))]
    model = load_model("v4.1-flash")
    pool = Pool(to_table(prompts), 100_000, block_tokens, model, arch=arch)
    groups = [
        (group.block_tokens, group.needed)
        for group in rule_of(RULES["vllm-v41"], pool).layout.groups
    ]
    assert groups[1:-1] == [(32, 4)] * windows
    assert run_rule("vllm-v41", pool).resumed_tokens.tolist() == hits


# ds4 and vllm-ascend do not hit so soon
@pytest.mark.parametrize("name", sorted(RULES.keys() - {"ds4", "vllm-ascend"}))
def test_prompts_of_which_only_the_length_is_known_share_nothing(name: str) -> None:
    known = tuple(range(3))
    table = collect_paths(
        [Request(float(n), 700, 1, ids, 256) for n, ids in enumerate([known, (), known, ()])]
    )
    outcome = run_rule(name, Pool(table, 100_000, 256, model_of(name), chunk_tokens=256))
    assert outcome.resumed_tokens[[0, 1, 3]].tolist() == [0, 0, 0]
    assert outcome.resumed_tokens[2] > 0


@pytest.mark.parametrize("name", RULES)
def test_a_prompt_longer_than_the_pool_is_rejected_and_the_rest_served_as_without_it(
    name: str,
) -> None:
    table = to_requests_of([700, 90_000, 700])
    model = model_of(name)
    outcome = run_rule(name, Pool(table, 80_000, 256, model))
    served = run_rule(name, Pool(table.select(np.array([0, 2])), 80_000, 256, model))
    assert outcome.rejected == 1
    assert outcome.resumed_tokens.tolist() == [0, 0, served.hit_tokens]
    assert outcome.losses == served.losses
    assert outcome.input_tokens == 91_400


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.windows])
def test_a_prompt_whose_windows_find_no_room_beside_its_blocks_is_rejected(name: str) -> None:
    table = to_requests_of([700, 80_000, 700])
    outcome = run_rule(name, Pool(table, 80_128, 256, model_of(name)))
    assert outcome.rejected == 1
    assert outcome.resumed_tokens.tolist() == [0, 0, 512]


@cache
def found_once() -> int:
    """Tokens that a cache without bound hits."""
    return int(find_reuse(conversation(), 512).found_tokens(None).sum())


@cache
def serve(name: str, tokens: int, grain: int) -> Outcome:
    """Serve the conversation trace; hits and losses add up to what a cache without bound hits."""
    outcome = run_rule(name, Pool(conversation(), tokens, grain, MODEL))
    assert outcome.hit_tokens + sum(outcome.losses.values()) == found_once()
    assert min(outcome.losses.values()) >= 0
    return outcome


PUBLISHED = [
    ("ideal", 9_358_848, 64, 41_646_761),
    ("vllm", 9_358_848, 64, 41_738_432),
    ("sglang", 9_358_848, 64, 41_257_920),
    ("ideal", 9_358_848, 256, 41_400_489),
    ("vllm", 9_358_848, 256, 41_811_968),
    ("sglang", 9_358_848, 256, 41_491_200),
    ("ideal", 50_000_000, 64, 0.37085),
    ("vllm", 50_000_000, 64, 0.37082),
    ("sglang", 50_000_000, 64, 0.37081),
    ("ideal", 10**9, 256, 0.37362),
    ("vllm", 10**9, 256, 0.37351),
    ("sglang", 10**9, 256, 0.37351),
]
"""Tokens that the engines' own code hits of Mooncake's conversation trace, or their share."""


@needs_conversation
@pytest.mark.parametrize(("name", "tokens", "grain", "hits"), PUBLISHED)
def test_the_conversation_trace_hits_what_the_engines_own_code_hits(
    name: str, tokens: int, grain: int, hits: float
) -> None:
    found = serve(name, tokens, grain)
    assert hits == (found.hit_tokens if hits > 1 else round(found.hit_share, 5))


# the engines' own managers with V4's groups on the same trace
PUBLISHED_V4 = {
    ("vllm-v4:dense", 9_358_848): 0.044,
    ("vllm-v4:4096", 9_358_848): 0.141,
    ("vllm-v4:semantic", 9_358_848): 0.159,
    ("vllm-v4:dense", 10**10): 0.370,
    ("vllm-v4:4096", 10**10): 0.356,
    ("vllm-v4:semantic", 10**10): 0.291,
    ("sglang-v4:dense", 9_358_848): 0.054,
    ("sglang-v4:tail", 9_358_848): 0.270,
}
AT_ONCE = [("sglang-v4:tail", 9_358_848)]  # others: `make traces`


@needs_conversation
@pytest.mark.parametrize(
    ("name", "tokens"), PUBLISHED_V4 if os.environ.get("DSV4KV_WHOLE_TRACES") else AT_ONCE
)
def test_v4s_groups_hit_what_the_engines_managers_hit(name: str, tokens: int) -> None:
    share = PUBLISHED_V4[name, tokens]
    assert serve(name, tokens, 256).hit_share == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize(("block", "shared", "hit"), [(512, 16_384, 0), (512, 16_385, 16_384),
                                                      (512, 32_700, 16_384), (128, 4_096, 0),
                                                      (128, 9_000, 8_192)])  # fmt: skip
def test_hits_on_ascend_are_multiples_of_32_blocks(block: int, shared: int, hit: int) -> None:
    """``vllm-ascend`` 182b75e: the lcm of its groups; issues 10710 and 14479."""
    prompt = Request(0.0, shared, 1, tuple(range(-(-shared // block))), block)
    outcome = run_rule("vllm-ascend", Pool(collect_paths([prompt] * 2), 200_000, block, MODEL))
    assert outcome.resumed_tokens.tolist() == [0, hit]
