"""Pinned replays: rule × trace × memory × drafts × ranks × chunks × tiers × fleets.

``python -m tests.goldens.replays [NAME …]`` runs them and writes ``replays.json``. A result holds
what every request resumed behind (as a digest), the reuse by reason, steps, preemptions and times.

First pinned at c109625. What differs from that since the replay takes one step at a time:
``vllm`` with one group, and tiers and split fleets by vLLM's rules, take blocks step by step, too;
with data-parallel ranks, SGLang's retractions and write-back waits that code took several steps at
once where something could happen in between (with ``longest_stretch=1`` it gave today's result);
two cases evict one block more.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from dsv4kv.config.load import Point, load_config
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.core.served import Served
from dsv4kv.replay import build
from dsv4kv.replay.build import read_requests
from dsv4kv.replay.fleet.case import serve_point

ROOT = Path(__file__).resolve().parents[2]
CONVERSATION = ROOT.parent / "shared/data/mooncake/conversation_trace.jsonl"
AGENTS = ROOT.parent / "shared/data/weka"
RESULTS = Path(__file__).with_suffix(".json")

Settings = tuple[str, ...]

V4_RULES = (
    "ideal", "vllm", "vllm-v4:semantic", "vllm-v4:4096", "vllm-v4:dense",
    "sglang", "sglang-v4:tail", "sglang-v4:dense",
)  # fmt: skip
V41_RULES = ("vllm-v41", "sglang-v41", "sglang-v41:encoder")
CONV = (f"workload.trace={CONVERSATION}", "workload.limit=1500")
SHORT = (f"workload.trace={CONVERSATION}", "workload.limit=400")
CHAT = ("workload.trace=builtin:chat",)
AGENT = (f"workload.trace={AGENTS}", "workload.stagger_s=20")
DENSE_AGENTS = (f"workload.trace={AGENTS}", "workload.stagger_s=1", "workload.speed=40")
GENERATING = (
    "workload.trace=null", "workload.synthetic.requests=300",
    "workload.synthetic.arrival_rate=40", "workload.synthetic.input.mean=600",
    "workload.synthetic.output.mean=900", "workload.synthetic.prefix_branches=4",
    "workload.synthetic.prefix_tokens=256", "workload.synthetic.hash_block_tokens=256",
)  # fmt: skip
FEW_BLOCKS = {
    "ideal": (600, 2500), "vllm": (330, 1400), "vllm-v4:semantic": (3400, 5000),
    "vllm-v4:4096": (3400, 5000), "vllm-v4:dense": (3400, 5000), "sglang": (330, 1400),
    "sglang-v4:tail": (330, 1400), "sglang-v4:dense": (330, 1400), "vllm-v41": (5000, 6000),
    "sglang-v41": (330, 1400), "sglang-v41:encoder": (330, 1400),
}  # fmt: skip
"""By rule: blocks for ``GENERATING`` and for ``DENSE_AGENTS`` that make it evict and preempt."""
DEPLOYMENT = ("model.preset=v4-pro", "cost.gpus=8", "cache.memory_bytes=100GiB")
"""Of every case that names no other."""
V41 = ("model.preset=v4.1-flash",)
TIGHT = ("cache.memory_bytes=12GiB", "scheduler.max_requests=64")
DRAFTS = ("scheduler.speculative.draft_tokens=2", "scheduler.speculative.acceptance=0.7")
HOST, RATIO = ("tiers.host.capacity_bytes=64GiB",), ("tiers.host.ratio=3",)
DISK = ("tiers.disk.capacity_bytes=500GB",)
SLOW = ("tiers.prefetch=best_effort", "tiers.prefetch_share=0.2", "tiers.disk.read_gbps=0.5",
        "tiers.host.parallel=4")  # fmt: skip


def cases() -> Iterator[tuple[str, Settings]]:
    """Every case by name."""
    every = [(rule, ()) for rule in V4_RULES] + [(rule, V41) for rule in V41_RULES]
    small = {"v41": "cache.memory_bytes=6GiB"}
    for rule, model in every:
        base = (f"prefix.rule={rule}", *model)
        tight = (small["v41"], "scheduler.max_requests=64") if model else TIGHT
        yield f"conversation, {rule}", (*base, *CONV)
        yield f"conversation, {rule}, tight", (*base, *CONV, *tight)
        yield f"chat, {rule}", (*base, *CHAT)
        yield f"agents, {rule}", (*base, *AGENT)
        few = [("cache.memory_bytes=null", f"cache.num_blocks={n}") for n in FEW_BLOCKS[rule]]
        windows = ("cache.num_checkpoints=1000",) if rule == "sglang-v4:dense" else ()
        yield f"generating, {rule}", (*base, *GENERATING, *few[0])
        yield f"busy agents, {rule}", (*base, *DENSE_AGENTS, *few[1], *windows)
        yield f"short, {rule}, drafts", (*base, *SHORT, *DRAFTS)
        yield f"short, {rule}, tight, drafts", (*base, *SHORT, *tight, *DRAFTS)
        yield f"short, {rule}, chunks of 2048", (*base, *SHORT, "scheduler.step_tokens=2048")
        yield f"short, {rule}, dp 4", (*base, *SHORT, "cost.dp=4", "cost.ep=8")
    for rule in ("ideal", "vllm-v4:semantic", "sglang-v4:tail", "sglang-v4:dense"):
        base = (f"prefix.rule={rule}", *SHORT, "cache.memory_bytes=20GiB",
                "scheduler.max_requests=64")  # fmt: skip
        host = RATIO if rule.startswith("sglang") else HOST
        yield f"short, {rule}, host", (*base, *host)
        yield f"short, {rule}, host and disk", (*base, *host, *DISK)
        if not rule.startswith("vllm"):  # which offloads what it computes, not what it evicts
            yield f"short, {rule}, host, write back", (*base, *host, "tiers.host.write=write_back")
        yield f"short, {rule}, slow host and disk", (*base, *host, *DISK, *SLOW)
        yield f"short, {rule}, 3 replicas", (*base, "fleet.replicas=3")
        yield f"short, {rule}, 3 replicas, cache aware", (*base, "fleet.replicas=3",
                                                          "fleet.router=cache_aware")  # fmt: skip
        yield f"short, {rule}, split", (*base, "fleet.prefill.replicas=2",
                                        "fleet.decode.replicas=1")  # fmt: skip
        yield f"short, {rule}, closed", (*base, "workload.arrivals=closed",
                                         "workload.concurrency=24")  # fmt: skip
    base = ("prefix.rule=vllm-v4:semantic", *SHORT, "cache.memory_bytes=20GiB",
            "scheduler.max_requests=64")  # fmt: skip
    yield (
        "short, vllm-v4:semantic, host, lmcache",
        (*base, *HOST, "tiers.layout=lmcache", "tiers.host.capacity_bytes=1TiB"),
    )
    yield "short, vllm-v4:dense, host", (*base[1:], *HOST, "prefix.rule=vllm-v4:dense")
    yield "short, vllm-v4:semantic, host, 4096", (*base, *HOST, "tiers.retention_tokens=4096")
    for rule in ("sglang", "sglang-v4:tail"):
        base = (f"prefix.rule={rule}", *SHORT)
        yield f"short, {rule}, mixed", (*base, "scheduler.prompts=mixed")
        yield f"short, {rule}, dp 4, delayed", (*base, "cost.dp=4", "cost.ep=8",
                                                "scheduler.delay_prompts=true")  # fmt: skip
    for kind in ("dspark", "mtp"):
        for rule in ("vllm", "vllm-v4:semantic", "sglang-v4:tail"):
            yield f"short, {rule}, {kind}", (f"prefix.rule={rule}", *SHORT, *DRAFTS,
                                             f"prefix.speculation={kind}")  # fmt: skip
    base = ("prefix.rule=vllm-v4:semantic", *CONV, "cache.memory_bytes=12GiB")
    yield "conversation, 12 GiB", base
    yield "conversation, 12 GiB, idle tier", (*base, "tiers.host.capacity_bytes=8MiB")
    yield "synthetic, ideal", ("workload.trace=null",)
    yield "synthetic, vllm-v4:semantic", ("workload.trace=null", "prefix.rule=vllm-v4:semantic")


def measure(settings: Settings) -> dict[str, Any]:
    """What a replay does; raises ``Dsv4kvError`` as it does."""
    config = load_config(None, [*DEPLOYMENT, *settings], ReplayConfig).config
    resumed: dict[int, int] = {}
    came: list[Served] = []

    def spy(*args: Any, **kwargs: Any) -> Served:
        came.append(Served(*args, **kwargs))
        return came[-1]

    with patch.object(build, "Served", spy):
        case = serve_point(Point({}, config), read_requests(config), lambda done: None)
    for served in came:
        if served.finished_s is not None:
            resumed.setdefault(served.number, served.saved)
    found, totals = case.replay, case.totals
    assert found is not None
    assert totals is not None
    hits = ",".join(f"{number}:{tokens}" for number, tokens in sorted(resumed.items()))
    work = found.work.model_dump()
    return {
        "requests": [totals.requests, totals.rejected, len(resumed)],
        "hits": sha256(hits.encode()).hexdigest()[:20],
        "reuse": found.reuse.model_dump(),
        "steps": work.pop("steps"),
        "counts": work.pop("counts"),
        "work": work,
        "pauses": found.pauses,
        "evictions": found.evictions,
        "wall_ns": totals.wall_ns,
        "peak_blocks": totals.peak_blocks,
        "tiers": found.tiers.model_dump() if found.tiers else None,
        "times_ns": {row.name: _spread(row.samples_ns) for row in case.latencies},
    }


def _spread(samples: list[int]) -> list[float]:
    """Count, sum, median, 90th and 99th percentile, maximum."""
    array = np.array(samples, float)
    return [len(samples), float(array.sum()), *np.percentile(array, (50, 90, 99, 100)).tolist()]


def write_anew(results: Path, cases: Mapping[str, Any], measure: Callable[[Any], Any]) -> None:
    """Ask all, or those that arguments name, and write the answers."""
    wanted = sys.argv[1:]
    known = json.loads(results.read_text()) if wanted and results.exists() else {}
    for name, asked in cases.items():
        if not wanted or any(word in name for word in wanted):
            known[name] = measure(asked)
            print(name, flush=True)
    lines = [f"{json.dumps(name)}: {json.dumps(known[name])}" for name in sorted(known)]
    results.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    write_anew(RESULTS, dict(cases()), measure)
