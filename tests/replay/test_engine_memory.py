"""What the engines' rules make of the memory, and what they refuse."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4kv.core.hashed import HashedCache
from dsv4kv.engines.contract import Deployment
from dsv4kv.engines.names import RULES, find_engine
from dsv4kv.errors import ConfigError
from dsv4kv.model.presets import load_model
from dsv4kv.model.schema import choose_formats
from dsv4kv.replay.memory import plan_memory
from tests.replay.scenes import replay, request, small_config

GIB = 2**30
ENGINES = [name for name, rule in RULES.items() if rule.engine and "v4" in rule.kinds]
FLASH = {"model__layers": None, "cache__num_blocks": None, "cache__memory_bytes": 40 * GIB}


def test_vllms_blocks_are_those_that_its_sizing_rule_counts() -> None:
    memory = plan_memory(small_config(prefix__rule="vllm-v4:dense", **FLASH))
    model, engine = load_model("v4-flash"), find_engine("vllm:0.33")
    deployment = Deployment(model, choose_formats(model, indexer="fp8"), 10**6, 512)
    assert memory.block_bytes == engine.rule(deployment).layout.unit_bytes
    assert memory.num_blocks == engine.capacity(deployment, 40 * GIB).units
    assert (memory.slot_bytes, memory.num_checkpoints, memory.block_tokens) == (0, 0, 256)


def test_sglang_has_a_tenth_as_many_pages_of_windows() -> None:
    memory = plan_memory(small_config(prefix__rule="sglang-v4:tail", cache__num_blocks=1234))
    assert memory.num_checkpoints == 123
    # three layers' windows of 256 tokens, and the state of the one CSA layer
    assert memory.checkpoint_bytes == 3 * 256 * 584 + 81_920
    plain = plan_memory(small_config(prefix__rule="sglang", cache__num_blocks=1234))
    assert plain.block_bytes == memory.block_bytes
    assert plain.slot_bytes > memory.slot_bytes  # windows of running requests are in the pool


@settings(deadline=None)
@given(st.integers(2**28, 2**34), st.sampled_from(ENGINES))
def test_the_parts_and_the_remainder_are_the_whole(memory_bytes: int, rule: str) -> None:
    memory = plan_memory(
        small_config(prefix__rule=rule, cache__num_blocks=None, cache__memory_bytes=memory_bytes)
    )
    windows = (memory.num_checkpoints or 0) * memory.checkpoint_bytes
    parts = memory.num_slots * memory.slot_bytes + memory.num_blocks * memory.block_bytes
    assert parts + windows + memory.remainder_bytes == memory_bytes
    assert 0 <= memory.remainder_bytes < memory.block_bytes + memory.checkpoint_bytes


@pytest.mark.parametrize("rule", [name for name in ENGINES if not name.startswith("vllm-v4")])
def test_a_memory_without_room_for_a_block_is_a_sentence(rule: str) -> None:
    with pytest.raises(ConfigError, match=r"leave no room for a block .* as prefix\.rule"):
        plan_memory(
            small_config(prefix__rule=rule, cache__num_blocks=None, cache__memory_bytes=2**20)
        )


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"prefix__rule": "vllm-v4:dens"}, r"prefix.rule is .* .did you mean vllm-v4:dense\?"),
        ({"prefix__rule": "vllm", "prefix__policy": "arc"}, "prefix.policy says how the ideal"),
        ({"prefix__rule": "sglang", "prefix__strategy": "full"}, "prefix.strategy says how the"),
        ({"prefix__rule": "vllm-v4:dense", "cache__state": "online"}, "state fp32"),
        (
            {"prefix__rule": "vllm-v4:dense", "model__formats__indexer": "bf16"},
            "indexer keys in fp8 or mxfp4",
        ),
    ],
)
def test_what_an_engine_does_not_have_is_a_sentence(
    settings: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        plan_memory(small_config(**settings))


@pytest.mark.parametrize(
    ("rule", "block", "sentence"),
    [
        ("vllm", 384, "blocks of 384 tokens do not fit ids of 512"),
        ("vllm-v4:4096", 1536, "retention of 4096 tokens must be whole blocks of 1536"),
    ],
)
def test_blocks_that_do_not_fit_are_a_sentence(rule: str, block: int, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        replay([request([1, 2], block=512)], prefix__rule=rule, cache__block_tokens=block)


@pytest.mark.parametrize(
    ("rule", "blocks", "reason"),
    [
        ("vllm", 3, "longer than all blocks together"),
        (
            "vllm-v4:semantic",
            60,
            "longer than all blocks together, with windows and states of a chunk",
        ),
        ("sglang-v4:dense", 30, "longer than all windows together"),
    ],
)
def test_a_request_that_can_never_run_is_refused_and_counted(
    rule: str, blocks: int, reason: str
) -> None:
    requests = [request(range(8), output=1), request([50], output=1)]
    made = replay(
        requests, prefix__rule=rule, cache__num_blocks=blocks, cache__block_tokens=128,
        scheduler__step_tokens=128,
    )  # fmt: skip
    assert made.outcome.rejected[reason] >= 1
    assert made.outcome.finished + made.outcome.rejected.total() == 2


def test_without_reuse_no_engine_is_asked() -> None:
    nothing = replay([request([1, 2])] * 2, prefix__rule="vllm", prefix__reuse=False)
    assert nothing.prompts.tally.saved_tokens == 0
    assert not isinstance(nothing.scheduler.cache, HashedCache)


@pytest.mark.parametrize("rule", ["vllm", "sglang-v4:tail"])
def test_prompts_of_which_only_lengths_are_known_fill_an_engines_cache_and_share_nothing(
    rule: str,
) -> None:
    unnamed = [request(input_tokens=300 + i % 2) for i in range(40)]
    made = replay(unnamed, prefix__rule=rule, cache__num_blocks=130, cache__block_tokens=128)
    assert made.outcome.finished == 40
    assert made.prompts.tally.seen_tokens == 0
    assert made.scheduler.cache.cached >= 39
