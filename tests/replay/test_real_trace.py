"""The Mooncake conversation trace gives what was counted independently of this code."""

from pathlib import Path

import pytest

from dsv4kv.config.load import load_config
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.replay.build import build_replay, read_requests

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
MOONCAKE = DATA / "mooncake" / "conversation_trace.jsonl"
# One request at a time, none of its output, blocks and checkpoints without end.
UNBOUNDED = [
    "cost.gpus=64",
    f"workload.trace={MOONCAKE}",
    "workload.arrivals=closed",
    "workload.concurrency=1",
    "workload.max_output_tokens=1",
    "cache.memory_bytes=null",
    "cache.num_blocks=1000000",
]


@pytest.mark.skipif(not MOONCAKE.exists(), reason="Mooncake's trace is not on this machine")
@pytest.mark.parametrize(
    ("strategy", "resumed", "written"),
    [("ends+junctions", 0.3586, 0.0144), ("zero", 0.1812, 0.0), ("periodic:2048", 0.3210, 0.0591)],
)
def test_an_unbounded_replay_resumes_the_known_share(
    strategy: str, resumed: float, written: float
) -> None:
    config = load_config("default", [*UNBOUNDED, f"prefix.strategy={strategy}"], ReplayConfig)
    made = build_replay(config.config, read_requests(config.config))
    made.scheduler.run()
    tally = made.prompts.tally
    assert tally.requests == 12_031
    assert tally.prompt_tokens == 144_793_823
    assert round(tally.saved_tokens / tally.prompt_tokens, 4) == resumed
    new = tally.prompt_tokens - tally.found_blocks * tally.shared_tokens
    kept = made.scheduler.cache.written * 128
    assert kept / new == pytest.approx(written, abs=6e-5)
