"""How long launches should take on a GPU: planned without one, by a model of what limits them.

A step is planned by the code that runs it, on tensors without data. The model: bytes at the rate
of a copy, products at the rate of a kernel's instructions and in whole tiles, loads that wait for
each other, the start of a kernel and the gap before it. Its rates are fitted to times of an H100
(results/h200/NOTES.md); other GPUs' rates follow from their multiprocessors, clocks and copies.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch

from dsv4kv.bench.build import build_drive, build_manager, plan_from
from dsv4kv.bench.device import CudaDevice, Replay
from dsv4kv.bench.serve.executor import Recorder, decode_operations, name_of
from dsv4kv.config.bench import BenchConfig
from dsv4kv.errors import CudaUnavailable
from dsv4kv.ops.cuda.launch import foresee
from dsv4kv.ops.launches import Launch
from dsv4kv.ops.registry import resolve_backend
from dsv4kv.ops.spec import OPERATIONS, Backend, choose


@dataclass(frozen=True)
class Card:
    """What a GPU gives: of its datasheet, or measured."""

    name: str
    architecture: str  # what its kernels are compiled for
    multiprocessors: int
    clock_ghz: float
    copy_gbps: float  # bytes read and written

    @property
    def flops(self) -> float:
        """Of bf16 products, a nanosecond, at most."""
        each = _FLOPS_A_CYCLE.get(self.architecture, _FLOPS_A_CYCLE["sm_80"])
        return each * self.multiprocessors * self.clock_ghz

    def roofline_ns(self, moved: int, flops: int = 0) -> float:
        return max(moved / self.copy_gbps, flops / self.flops)


# Dense bf16 of a multiprocessor, datasheets: A100 312, H100 989, B200 2250, RTX 5090 210 TFLOPS.
_FLOPS_A_CYCLE = {"sm_80": 2048, "sm_90a": 4096, "sm_100a": 8192, "sm_103a": 8192, "sm_120": 512}

H200 = Card("H200", "sm_90a", 132, 1.75, 3960)
H100 = Card("H100", "sm_90a", 132, 1.75, 2820)


@dataclass(frozen=True)
class Limits:
    """What a multiprocessor does in a cycle in a kernel, and loads that wait for one another."""

    chain: int = 2
    bytes: float = 64
    flops: float = 1024


_ATTEND, _GROUPS = Limits(30, flops=750), Limits(30, flops=1160)
_PAIRS = Limits(30, flops=1740)  # by count: a third of GROUPS' time are waits for decoding
_LIMITS = {
    "gather_topk": Limits(3),
    "gather_all": Limits(3),
    "flush": Limits(3, bytes=20),
    "step_write": Limits(3),
    "index_scores": Limits(27, flops=2330),
    "select_topk": Limits(14, bytes=4.7),  # a row is looked at five times
}
_SHARE = 0.94  # of a copy, for entries that are scattered
_SHOWS = 0.2  # of the smaller of memory and products, which the larger does not hide
_LATENCY_NS, _START_NS = 500.0, 400.0
_GAP_NS = {False: 800.0, True: 400.0}  # by whether a launch is dependent
_FLOPS_OF_A_PAIR = 4 * 512  # of a head and an entry that is attended to


def predict_ns(launches: Sequence[Launch], moved: int, flops: int, card: Card) -> float:
    """Of an operation's launches, in a graph of many such."""
    first = launches[0]
    limits = _limits(first)
    busy = min(first.grid[0] * first.grid[1], card.multiprocessors)
    cycles_ns = busy * card.clock_ghz
    memory = max(moved / (_SHARE * card.copy_gbps), moved / (limits.bytes * cycles_ns))
    products = flops / (limits.flops * cycles_ns)
    if first.kernel == "attend":
        macros = dict(first.module.macros)
        tile = _FLOPS_OF_A_PAIR * macros["DSV_HEADS"] * macros["DSV_TILE"]
        products = -(-flops // (tile * busy)) * tile / (limits.flops * card.clock_ghz)
    waits = sum(_wait_ns(each) for each in launches)
    return max(memory, products) + _SHOWS * min(memory, products) + waits


def _wait_ns(launch: Launch) -> float:
    if launch.kernel == "do_nothing":
        return _GAP_NS[launch.dependent]
    return _GAP_NS[launch.dependent] + _START_NS + _LATENCY_NS * _limits(launch).chain


def _limits(launch: Launch) -> Limits:
    if launch.kernel == "attend":
        groups = _PAIRS if launch.cluster > 1 else _GROUPS
        return groups if launch.module.source == "attend_groups.cuh" else _ATTEND
    return _LIMITS.get(launch.kernel, Limits())


@dataclass(frozen=True)
class Planned:
    """An operation of a step on one layer."""

    name: str  # as in a record; ``tables`` for what prepares the step
    layer_type: str
    launches: tuple[Launch, ...]
    entries: int = 0
    bytes: int = 0
    flops: int = 0

    def ns(self, card: Card) -> float:
        return predict_ns(self.launches, self.bytes, self.flops, card)


def plan_step(config: BenchConfig, card: Card, tokens: int) -> list[Planned]:
    """The graph of a decode step of ``workload.concurrency`` requests of ``tokens`` each.

    Every operation in order, as it would be captured on the card.
    """
    calls: list[tuple[str, int]] = []
    variants = choose(config.ops.variant.model_dump(), card.architecture)
    resolved = resolve_backend("cuda", "cuda", variants)

    with foresee() as launches:

        def note(operation: str, **arguments: Any) -> None:
            calls.append((operation, len(launches)))
            getattr(resolved.backend, operation)(**arguments)

        captured: list[tuple[list[tuple[str, int]], list[Launch]]] = []

        def capture(run: Callable[[], None]) -> Replay:
            calls.clear()
            launches.clear()
            run()
            captured.append((list(calls), list(launches)))
            return run

        names = {name: partial(note, name) for name in OPERATIONS}
        noting = replace(resolved, backend=cast(Backend, SimpleNamespace(**names)))
        device = CudaDevice(
            torch.device("meta"), card.architecture, 1 << 62, 1, object, lambda: capture
        )
        manager = build_manager(config, plan_from(config), device)
        drive = build_drive(config, manager, Recorder(), noting, device)
    executor = drive.executor
    if not captured:
        raise CudaUnavailable("workload.decode is eager: no step is captured, so none is planned.")
    marks, found = captured[0]  # of the largest batch
    after = np.full(config.workload.concurrency, tokens)
    work = executor.work(after, after - 1)
    listed = [
        (name, indexer, layer)
        for layer in executor.layers
        for name, indexer in decode_operations(layer, fused=True, engine=executor.in_place)
    ]
    planned = [Planned("tables", "", (each,)) for each in found[: marks[0][1]]]
    ends = [start for _, start in marks[1:]] + [len(found)]
    for (name, indexer, layer), (called, start), end in zip(listed, marks, ends, strict=True):
        assert name == called
        counted = work.of(name, layer.schema, indexer=indexer)
        kind = layer.schema.layer.attn.value
        planned.append(Planned(name_of(name, indexer), kind, tuple(found[start:end]), *counted))
    return planned
