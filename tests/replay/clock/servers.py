"""A server whose clock is known, and the engines' benchmarks of it, by their documented keys.

Keys: SGLang 0.5.23 ``bench_serving.py``, vLLM 0.33 ``benchmarks/serve.py``.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dsv4kv.config.load import load_config
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.core.served import Served
from dsv4kv.replay.build import build_replay, find_parts
from dsv4kv.replay.clock.steps import Coefficients
from dsv4kv.traces.request import Request

SETTINGS = ("model.preset=v4-flash", "cost.gpu=h200", "cost.gpus=8", "cache.num_blocks=24000",
            "cache.memory_bytes=null", "prefix.reuse=false")  # fmt: skip
MEANT = {
    "decode_layer_us": 1.3, "bandwidth_share": 0.8, "prompt_layer_us": 0.7, "tflops": 1.5,
    "client_ms": 0.6, "split_context_ns": 1.4,
}  # fmt: skip
"""What the planted coefficients are, times those of the GPU."""


@dataclass(frozen=True)
class Server:
    """A deployment that takes the times that its coefficients say."""

    settings: Sequence[str] = SETTINGS

    def config(self, *more: str) -> ReplayConfig:
        return load_config(None, [*self.settings, *more], ReplayConfig).config

    def planted(self) -> Coefficients:
        known = find_parts(self.config(), [Request(0.0, 8, 2)]).times.coefficients
        changed = {name: getattr(known, name) * factor for name, factor in MEANT.items()}
        return known.model_copy(update=changed)

    def bench(
        self, concurrency: int | None, requests: Sequence[Request], *more: str
    ) -> dict[str, Any]:
        """What a benchmark sees: every request's times in seconds, in the order of arrival."""
        arrivals = "trace" if concurrency is None else "closed"
        own = (f"workload.arrivals={arrivals}", f"workload.concurrency={concurrency or 1}")
        config = self.config(*own, *more)
        parts = find_parts(config, requests)
        times = parts.times.by(self.planted())
        made = build_replay(config, requests, parts=replace(parts, times=times))
        made.scheduler.ended = ended = list[Served]()
        made.scheduler.run()
        assert not made.outcome.rejected
        ended.sort(key=lambda served: served.number)
        rows = [_row(served, times.client_s) for served in ended]
        return {
            "input_lens": [r.input_tokens for r in requests],
            "output_lens": [r.output_tokens for r in requests],
            "start_times": [row[0] for row in rows],
            "ttfts": [row[1] for row in rows],
            "itls": [
                [row[2] / (r.output_tokens - 1)] * (r.output_tokens - 1)
                for row, r in zip(rows, requests, strict=True)
            ],
            "duration": max(each.finished_s or 0.0 for each in ended) + times.client_s,
            "completed": len(requests),
            "max_concurrency": concurrency,
        }


def _row(served: Served, client_s: float) -> tuple[float, float, float]:
    """When a request came, and how long its first token and the others took."""
    assert served.first_token_s is not None
    assert served.finished_s is not None
    first = served.first_token_s - served.arrival_s + client_s
    return served.arrival_s, first, served.finished_s - served.first_token_s


def lengths(count: int, longest: int = 8192, most: int = 256, seed: int = 1) -> list[Request]:
    """As ``sglang.bench_serving`` draws them with a range ratio of 0."""
    drawn = np.random.RandomState(seed)
    given = drawn.randint(1, longest + 1, count), drawn.randint(1, most + 1, count)
    return [Request(0.0, int(i), max(2, int(o))) for i, o in zip(*given, strict=True)]


_DETAILS = ("input_lens", "output_lens", "ttfts", "itls", "start_times")


def summed(seen: dict[str, Any]) -> dict[str, Any]:
    """Statistics and totals, as both benchmarks write them."""
    tpots = [np.mean(each) for each in seen["itls"] if each]
    found: dict[str, Any] = {}
    for name, values in (("ttft", seen["ttfts"]), ("tpot", tpots)):
        found |= {
            f"mean_{name}_ms": float(np.mean(values)) * 1e3,
            f"median_{name}_ms": float(np.median(values)) * 1e3,
            f"p99_{name}_ms": float(np.percentile(values, 99)) * 1e3,
        }
    totals = {f"total_{side}_tokens": sum(seen[f"{side}_lens"]) for side in ("input", "output")}
    return found | totals


def as_sglang(seen: dict[str, Any], *, detailed: bool, longest: int, most: int) -> dict[str, Any]:
    own = {
        "backend": "sglang-oai", "dataset_name": "random", "request_rate": float("inf"),
        "random_input_len": longest, "random_output_len": most, "random_range_ratio": 0.0,
        "accept_length": None,
    }  # fmt: skip
    kept = {name: value for name, value in seen.items() if detailed or name not in _DETAILS}
    kept.pop("start_times", None)
    return own | summed(seen) | kept | ({"errors": [""] * len(seen["ttfts"])} if detailed else {})


def as_vllm(seen: dict[str, Any], *, detailed: bool) -> dict[str, Any]:
    own = {"endpoint_type": "openai-comp", "num_prompts": seen["completed"], "request_rate": "inf"}
    kept = {name: value for name, value in seen.items() if detailed or name not in _DETAILS}
    return own | summed(seen) | kept


def write_lines(path: Path, documents: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in documents))
    return path
