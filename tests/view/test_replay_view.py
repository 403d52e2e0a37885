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


@pytest.mark.parametrize(
    "unused",
    ["prefix.strategy=full", "prefix.policy=fifo", "cache.memory_bytes=30GiB",
     "cache.checkpoint_share=0.3"],
)  # fmt: skip
def test_a_server_is_not_given_what_its_engine_decides(unused: str) -> None:
    with pytest.raises(ConfigError, match=r"server.engine 'sglang' has a (way|size) of its own"):
        load_config("default", ["server.engine=sglang", unused], ReplayConfig)


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
