"""A server sizes its pools as ``dsv4kv budget`` does."""

from typing import Any

import pytest

from dsv4kv.budget.answer import answer
from dsv4kv.budget.inputs import read_inputs
from dsv4kv.config.load import load_config
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.engines.sglang.sizes import SglangEngine
from dsv4kv.errors import ConfigError, DoesNotFit
from dsv4kv.replay.server import by_server

OLD = "sglang:0.5.15"
FLASH, PRO = "model.preset=v4-flash", "model.preset=v4-pro"
DRAFTS = "--speculative-algorithm EAGLE --speculative-num-steps 1 --speculative-num-draft-tokens 2"


def served_by(*settings: str, gpus: int = 8) -> ReplayConfig:
    """A configuration of a server."""
    return load_config("default", [PRO, f"cost.gpus={gpus}", *settings], ReplayConfig).config


@pytest.mark.parametrize(
    ("flags", "settings"),
    [
        ("--moe-a2a-backend deepep", ["cost.all_to_all=true"]),
        ("--moe-a2a-backend megamoe", []),
        ("--enable-prefill-delayer", ["scheduler.delay_prompts=true"]),
        ("--model-path sgl-project/DeepSeek-V4-Flash-FP8", ["cost.experts=fp8"]),
        ("--model-path nvidia/DeepSeek-V4-Flash-NVFP4", ["cost.experts=nvfp4"]),
    ],
)
def test_flags_that_times_depend_on_are_read(flags: str, settings: list[str]) -> None:
    """A command alone is the same facts set by hand."""
    layout = "--tp 8 --dp 8 --enable-dp-attention --ep-size 8 --max-running-requests 64"
    given = [FLASH, "cost.gpu=h200", f"server.engine={OLD}"]
    found = by_server(served_by(*given, f"server.command={layout} {flags}"))
    by_hand = by_server(served_by(*given, f"server.command={layout}", *settings))
    for name in ("cost", "scheduler", "cache"):
        assert getattr(found, name) == getattr(by_hand, name)


@pytest.mark.parametrize("flags", ["", DRAFTS, "--page-size 512"])
@pytest.mark.parametrize("engine", [OLD, "sglang:0.5.23", "vllm:0.33"])
def test_the_pools_are_those_that_budget_prints(engine: str, flags: str) -> None:
    if engine.startswith("vllm"):
        flags = "--tensor-parallel-size 8 --max-num-seqs 64"
    else:
        flags = f"--tp 8 --max-running-requests 64 {flags}"
    config = by_server(served_by(f"server.engine={engine}", f"server.command={flags}"))
    texts = {"model": "v4-pro", "gpu": "h200", "gpus": "8", "tp": "8", "engine": engine}
    texts["request-limit"] = "64"
    if "spec" in flags:
        texts |= {"draft-layers": "1", "draft-tokens": "2"}
    page = 512 if "512" in flags else 256
    if page == 512:
        texts["block-tokens"] = "512"
    found = answer(read_inputs(texts))
    assert found.capacity
    rules = found.scenario.engine
    if isinstance(rules, SglangEngine):
        pools = rules.pools(found.scenario.deployment(0, 2**20))
        slots = pools.window_slots(found.capacity.units)
        assert config.cache.num_blocks == found.capacity.units // page
        assert config.cache.num_checkpoints == slots // page
    else:
        assert config.cache.num_blocks == found.capacity.units
    settings = found.scenario.settings
    assert config.scheduler.step_tokens == settings.step_tokens
    assert config.scheduler.max_requests == settings.request_limit == 64
    assert config.scheduler.speculative.draft_tokens == ("spec" in flags)


@pytest.mark.parametrize(
    ("engine", "command", "rule"),
    [
        (OLD, "null", "sglang-v4:dense"),
        ("sglang:0.5.23", "--tp 8 --max-running-requests 64", "sglang-v4:tail"),
        ("vllm", "null", "vllm-v4:semantic"),
        ("vllm", "-tp 8 --prefix-cache-retention-interval 4096", "vllm-v4:4096"),
    ],
)
def test_a_server_is_replayed_by_its_engines_rule(engine: str, command: str, rule: str) -> None:
    server = f"server.engine={engine}", f"server.command={command}"
    assert by_server(served_by(*server)).prefix.rule == rule
    chosen = served_by(*server, "prefix.rule=vllm")
    assert by_server(chosen).prefix.rule == "vllm"


def test_host_memory_of_the_command_is_a_tier_of_the_engines_blocks() -> None:
    """Of vLLM's 200 GiB, as many chunks as ``budget`` counts; a tier that is given stays."""
    hicache = "--tp 8 --enable-hierarchical-cache --hicache-ratio 2.5"
    made = by_server(served_by(FLASH, "server.engine=sglang", f"server.command={hicache}"))
    assert made.tiers.host.ratio == 2.5
    given = by_server(
        served_by(FLASH, "server.engine=sglang", f"server.command={hicache}", "tiers.host.ratio=3")
    )
    assert given.tiers.host.ratio == 3
    flags = "-tp 4 -dp 2 --enable-expert-parallel --kv-offloading-size 200"
    native = by_server(served_by(FLASH, "server.engine=vllm:0.33", f"server.command={flags}"))
    texts = {"model": "v4-flash", "gpu": "h200", "tp": "4", "dp": "2", "engine": "vllm:0.33"}
    found = answer(read_inputs({**texts, "host-tier": "native", "host-size": "200GiB"}))
    assert found.host is not None
    assert native.tiers.host.ratio is not None
    assert native.cache.num_blocks is not None
    held = native.tiers.host.ratio * native.cache.num_blocks / 2
    assert round(held) == found.host.pools[0].pages
    plain = by_server(served_by(FLASH, "server.engine=sglang", "server.command=--tp 8"))
    assert plain.tiers == served_by().tiers


@pytest.mark.parametrize(
    ("settings", "kind", "sentence"),
    [
        (["server.command=--tp 8"], ConfigError, "server.engine does not say whose"),
        (["server.engine=sglang", "server.command=--tp 4"], ConfigError, "give --gpus 4"),
        (["server.command=sglang serve --model-path deepseek-ai/DeepSeek-V4-Flash --tp 8"],
         ConfigError, "give --model v4-flash"),
        (["server.engine=trtllm"], ConfigError, "by vllm or sglang"),
        ([FLASH, "server.engine=sglang", "server.command=--tp 8 --enable-hicache"],
         ConfigError, "without --hicache-ratio"),
        (["server.engine=sglang", "cost.gpu=l40s"], DoesNotFit, "does not start"),
        (["server.engine=vllm", "server.command=-tp 8 --prefix-cache-retention-interval 512"],
         ConfigError, "server has retention 512"),
    ],
)  # fmt: skip
def test_what_cannot_be_replayed_is_a_sentence(
    settings: list[str], kind: type[Exception], sentence: str
) -> None:
    found: Any
    with pytest.raises(kind, match=sentence) as found:
        by_server(served_by(*settings))
    assert str(found.value).endswith(".")
