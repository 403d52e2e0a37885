"""Losses, remedies, overload, and the sums of a fleet."""

import re
from typing import Any

import pytest

from dsv4kv.config.load import load_config
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.core.outcome import REASONS
from dsv4kv.engines.names import RULES
from dsv4kv.errors import ConfigError
from dsv4kv.replay.mrc import parse_strategy
from dsv4kv.runs.parts import FleetReplica, ReplayFleet, Reuse
from dsv4kv.runs.schema import Case
from dsv4kv.view import replay
from dsv4kv.view.table import Command, Finding
from tests.replay.test_run import run
from tests.runs.records import make_case

REASON_NAMES = [*REASONS, "in_flight"]


def under(**given: Any) -> Case:
    """A case of these settings: ``prefix__rule`` is ``prefix.rule``."""
    config: dict[str, dict[str, Any]] = {}
    for name, value in given.items():
        section, _, key = name.partition("__")
        config.setdefault(section, {})[key] = value
    return make_case(config=config)


def test_every_reason_has_a_name_and_every_rule_a_remedy_for_it() -> None:
    assert set(REASON_NAMES) == set(replay.LOSSES)
    for name, rule in RULES.items():
        told = [replay.remedy_of(under(prefix__rule=name), reason) for reason in REASON_NAMES]
        assert all(told)
        lost = {"evicted_block"} if rule.engine else set()
        lost |= {"alignment"} if name.startswith(("vllm", "sglang")) else set()  # others: tokens
        lost |= {"evicted_checkpoint"} if rule.windows else set()
        lost |= {"no_checkpoint"} if rule.windows and name != "vllm-v4:dense" else set()
        assert lost <= set(rule.remedies)
        assert not rule.engine or not any("strategy" in remedy for remedy in told)


@pytest.mark.parametrize("reason", REASON_NAMES)
@pytest.mark.parametrize(
    "given",
    [
        *({"prefix__strategy": name} for name in ("full", "ends", "ends+junctions", "zero")),
        {"prefix__strategy": "zero:bounded"},
        {"prefix__strategy": "periodic:512"},
        {"cache__num_blocks": 300, "cache__memory_bytes": None},
        {"cache__num_blocks": 300, "cache__memory_bytes": None, "cache__num_checkpoints": 9},
        {"cache__checkpoint_share": 0.1, "prefix__policy": "fifo", "prefix__defer": False},
    ],
    ids=str,
)
def test_a_remedy_is_a_setting_that_the_command_takes_and_does_not_have_yet(
    given: dict[str, Any], reason: str
) -> None:
    told = replay.remedy_of(under(**given), reason)
    named = re.findall(r"--(?:set|axis) (\S+?)=([^\s;]+)", told)
    options = re.findall(r"--(strategy|policy) ([^\s;]+)", told)
    named += [(f"prefix.{name}", value) for name, value in options]
    now = {name.replace("__", "."): value for name, value in given.items()}
    for path, values in named:
        for value in values.split(","):
            if path == "prefix.strategy":
                assert parse_strategy(value, window_tokens=128, layers=4)
            assert str(now.get(path)) != value
            asked = {name: "null" if one is None else one for name, one in now.items()}
            asked[path] = value
            load_config("default", [f"{k}={v}" for k, v in asked.items()], ReplayConfig)
    assert named or told.startswith(("none", "more memory: --memory"))


def test_a_rule_without_windows_is_named_where_the_engine_has_another() -> None:
    for rule, own in (("vllm", "vllm"), ("vllm-v4:dense", ""), ("ideal", "")):
        (case,) = run(f"prefix.rule={rule}").cases
        case.config.setdefault("model", {})["preset"] = "v4-flash"
        said = replay._other_rule(case)
        assert said.endswith(f"--engine {own}" if own else said)
        assert bool(said) == bool(own)


def test_the_remedies_of_a_server_are_its_engines() -> None:
    replayed = run("prefix.rule=sglang-v4:tail").cases[0].replay
    assert replayed
    case = under(server__engine="sglang").model_copy(update={"replay": replayed})
    told = [replay.remedy_of(case, reason) for reason in ("no_checkpoint", "evicted_block")]
    rule = RULES[replayed.reuse.rule]
    assert told == [rule.remedies["no_checkpoint"], rule.remedies["evicted_block"]]


@pytest.mark.parametrize(
    "unused",
    ["prefix.strategy=full", "prefix.policy=fifo", "cache.memory_bytes=30GiB",
     "cache.checkpoint_share=0.3"],
)  # fmt: skip
def test_a_server_is_not_given_what_its_engine_decides(unused: str) -> None:
    with pytest.raises(ConfigError, match=r"server.engine 'sglang' has a (way|size) of its own"):
        load_config("default", ["server.engine=sglang", unused], ReplayConfig)


def test_a_record_from_before_there_were_rules_is_one_of_the_ideal_rule() -> None:
    result = run().cases[0].replay
    assert result
    old = result.reuse.model_dump()
    del old["rule"], old["setting"]
    assert Reuse(**old) == result.reuse


@pytest.mark.parametrize(
    ("settings", "late"),
    [
        (["workload.speed=1"], False),
        (["workload.speed=5000", "scheduler.max_requests=2"], True),
        (
            ["workload.arrivals=closed", "workload.concurrency=40", "scheduler.max_requests=2"],
            False,
        ),
    ],
)
def test_an_overloaded_server_is_a_warning_and_its_ttft_no_headline(
    settings: list[str], late: bool
) -> None:
    record = run("cache.num_blocks=3000", *settings)
    (case,) = record.cases
    assert bool(replay.overload(case)) == late
    first = replay.judge_replay(case)[:1]
    assert [each.level for each in first if "overloaded" in each.sentence] == ["warning"] * late
    answer = replay.replay_page(record).answer
    good = [each for each in answer if isinstance(each, Finding) and each.level == "good"]
    assert bool(good) != late
    (headline,) = (str(part) for part in answer[:3] if "hit the cache" in str(part))
    assert ("TTFT" in headline) != late


@pytest.mark.parametrize("model", [None, 5])
def test_a_record_without_the_name_of_a_model_offers_no_next_command(model: object) -> None:
    record = run().model_copy(update={"trace_source": "chat.jsonl"})
    assert any(isinstance(part, Command) for part in replay.replay_page(record).answer)
    record.cases[0].config["model"] = {"preset": model}
    assert not any(isinstance(part, Command) for part in replay.replay_page(record).answer)


GIB = 2**30


def replica(number: int, **chosen: Any) -> FleetReplica:
    values: dict[str, Any] = {
        "name": f"replica {number}",
        "role": "both",
        "gpus": 8,
        "requests": 50,
        "prompt_tokens": 1000,
        "saved_tokens": 300,
        "computed_tokens": 700,
        "output_tokens": 500,
        "peak_requests": 4,
        "busy_ns": 1_800_000_000_000,
        "queued_ns": 500_000_000,
        "held_bytes": 3 * GIB,
    }
    return FleetReplica(**values | chosen)


def fleet(*replicas: FleetReplica, **chosen: Any) -> ReplayFleet:
    values: dict[str, Any] = {
        "router": "dynamo",
        "decode_router": None,
        "replicas": list(replicas),
        "prompt_tokens": sum(r.prompt_tokens for r in replicas if r.role != "decode"),
        "saved_tokens": sum(r.saved_tokens for r in replicas),
        "pooled_saved_tokens": 800,
        "ideal_saved_tokens": 900,
        "held_bytes": sum(r.held_bytes for r in replicas),
        "repeated_bytes": GIB,
        "slo": {"ttft": 2e9, "tpot": 5e7},
        "good_requests": 36,
        "gpu_hour_price": 2.5,
    }
    return ReplayFleet(**values | chosen)


def test_a_fleet_is_costed_by_hours_and_judged_by_what_kept_the_slo() -> None:
    totals = run().cases[0].totals
    assert totals
    totals = totals.model_copy(
        update={"requests": 100, "rejected": 20, "wall_ns": 3.6e12, "output_tokens": 2_000_000}
    )
    two = fleet(replica(0), replica(1, busy_ns=900_000_000_000, saved_tokens=100))
    rows = replay.fleet_facts(two, totals).rows
    assert rows["fleet"] == "2 replicas behind dynamo; 16 GPUs"
    assert rows["hit rate"] == "20.0%; one pool of all blocks 40.0%, unlimited pool 45.0%"
    assert rows["duplicates"].startswith("1.00 GiB of 6.00 GiB")
    assert "16.0 GPU-hours, 8.00 for 10^6 output tokens; 40.0 USD, 20.0" in rows["costs"]
    assert "36 of 120 requests (30.0%) within ttft ≤ 2.00 s and tpot ≤ 50.0 ms" in rows["goodput"]
    assert rows["imbalance"] == "the busiest replica works 1.33 × the mean"
    assert replay.fleet_facts(two, totals, 1.3).rows["costs"].endswith("(90 % error ÷1.3 … ×1.3)")


@pytest.mark.parametrize("chosen", [{"saved_tokens": 1}, {"held_bytes": 1}])
def test_a_fleet_that_does_not_add_up_is_no_record(chosen: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="and the fleet"):
        fleet(replica(0), replica(1), **chosen)
