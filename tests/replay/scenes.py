"""Small replays: a model of three layers, a trace of a few requests, a pool that is soon full."""

import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dsv4kv.config.load import load_config
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.core.scheduler import Scheduler
from dsv4kv.core.served import Served
from dsv4kv.replay.build import Replay, build_replay
from dsv4kv.replay.fleet.run import Fleet
from dsv4kv.traces.request import Request

BLOCK = 128
CLOCK = Path(__file__).parent / "data" / "clock.yaml"
"""Times of steps without a client's between an answer and the next request."""
SMALL = {
    "model.preset": "v4-flash",
    "model.layers": "[0, 2, 3]",
    "cache.memory_bytes": "null",
    "cache.num_blocks": 64,
    "scheduler.max_requests": 8,
    "scheduler.step_tokens": 512,
    "cost.calibration": str(CLOCK),
}


def small_config(**settings: Any) -> ReplayConfig:
    """The small configuration; ``prefix__policy="lfu"`` sets ``prefix.policy``."""
    chosen = SMALL | {name.replace("__", "."): value for name, value in settings.items()}
    texts = [f"{key}={_yaml(value)}" for key, value in chosen.items()]
    return load_config("default", texts, ReplayConfig).config


def _yaml(value: Any) -> str:
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def request(
    ids: Iterable[int] = (),
    *,
    at: float = 0.0,
    input_tokens: int | None = None,
    output: int = 4,
    block: int = BLOCK,
) -> Request:
    """A request whose prompt has these ids, whole blocks unless its length is given."""
    hashes = tuple(ids)
    length = input_tokens if input_tokens is not None else len(hashes) * block
    return Request(at, length, output, hashes, block if hashes else 0)


def replay(requests: Sequence[Request], **settings: Any) -> Replay:
    """Build and run a small replay."""
    made = build_replay(small_config(**settings), requests)
    made.scheduler.run()
    return made


SHORT = (0, 1, 3, 40, 130)
LONG = (1, 130, 400, 700)


def random_requests(
    seed: int,
    count: int,
    longest_blocks: int = 12,
    outputs: Sequence[int] = SHORT,
    block: int = BLOCK,
) -> list[Request]:
    """Requests that begin like one another: paths through a small tree of ids."""
    draw = random.Random(seed)
    requests, now = [], 0.0
    for _ in range(count):
        path, node = [], 0
        for depth in range(draw.randint(1, longest_blocks)):
            node = node * 3 + draw.randint(1, 2) if depth < 6 else node + 10**9
            path.append(node)
        tokens = len(path) * block - draw.choice([0, 0, 1, 60, 127])
        output = draw.choice(outputs)
        requests.append(request(path, at=now, input_tokens=tokens, output=output, block=block))
        now += draw.choice([0.0, 0.001, 0.05, 2.0])
    return requests


def everyone(scheduler: Scheduler) -> list[Served]:
    """All requests that hold blocks."""
    return [*scheduler.decoding, *scheduler.prefilling, *scheduler.paused]


def run_fleet(config: ReplayConfig, requests: Sequence[Request]) -> Fleet:
    fleet = Fleet(config, requests)
    for _ in fleet.run():
        pass
    return fleet
