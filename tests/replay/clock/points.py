"""Public points of SGLang's cookbook, replayed: what took time, request by request.

The workload is ``sglang.bench_serving``'s: closed loop, lengths uniform 1..8192 in and 1..1024
out, drawn with numpy's seed 1; of one point all are 8192 and 1024 (``FIXED``). Acceptance is not
published: 2.73 tokens a step with three drafts and 1.855 with one are the middle of public values.
"""

import json
from dataclasses import dataclass
from functools import cache
from operator import add
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from dsv4kv.budget.gpus import Gpu
from dsv4kv.config.load import load_config
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.core.clock import COUNTS, Counts, LinearTimes
from dsv4kv.core.served import Served
from dsv4kv.replay.build import build_replay
from dsv4kv.replay.clock.steps import Coefficients, ModelTimes, find_coefficients
from dsv4kv.traces.request import Request

DATA = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "serving"
ABSENT = "the cookbook's points are not on this machine"
ACCEPTANCE = {0: 0.0, 1: 0.855, 3: 0.75}
"""Probability of a draft whose forerunners were accepted: 1.855 and 2.73 tokens a step."""
FIXED = {"b300.pro.fp4.high-throughput.c4096"}
"""All 4,096 come at once and are served as they come, so half of them have their first token half
way through the run. Lengths that are drawn make it 535 s long by its throughput, and 481 s are
published: 90 %. Lengths that are fixed make it 1,064 s: 45 %."""
_DRAFTS = "--speculative-algorithm EAGLE --speculative-eagle-topk 1 --speculative-num-steps"
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Point:
    """One published run."""

    row: dict[str, Any]  # as it was published

    @property
    def name(self) -> str:
        return str(self.row["cell"])

    @property
    def gpu(self) -> str:
        return str(self.row["gpu"])

    @property
    def model(self) -> str:
        return "v4-flash" if "Flash" in self.row["model"] else "v4-pro"

    @property
    def measured(self) -> Floats:
        """TTFT and TPOT, medians in ms, and tokens a second of a GPU, in and out."""
        return np.array([self.row[key] for key in ("ttft_ms", "tpot_ms", "tok_s_gpu")])

    @property
    def requests(self) -> list[Request]:
        draw = np.random.RandomState(1)
        count = self.row["num_prompts"]
        if self.name in FIXED:
            return [Request(0.0, 8192, 1024, (), 0) for _ in range(count)]
        inputs, outputs = (draw.randint(1, most, count) for most in (8193, 1025))
        return [
            Request(0.0, int(given), int(made), (), 0)
            for given, made in zip(inputs, outputs, strict=True)
        ]

    @property
    def flags(self) -> str:
        """SGLang's, as far as they were published."""
        row, drafts = self.row, self.row["mtp"]
        given = {
            "--tp": row["gpus"],
            "--dp": row["dp"] if row["dp"] > 1 else None,
            "--chunked-prefill-size": row["chunked_prefill"],
            "--mem-fraction-static": row["mem_fraction"],
            "--max-running-requests": row["max_running_requests"],
            "--swa-full-tokens-ratio": 0.075 if row["mem_fraction"] == 0.835 else None,
        }
        words = [f"{flag} {value}" for flag, value in given.items() if value is not None]
        if row["dp"] > 1:
            words.append(f"--enable-dp-attention --ep-size {row['gpus']}")
        if row["a2a"]:
            words.append(f"--moe-a2a-backend {row['a2a']}")
        if row["chunked_prefill"] == 65_536:
            words.append("--enable-prefill-delayer")
        if drafts:
            words.append(f"{_DRAFTS} {drafts} --speculative-num-draft-tokens {drafts + 1}")
        return " ".join(words)

    @property
    def config(self) -> ReplayConfig:
        """The run as a replay."""
        row = self.row
        chosen = {
            "model.preset": self.model,
            "cache.max_context_tokens": 16_384,
            "server.engine": "sglang:0.5.15",
            "server.command": self.flags,
            "workload.arrivals": "closed",
            "workload.concurrency": row["concurrency"],
            "scheduler.speculative.acceptance": ACCEPTANCE[row["mtp"]],
            "cost.gpu": self.gpu,
            "cost.gpus": row["gpus"],
            "cost.experts": row["quant"],
        }
        texts = [f"{key}={value}" for key, value in chosen.items()]
        return load_config("default", texts, ReplayConfig).config


@cache
def points() -> list[Point]:
    """All of them; empty where they are not."""
    path = DATA / "sglang_cookbook.jsonl"
    if not path.is_file():
        return []
    return [Point(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


@dataclass(frozen=True)
class Spent:
    """What took time, without a client."""

    steps: Floats  # float64[steps, COUNTS]: what each takes, ``prompt_layers`` those of its chunks
    # int64[requests, 3]: steps taken when a request came, had its first token, ended
    moments: NDArray[np.int64]
    further: Floats  # float64[requests]: tokens after the first
    tokens: int  # in and out
    times: ModelTimes  # of its deployment

    def seconds(self, rates: Floats) -> tuple[Floats, Floats, float]:
        """Times to the first token and of a further one, and of the whole run.

        A chunk is launched or computed, whichever takes longer: see ``ModelTimes.count``.
        """
        launch = np.array([name == "prompt_layers" for name in COUNTS])
        each = np.maximum(self.steps @ (rates * ~launch), self.steps @ (rates * launch))
        at = np.concatenate([[0.0], each.cumsum()])[self.moments]
        return at[:, 1] - at[:, 0], (at[:, 2] - at[:, 1]) / self.further, float(each.sum())


class _Watch:
    """Takes every step."""

    def __init__(self, timer: LinearTimes) -> None:
        self.steps: list[Counts] = []
        self.copy_bytes_per_s, self.seconds = timer.copy_bytes_per_s, timer.seconds
        self._timer = timer

    def step(
        self, rows: int, tokens: int, contexts: int, prompt: int, fullest: int, prefix: int
    ) -> Counts:
        self.steps.append(self._timer.step(rows, tokens, contexts, prompt, fullest, prefix))
        return self.steps[-1]

    def decode(self, counts: Counts, rows: int, contexts: int, *rest: float) -> tuple[int, Counts]:
        """One step, so that the moment of each is known."""
        return 1, tuple(map(add, counts, self.step(rows, rows, contexts, 0, 0, 0)))


def count_point(point: Point) -> Spent:
    """Replay a point and count; in a closed loop the order of things depends on no rate."""
    with patch("dsv4kv.replay.clock.steps.find_coefficients", _launched_at_once):
        made = build_replay(point.config, point.requests)
    made.scheduler._arrivals._client_s = 0.0  # type: ignore[attr-defined]
    watch, scheduler, taken = _Watch(made.times.timer), made.scheduler, {0.0: 0}
    scheduler.clock._timer = cast(LinearTimes, watch)
    scheduler.ended = list[Served]()
    while scheduler.turn():
        taken[scheduler.clock.now_s] = len(watch.steps)
    assert not made.outcome.rejected
    rows = [each for each in scheduler.ended if each.output_tokens > 1]
    spans = [(each.arrival_s, each.first_token_s, each.finished_s) for each in rows]
    moments = np.array([[taken[at or 0.0] for at in span] for span in spans])
    steps = np.array(watch.steps, dtype=float)
    decodes, layers = steps[:, COUNTS.index("decode_layers")], steps.max(axis=0)[0]
    steps[:, COUNTS.index("prompt_layers")] = layers * (decodes == 0)
    further = np.array([row.output_tokens - 1 for row in rows], dtype=float)
    steps, moments = _joined(steps, moments)
    tokens = sum(request.total_tokens + 1 for request in made.requests)
    return Spent(steps, moments, further, tokens, made.times)


def _joined(steps: Floats, moments: NDArray[np.int64]) -> tuple[Floats, NDArray[np.int64]]:
    """The same with decode steps summed up between moments: these take what is computed."""
    prompts = np.flatnonzero(steps[:, COUNTS.index("prompt_layers")])
    ends = np.unique(np.concatenate([[0, len(steps)], moments.ravel(), prompts, prompts + 1]))
    return np.add.reduceat(steps, ends[:-1]), np.searchsorted(ends, moments)


def _launched_at_once(gpu: Gpu, experts: str) -> Coefficients:
    """Coefficients by which every chunk takes as long as it is computed, so that is counted."""
    return find_coefficients(gpu, experts).model_copy(update={"prompt_layer_us": 0.0})
