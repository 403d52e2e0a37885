"""The Mooncake conversation trace on DeepSeek-V4-Pro, arrivals from the trace, decode included.

Also agents' conversations by the engines' rules, beside reading them alone.
"""

from pathlib import Path

import pytest

from dsv4kv.config.load import load_config
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.replay.build import Replay, build_replay, read_requests
from tests.benchmarks.agents import made_agents
from tests.benchmarks.medians import Measure, Remark

MOONCAKE = (
    Path(__file__).resolve().parents[2].parent
    / "shared" / "data" / "mooncake" / "conversation_trace.jsonl"
)  # fmt: skip


@pytest.mark.skipif(not MOONCAKE.exists(), reason="Mooncake's trace is not on this machine")
@pytest.mark.parametrize(
    ("name", "tiers"), [("ours", ()), ("with host memory", ("tiers.host.capacity_bytes=1TiB",))]
)
def test_conversation_trace_on_pro(
    name: str, tiers: tuple[str, ...], measure: Measure, remark: Remark
) -> None:
    settings = [f"workload.trace={MOONCAKE}", *tiers]
    config = load_config("default", settings, ReplayConfig).config
    last: list[Replay] = []

    def serve() -> None:
        made = build_replay(config, read_requests(config))
        made.scheduler.run()
        last[:] = [made]

    measure("replay of 12,031 requests, v4-pro, 100 GiB", name, serve, rounds=3)
    tally, done = last[0].prompts.tally, last[0].scheduler.clock.done
    assert last[0].outcome.finished == 12_031
    remark(
        f"replay, {name}: {done.steps:,} steps, "
        f"{tally.saved_tokens / tally.prompt_tokens:.4f} of prompt tokens saved"
    )


AGENTS = "replay of 24 made agents, v4-pro, 20 GiB"


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("agents") / "folder"
    made_agents(folder, 24)
    return folder


def test_reading_agents(agents: Path, measure: Measure) -> None:
    config = load_config("default", [f"workload.trace={agents}"], ReplayConfig).config
    measure(AGENTS, "reading alone", lambda: read_requests(config), rounds=3)


@pytest.mark.parametrize(
    "rule", ["vllm", "vllm-v4:dense", "vllm-v4:4096", "sglang-v4:dense", "sglang-v4:tail"]
)
def test_agents_by_an_engines_rule(
    agents: Path, rule: str, measure: Measure, remark: Remark
) -> None:
    settings = [f"workload.trace={agents}", f"prefix.rule={rule}", "cache.memory_bytes=20GiB"]
    config = load_config("default", settings, ReplayConfig).config
    last: list[Replay] = []

    def serve() -> None:
        made = build_replay(config, read_requests(config))
        made.scheduler.run()
        last[:] = [made]

    measure(AGENTS, rule, serve, rounds=3)
    evicted = last[0].scheduler.cache.evicted
    references = sum(len(request.prefix_hashes) for request in last[0].requests)
    remark(f"agents, {rule}: {references:,} block references, {evicted:,} blocks evicted")
