"""Arbitrary serving situations without data, and a full log of what the loop does to the cache."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from unittest.mock import patch

from hypothesis import strategies as st

from dsv4kv.bench.serve.executor import Recorder
from dsv4kv.bench.serve.loop import ServingLoop
from dsv4kv.cache.manager import KVCacheManager, prepare_forward
from dsv4kv.config.bench import BenchConfig
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.plan import Sharing, plan_cache
from dsv4kv.model.presets import load_model
from dsv4kv.runs.schema import Totals
from tests.bench.serve.serving import make_requests, serving

LAYERS = (0, 2, 3, 4, 5)  # SWA, CSA, HCA, CSA, HCA of V4-Flash


@dataclass(frozen=True)
class Scene:
    """Requests of (input, output) tokens, how they are served, and over which cache."""

    lengths: list[tuple[int, int]]
    config: BenchConfig
    max_context_tokens: int = 512
    num_blocks: int | None = None
    sharing: Sharing = "model"
    block_tokens: int = 128

    def outputs(self, output_tokens: int) -> int:
        """Output tokens of a request once cut."""
        limit = self.config.workload.max_output_tokens
        return output_tokens if limit is None else min(output_tokens, limit)

    def fed(self, length: tuple[int, int]) -> int:
        """Tokens of a request that enter the cache: its last output does not."""
        return length[0] + max(0, self.outputs(length[1]) - 1)

    def fits(self, length: tuple[int, int]) -> bool:
        """Whether the request could be served alone."""
        return self.fed(length) <= self.max_context_tokens and all(
            blocks <= pool for blocks, pool in zip(self.blocks(length), self.pools(), strict=True)
        )

    @property
    def served(self) -> list[tuple[int, int]]:
        """Requests that can be served, in order."""
        return [length for length in self.lengths if self.fits(length)]

    def blocks(self, length: tuple[int, int]) -> list[int]:
        """Blocks the request needs of every table at its end."""
        return [self._blocks(self.fed(length), ratio) for ratio in self._ratios()]

    def pools(self) -> list[int]:
        """Blocks of every table."""
        full = (max(1, self._blocks(self.max_context_tokens, ratio)) for ratio in self._ratios())
        return [self.num_blocks or blocks * self.config.workload.concurrency for blocks in full]

    def _ratios(self) -> tuple[int, ...]:
        return (4,) if self.sharing == "model" else (4, 128)

    def _blocks(self, tokens: int, ratio: int) -> int:
        entries = tokens // ratio
        return -(-entries * ratio // self.block_tokens)


@st.composite
def scenes(draw: st.DrawFn, max_draft_tokens: int = 3) -> Scene:
    """Scenes whose requests fit, wait, or are too large."""
    size = draw(st.integers(0, 8))
    length = st.tuples(st.integers(1, 400), st.integers(0, 30))
    config = serving(
        concurrency=draw(st.integers(1, 4)),
        step_tokens=draw(st.integers(8, 300)),
        draft_tokens=draw(st.integers(0, max_draft_tokens)),
        acceptance=draw(st.floats(0, 1)),
        max_output_tokens=draw(st.none() | st.integers(1, 20)),
        seed=draw(st.integers(0, 9)),
    )
    return Scene(
        lengths=draw(st.lists(length, min_size=size, max_size=size)),
        config=config,
        max_context_tokens=draw(st.integers(100, 500)),
        num_blocks=draw(st.none() | st.integers(1, 6)),
        sharing=draw(st.sampled_from(("model", "type", "layer"))),
        block_tokens=draw(st.sampled_from((128, 256))),
    )


@dataclass
class Step:
    """Tokens before and after a step, by the number of the request in order of admission."""

    before: dict[int, int] = field(default_factory=dict)
    after: dict[int, int] = field(default_factory=dict)
    kept: dict[int, int] = field(default_factory=dict)
    running: int = 0
    held: int = 0

    def take(self, request: int) -> int:
        """Tokens the request took."""
        return self.after[request] - self.before[request]


@dataclass
class Log:
    """All steps of a run, and the cache they ran on."""

    manager: KVCacheManager
    totals: Totals = field(init=False)
    steps: list[Step] = field(default_factory=list)
    progress: list[int] = field(default_factory=list)
    admitted: list[int] = field(default_factory=list)
    released: list[int] = field(default_factory=list)

    def tokens(self) -> dict[int, list[tuple[int, int]]]:
        """(before, kept) of every step of every request."""
        moves = defaultdict(list)
        for step in self.steps:
            for request, before in step.before.items():
                moves[request].append((before, step.kept[request]))
        return moves


def run(scene: Scene) -> Log:
    """Serve a scene and log every call the loop makes to its cache."""
    plan = plan_cache(
        _model(),
        layers=LAYERS,
        max_context_tokens=scene.max_context_tokens,
        num_slots=scene.config.workload.concurrency,
        num_blocks=scene.num_blocks,
        block_tokens=scene.block_tokens,
        sharing=scene.sharing,
        draft_tokens=scene.config.workload.speculative.draft_tokens,
    )
    log = Log(KVCacheManager(plan, data=False))
    requests = make_requests(*scene.lengths)
    with _watched(log):
        loop = ServingLoop(log.manager, requests, scene.config, Recorder())
        log.progress = list(loop.steps())
        log.totals = loop.totals
    return log


@contextmanager
def _watched(log: Log) -> Iterator[None]:
    owner: dict[int, int] = {}  # slot -> number of its request
    manager = log.manager
    admit, release = manager.admit_request, manager.release_request

    def admit_request() -> int:
        slot = admit()
        owner[slot] = len(log.admitted)
        log.admitted.append(owner[slot])
        return slot

    def release_request(slot: int, generation: int) -> None:
        release(slot, generation)
        log.released.append(owner.pop(slot))

    def prepare(cache: KVCacheManager, slots: Any, before: Any, after: Any) -> None:
        prepare_forward(cache, slots, before, after)
        counts = {owner[s]: (b, a) for s, b, a in zip(slots, before, after, strict=True)}
        if any(a < b for b, a in counts.values()):  # rejected drafts go back
            log.steps[-1].kept |= {request: int(a) for request, (_, a) in counts.items()}
            return
        step = Step(running=len(owner), held=cache.num_held_blocks)
        step.before = {request: int(b) for request, (b, _) in counts.items()}
        step.after = {request: int(a) for request, (_, a) in counts.items()}
        step.kept = dict(step.after)
        log.steps.append(step)

    with (
        patch.object(manager, "admit_request", admit_request),
        patch.object(manager, "release_request", release_request),
        patch("dsv4kv.bench.serve.loop.prepare_forward", prepare),
    ):
        yield


@cache
def _model() -> DSV4Config:
    return load_model("v4-flash")
