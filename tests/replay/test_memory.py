"""How the memory is divided, and what is refused: by the toolkit's rule and by engines'."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4kv.engines.names import RULES
from dsv4kv.errors import ConfigError, DoesNotFit
from dsv4kv.replay.build import begin_serving, build_replay, keys_on
from dsv4kv.replay.memory import plan_memory
from dsv4kv.traces.request import IdRuns
from tests.replay.scenes import replay, request, small_config

TINY: dict[str, Any] = {"cache__num_blocks": None, "cache__memory_bytes": 2**20}
ENGINES = [name for name, rule in RULES.items() if rule.engine and "v4" in rule.kinds]
WAYS = [("prefix__strategy", "zero"), ("prefix__strategy", "ends"), ("prefix__strategy", "full")]
WAYS += [("prefix__rule", rule) for rule in ENGINES]


@settings(deadline=None)
@given(st.integers(2**28, 2**34), st.floats(0, 0.9), st.sampled_from(WAYS))
def test_the_parts_and_the_remainder_are_the_whole(
    memory_bytes: int, share: float, way: tuple[str, str]
) -> None:
    chosen = dict([way, ("cache__checkpoint_share", share)])
    memory = plan_memory(
        small_config(cache__num_blocks=None, cache__memory_bytes=memory_bytes, **chosen)
    )
    kept = (memory.num_checkpoints or 0) * memory.checkpoint_bytes
    parts = memory.num_slots * memory.slot_bytes + memory.num_blocks * memory.block_bytes
    assert parts + kept + memory.remainder_bytes == memory_bytes
    page = memory.checkpoint_bytes if way[1] in ENGINES else 0
    assert 0 <= memory.remainder_bytes < memory.block_bytes + page
    assert bool(memory.num_checkpoints) <= (way[1] not in ("zero", "full"))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"prefix__strategy": "ends+junktions"}, r"did you mean ends\+junctions\?"),
        ({"cache__memory_bytes": 2**30}, "give one and null for the other"),
        ({"scheduler__max_requests": 600}, "tokens that scheduler.max_requests decode"),
        ({"model__layers": "[0, 1]"}, "there is nothing to reuse"),
        (TINY, "leave no room for a block"),
        ({**TINY, "prefix__rule": "vllm"}, r"leave no room for a block .* as prefix\.rule"),
        ({"cache__block_tokens": 384}, "512 tokens: neither divides the other"),
        ({"prefix__strategy": "periodic:768"}, "never found again: take a multiple of 512"),
        ({"prefix__rule": "vllm-v41", "cost__gpu": "h200"}, "is not one of v4-flash: take ideal"),
        ({"prefix__rule": "vllm", "prefix__policy": "lfu"}, "prefix.policy says how the ideal"),
        ({"prefix__rule": "vllm-v4:dense", "cache__state": "online"}, "state fp32"),
        ({"prefix__rule": "vllm-v4:dense", "model__formats__indexer": "bf16"}, "fp8 or mxfp4"),
    ],
)
def test_a_memory_that_cannot_be_divided_is_a_sentence(
    settings: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        replay([request([1, 2], block=512)], **settings)


@given(st.lists(st.integers(0, 50), max_size=30), st.sampled_from([64, 128, 256]))
def test_runs_of_ids_have_the_keys_of_their_ids(ids: list[int], tokens: int) -> None:
    plain = request(ids, block=64)
    runs = type(plain)(0.0, max(1, plain.input_tokens), 1, IdRuns.of(ids), 64)
    known = [begin_serving(0, each, 0.0, keys_on(tokens), None).keys for each in (runs, plain)]
    assert known[0] == known[1]


@pytest.mark.parametrize(
    ("rule", "blocks", "reason"),
    [
        ("vllm", 3, "longer than all blocks together"),
        ("vllm-v4:semantic", 60,
         "longer than all blocks together, with windows and states of a chunk"),
        ("sglang-v4:dense", 30, "longer than all windows together"),
    ],
)  # fmt: skip
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


WHOLE = {
    "model__preset": "v4-pro",
    "model__layers": None,
    "cache__memory_bytes": "100GiB",
    "cache__num_blocks": None,
    "cost__gpu": "h200",
}


def test_the_fewest_gpus_named_fit_and_one_less_does_not() -> None:
    with pytest.raises(DoesNotFit, match="do not fit on 1 GPU of h200: every GPU lacks") as caught:
        build_replay(small_config(**WHOLE, cost__gpus=1), [request([1])])
    fewest = int(re.findall(r"\. ([\d,]+) are the minimum", str(caught.value))[0])
    build_replay(small_config(**WHOLE, cost__gpus=fewest), [request([1])])
    with pytest.raises(DoesNotFit, match=f"{fewest} are the minimum"):
        build_replay(small_config(**WHOLE, cost__gpus=fewest - 1), [request([1])])
