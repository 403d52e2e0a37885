"""Several replicas in one virtual time."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dsv4kv.config.load import load_config
from dsv4kv.config.replay import ROUTERS, ReplayConfig
from dsv4kv.core.fleet import InUse
from dsv4kv.core.served import Served
from dsv4kv.errors import ConfigError
from dsv4kv.replay.build import build_replay
from dsv4kv.replay.fleet.case import Fates, describe_all, ideal_saved_tokens
from dsv4kv.replay.fleet.run import Fleet, find_sent
from dsv4kv.replay.memory import plan_memory
from dsv4kv.replay.run import describe_replay, describe_totals
from dsv4kv.traces.request import Request
from tests.replay.scenes import LONG, SHORT, random_requests, request, run_fleet, small_config

RULES = ("ideal", "vllm", "sglang", "vllm-v4:semantic", "sglang-v4:tail")
V41_RULES = ("vllm-v41", "sglang-v41", "sglang-v41:encoder")
V41 = {"model__preset": "v4.1-flash", "model__layers": "[0, 1, 2, 3, 4]"}
TIERS: tuple[dict[str, Any], ...] = ({}, {"tiers__host__ratio": 2})


def times(served: Served) -> tuple[float | None, ...]:
    """When what became of a request."""
    return served.arrival_s, served.admitted_s, served.first_token_s, served.finished_s


def found(outcome: Fleet) -> Any:
    """Everything that every replica of a fleet has found."""
    return [
        (
            describe_replay(each.replay).model_dump(),
            describe_totals(each.replay, ended=True),
            each.replay.outcome.samples_ns,
        )
        for each in outcome.replicas
    ]


# a hit that the rule does not adopt is on the GPU, and no tier is asked for anything
@example(
    seed=2, router="round_robin", rule="vllm-v41", gpu="b200", blocks=400, drafts=0,
    tiers=TIERS[1], delay_ms=0,
)  # fmt: skip
@settings(max_examples=20)
@given(
    seed=st.integers(0, 10**6),
    router=st.sampled_from(sorted(ROUTERS)),
    rule=st.sampled_from([*RULES, *V41_RULES]),
    gpu=st.sampled_from(["h200", "b200"]),
    blocks=st.sampled_from([64, 120, 400]),
    drafts=st.sampled_from([0, 2]),
    tiers=st.sampled_from(TIERS),
    delay_ms=st.sampled_from([0, 50]),
)
def test_a_fleet_of_one_is_the_single_replay_bit_for_bit(
    seed: int,
    router: str,
    rule: str,
    gpu: str,
    blocks: int,
    drafts: int,
    tiers: Any,
    delay_ms: int,
) -> None:
    requests = random_requests(seed, 12, 8, LONG if seed % 3 == 0 else SHORT, block=256)
    chosen: dict[str, Any] = {"prefix__rule": rule, "cache__num_blocks": blocks, **tiers}
    chosen["scheduler__speculative__draft_tokens"] = drafts
    if rule in V41_RULES:  # blocks of 64 tokens on Hopper, and in vLLM of 128 elsewhere
        chosen |= V41 | {"cost__gpu": gpu}
    alone = build_replay(small_config(**chosen), requests)
    alone.scheduler.run()
    config = small_config(
        fleet__replicas=1, fleet__router=router, fleet__event_delay_ms=delay_ms, **chosen
    )
    (replica,) = found(run_fleet(config, requests))
    assert replica == (
        describe_replay(alone).model_dump(),
        describe_totals(alone, ended=True),
        alone.outcome.samples_ns,
    )


def apart(ids: Sequence[Sequence[int]], gap_s: float = 100.0) -> list[Request]:
    """Requests so far apart that each is alone."""
    return [request(each, at=gap_s * number) for number, each in enumerate(ids)]


CHAT = [[1], [1, 2], [1, 2, 3], [1, 9], [1, 2, 3, 4], [7], [7, 8], [1, 9, 10], [7, 8, 11, 12]]
AMPLE = {"cache__num_blocks": 4096, "prefix__strategy": "full"}


def saved_tokens(outcome: Fleet) -> int:
    return sum(r.replay.prompts.tally.saved_tokens for r in outcome.pools[0])


@pytest.mark.parametrize("router", ["round_robin", "dynamo", "llm-d:precise"])
def test_ample_memory_that_all_share_saves_what_one_ideal_pool_saves(router: str) -> None:
    requests = apart(CHAT)
    alone = run_fleet(small_config(fleet__replicas=1, **AMPLE), requests)
    shared = {
        "tiers__remote__capacity_bytes": 1 << 40,
        "tiers__compare": False,
        "fleet__shared_tiers": ["remote"],
    }
    fleet = {"fleet__replicas": 3, "fleet__router": router}
    assert saved_tokens(run_fleet(small_config(**fleet, **AMPLE), requests)) <= saved_tokens(alone)
    together = run_fleet(small_config(**fleet, **AMPLE, **shared), requests)
    assert saved_tokens(together) == saved_tokens(alone) == ideal_saved_tokens(requests, 128)
    assert describe_all(together, Fates(together)).tiers  # once, whoever shares them
    if router == "round_robin":
        assert [len(replica.served) for replica in together.replicas] == [3, 3, 3]


@settings(max_examples=15)
@example(seed=0, router="cache_aware", rule="vllm-v4:semantic", split=True, think=False)
@given(
    seed=st.integers(0, 10**6),
    router=st.sampled_from(sorted(ROUTERS)),
    rule=st.sampled_from(RULES),
    split=st.booleans(),
    think=st.booleans(),
)
def test_every_request_is_served_once_and_in_order(
    seed: int, router: str, rule: str, split: bool, think: bool
) -> None:
    requests = random_requests(seed, 25, 8, SHORT, block=256)
    kind: dict[str, Any] = {"fleet__replicas": 3}
    if split:
        kind = {"fleet__prefill__replicas": 2, "fleet__decode__replicas": 2}
    kind |= {"fleet__router": router, "fleet__sessions": "think" if think else "trace"}
    config = small_config(prefix__rule=rule, cache__num_blocks=400, **kind)
    outcome = run_fleet(config, requests)
    assert sorted(outcome.prompts) == sorted(outcome.answers) == list(range(len(requests)))
    for number, each in enumerate(requests):
        prompt, answer = outcome.prompts[number], outcome.answers[number]
        assert (prompt is not answer) == (split and each.output_tokens > 1)
        moments = [*times(prompt), *(times(answer) if answer is not prompt else ())]
        assert None not in moments
        assert moments == sorted(moments)  # type: ignore[type-var]
        assert answer.generated == each.output_tokens
    for replica in outcome.replicas:
        ledger = replica.replay.scheduler.cache
        assert not ledger.private + ledger.shared
        assert not replica.received or not replica.received.senders


def test_a_decode_replica_waits_for_the_prompt_and_computes_its_last_token() -> None:
    slow = {"gbps": 0.1, "setup_ms": 3.0, "descriptor_us": 100.0}
    link = {f"fleet__transfer__{name}": value for name, value in slow.items()}
    config = small_config(fleet__prefill__replicas=1, fleet__decode__replicas=1, **link)
    outcome = run_fleet(config, [request([1, 2], input_tokens=300)])
    (prefill,), (decode,) = outcome.pools
    memory = decode.parts.memory
    size = 3 * memory.block_bytes + memory.slot_bytes
    answer = outcome.answers[0]
    assert prefill.link.moved_bytes == size
    there_s = answer.arrival_s + 3e-3 + 4 * 3 * 100e-6 + size / 1e8  # pages of three layers
    assert answer.ready_s == pytest.approx(there_s, rel=1e-12)
    assert answer.first_token_s is not None
    assert answer.first_token_s > there_s
    assert decode.replay.scheduler.computed_tokens == 1
    assert prefill.replay.scheduler.computed_tokens == 300


@pytest.mark.parametrize("engine", ["vllm:0.33", "sglang:0.5.23"])
def test_engines_send_what_they_are_known_to_send(engine: str) -> None:
    config = load_config(
        None, [ "model.preset=v4-flash", "cost.gpus=8", "fleet.prefill.replicas=1",
        "fleet.decode.replicas=1", f"fleet.transfer.engine={engine}", ], ReplayConfig,
    ).config  # fmt: skip
    sent = find_sent(config, plan_memory(config))
    whole, rest = sent(131_072, 0), sent(131_072, 65_536)
    assert whole.descriptors - rest.descriptors == 256 * 62  # of 256 tokens each
    assert (whole.bytes - rest.bytes) % 256 == 0
    if engine == "vllm:0.33":
        assert whole.descriptors == 512 * 62 + 595


@pytest.mark.parametrize(("delay_ms", "known"), [(0, True), (9_000, True), (11_000, False)])
def test_a_router_knows_what_is_cached_after_the_delay_of_events(
    delay_ms: float, known: bool
) -> None:
    """Of ten prompts, 10.2 s before each is longer."""
    requests = [
        request(range(10 * n, 10 * n + 4 + more), at=100.0 * n + 10.2 * more, output=1)
        for n in range(10)
        for more in (0, 1)
    ]
    router = {"fleet__router": "llm-d:precise", "fleet__event_delay_ms": delay_ms}
    outcome = run_fleet(small_config(fleet__replicas=2, **router, **AMPLE), requests)
    given = [{each.number // 2 for each in replica.served} for replica in outcome.replicas]
    assert bool(given[0] & given[1]) != known


@pytest.mark.parametrize(
    ("chosen", "sentence"),
    [
        (["cost.gpu=h2OO"], "h2OO"),
        (["cost.gqus=4"], "fleet.decode: cost.gqus=4: unknown key"),
        (["fleet.router=dynamo"], "which is not of a replica"),
    ],
)
def test_replicas_that_cannot_be_set_so_are_refused(chosen: Any, sentence: str) -> None:
    split = {"fleet__prefill__replicas": 1, "fleet__decode__replicas": 1}
    with pytest.raises(ConfigError, match=sentence):
        run_fleet(small_config(**split, fleet__decode__settings=chosen), random_requests(1, 4))


def test_a_router_knows_which_blocks_are_in_use_as_their_users_come_and_go() -> None:
    known, draw, given, size = InUse(), Random(0), dict[int, Served](), 128
    for number in range(200):
        if given and draw.random() < 0.5:
            known.remove(given.pop(draw.choice([*given])))
        other = draw.choice([each.trace_blocks for each in given.values()] or [[]])
        ids = (*other[: draw.randint(0, 6)], 10 * number, 10 * number + 1)
        asked = Served(number, 0.0, size * len(ids), 1, lambda _: [], ids, size)
        in_use = set(ids).union(*(each.trace_blocks for each in given.values()))
        assert known.tokens_with(asked) == size * len(in_use)
        known.add(asked)
        given[number] = asked


def test_think_times_are_refused_where_a_trace_has_no_sessions() -> None:
    bare = [request(at=0.1 * n, input_tokens=100) for n in range(4)]
    config = small_config(fleet__replicas=2, fleet__sessions="think")
    with pytest.raises(ConfigError, match="neither sessions nor block ids, so every request is"):
        run_fleet(config, bare)
    run_fleet(config, [*bare, request([1], at=1.0)])
    run_fleet(small_config(fleet__replicas=2, fleet__router="consistent_hashing"), bare)
