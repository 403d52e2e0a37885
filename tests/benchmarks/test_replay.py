"""The Mooncake conversation trace on DeepSeek-V4-Pro, arrivals from the trace, decode included."""

from pathlib import Path

import pytest

from dsv4kv.config.load import load_config
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.replay.build import Replay, build_replay, read_requests
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
    tally, done = last[0].scheduler.prompts.tally, last[0].scheduler.clock.done
    assert last[0].outcome.finished == 12_031
    remark(
        f"replay, {name}: {done.steps:,} steps, "
        f"{tally.saved_tokens / tally.prompt_tokens:.4f} of prompt tokens saved"
    )
