"""Preparing steps and releasing requests of DeepSeek-V4-Pro: 61 layers, 128-token blocks."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dsv4kv.cache.manager import KVCacheManager, prepare_forward
from dsv4kv.model.plan import plan_cache
from dsv4kv.model.presets import load_model
from dsv4kv.model.schedule import build_schedule
from dsv4kv.model.schema import Sharing
from tests.benchmarks.medians import PLAIN, Measure
from tests.systems.plain import PlainCache

PRO = load_model("v4-pro")
CONTEXT = 16_384
PROMPT = 8_192
DECODE_ROUNDS = 200
Positions = NDArray[np.int64]
BATCHES = pytest.mark.parametrize("batch", [1, 32, 256])
OURS: list[tuple[str, Sharing]] = [("ours", "model"), ("ours, a table per layer", "layer")]
BY_SHARING = pytest.mark.parametrize(("name", "sharing"), OURS, ids=["shared", "per_layer"])


class Ours:
    """Our bookkeeping with ``batch`` admitted requests."""

    def __init__(self, batch: int, sharing: Sharing) -> None:
        plan = plan_cache(PRO, max_context_tokens=CONTEXT, num_slots=batch, sharing=sharing)
        self.manager = KVCacheManager(plan, data=False)
        self.slots = np.array([self.manager.admit_request() for _ in range(batch)])

    def prepare(self, before: Positions, after: Positions) -> None:
        prepare_forward(self.manager, self.slots, before, after)


class Plain:
    """The re-statement with as many slots."""

    def __init__(self, batch: int) -> None:
        ratios = [spec.ratio for spec in build_schedule(PRO)]
        width = CONTEXT // 128
        self.cache = PlainCache(ratios, batch * width, batch, width)
        self.slots = torch.arange(batch)

    def prepare(self, before: Positions, after: Positions) -> None:
        tensors = (torch.from_numpy(before), torch.from_numpy(after))
        self.cache.prepare_forward(self.slots, *tensors)

    def clear(self) -> None:
        for slot in self.slots.tolist():
            self.cache.release_request(slot)


def first_positions(batch: int) -> Positions:
    """Requests in the middle of their answers: some cross a block boundary in every step."""
    return np.random.default_rng(0).integers(PROMPT, PROMPT + 1024, batch)


def decode(prepare: Callable[[Positions, Positions], None], batch: int) -> Callable[[], None]:
    """A function that prepares the next decode step each time it is called."""
    position = first_positions(batch)
    after = position + 1
    prepare(np.zeros_like(position), position)

    def step() -> None:
        prepare(position, after)
        np.add(position, 1, out=position)
        np.add(after, 1, out=after)

    return step


@BATCHES
@BY_SHARING
def test_decode(measure: Measure, name: str, sharing: Sharing, batch: int) -> None:
    step = decode(Ours(batch, sharing).prepare, batch)
    measure(f"prepare a decode step, batch {batch}", name, step, rounds=DECODE_ROUNDS)


@BATCHES
def test_decode_plain(measure: Measure, batch: int) -> None:
    step = decode(Plain(batch).prepare, batch)
    rounds = max(5, DECODE_ROUNDS // batch)
    measure(f"prepare a decode step, batch {batch}", PLAIN, step, rounds=rounds)


@BY_SHARING
def test_prefill(measure: Measure, name: str, sharing: Sharing) -> None:
    ours, none, prompt = Ours(256, sharing), np.zeros(256, np.int64), np.full(256, PROMPT)
    measure(
        "prepare prompts of 8,192 tokens, batch 256",
        name,
        lambda: ours.prepare(none, prompt),
        setup=lambda: ours.prepare(prompt, none),
        rounds=20,
    )
    assert ours.manager.tables[0].held.tolist() == [PROMPT // 128] * 256


def test_prefill_plain(measure: Measure) -> None:
    plain, none, prompt = Plain(256), np.zeros(256, np.int64), np.full(256, PROMPT)
    measure(
        "prepare prompts of 8,192 tokens, batch 256",
        PLAIN,
        lambda: plain.prepare(none, prompt),
        setup=plain.clear,
        rounds=3,
    )
    assert all(layer.held.tolist() == [PROMPT // 128] * 256 for layer in plain.cache.layers)


@BY_SHARING
def test_release(measure: Measure, name: str, sharing: Sharing) -> None:
    ours = Ours(8, sharing)
    ours.prepare(np.zeros(8, np.int64), np.full(8, PROMPT))

    def admit_again() -> None:
        if ours.manager.num_free_slots:
            ours.manager.admit_request()
        prepare_forward(ours.manager, [0], [0], [PROMPT])

    measure(
        "release a request of 64 blocks x 61 layers",
        name,
        lambda: ours.manager.release_request(0, ours.manager.generation(0)),
        setup=admit_again,
        rounds=500,
    )
    assert ours.manager.tables[0].held[0] == 0


def test_release_plain(measure: Measure) -> None:
    plain = Plain(8)
    one, none, prompt = torch.tensor([0]), torch.tensor([0]), torch.tensor([PROMPT])
    measure(
        "release a request of 64 blocks x 61 layers",
        PLAIN,
        lambda: plain.cache.release_request(0),
        setup=lambda: plain.cache.prepare_forward(one, none, prompt),
        rounds=50,
    )
    assert all(layer.held[0] == 0 for layer in plain.cache.layers)


@pytest.mark.parametrize("sharing", ["type", "layer"])
def test_the_re_statement_holds_the_blocks_that_ours_does(sharing: Sharing) -> None:
    """What is compared must be the same work."""
    ours, plain = Ours(4, sharing), Plain(4)
    layers = [spec.layer_idx for spec in build_schedule(PRO)]
    before = np.zeros(4, np.int64)
    for after in ([5, 128, 129, 1000], [6, 256, 130, 1001], [900, 256, 4000, 1124]):
        for side in (ours, plain):
            side.prepare(before, np.array(after))
        before = np.array(after)
        for layer, other in zip(layers, plain.cache.layers, strict=True):
            table = next(t for t in ours.manager.tables if layer in t.group.layers)
            assert table.held.tolist() == other.held.tolist()
            assert torch.equal(table.view(layer) >= 0, other.table >= 0)
