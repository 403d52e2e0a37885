"""Decode steps captured as graphs, one for each batch size, and replayed with other numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dsv4kv.bench.serve import operations as op
from dsv4kv.bench.serve.inputs import InputBank, StepInputs
from dsv4kv.cache.layers import LayerCache
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.cache.step import Step
from dsv4kv.cache.tables import DeviceTables
from dsv4kv.errors import CacheError
from dsv4kv.ops.cuda.launch import OneStream, dependent_launches, foresee
from dsv4kv.ops.cuda.launch import run as launch
from dsv4kv.ops.launches import KernelModule
from dsv4kv.ops.launches.pages import plan_completed

Replay = Callable[[], None]
"""Does captured work again, on the current stream."""

Capture = Callable[[Callable[[], None]], Replay]
"""Calls a function to warm up, then again to capture what it launches."""


@dataclass(frozen=True)
class DecodeGraph:
    """A decode step of at most ``requests`` requests."""

    requests: int  # batch size it was captured for
    replay: Replay
    shown: tuple[op.Call, ...]  # the last read into each output


class DecodeGraphs:
    """Captured decode steps of every batch size, over memory that never moves."""

    def __init__(
        self,
        layers: Sequence[LayerCache],
        tables: DeviceTables,
        inputs: InputBank,
        capture: Capture,
        outputs: op.Outputs,
        *,
        most_requests: int,
        tokens_each: int,
        longest_tokens: int,
        dependent: bool = False,
    ) -> None:
        """Capture all of them, with data of the shapes that steps will have.

        ``capture`` makes the graphs, which share one pool of memory; nothing else may let
        ``outputs`` grow. ``tokens_each``: of a request, one and drafts. ``dependent``: a kernel is
        set up while the one before it still runs.
        """
        self._tables, self._dependent, self._stream = tables, dependent, OneStream()
        self._outputs, self._longest_tokens = outputs, longest_tokens
        engine, tokens = inputs.asks is not None, most_requests * tokens_each
        self._work = [(e, op.decode_operations(e, fused=True, engine=engine)) for e in layers]
        device = inputs.window.device
        groups = [layer.group for layer in layers if layer.group is not None]
        self._step = Step.room(groups, most_requests, tokens_each, device)
        nothing = torch.full(
            (most_requests, outputs.index_topk), -1, dtype=torch.int32, device=device
        )
        gathered = [] if engine else op.selecting_ratios(layers)
        topk = {ratio: nothing.clone() for ratio in gathered}
        self._inputs = _any_inputs(inputs, tokens, topk)
        # largest first: all there may be, and the powers of two below
        powers = (1 << i for i in reversed(range((most_requests - 1).bit_length())))
        self._graphs = [self._capture(capture, size) for size in (most_requests, *powers)]

    def graph_for(self, requests: int) -> DecodeGraph:
        """The smallest graph for this number of requests; raises ``CacheError``."""
        for graph in reversed(self._graphs):
            if requests <= graph.requests:
                return graph
        raise CacheError(
            f"a batch of {requests} requests is beyond the largest captured, "
            f"{self._graphs[0].requests}: raise workload.concurrency, or set workload.decode to "
            "eager. Nothing was launched."
        )

    def load(self, inputs: StepInputs) -> None:
        """Put the step's data where the graphs read it."""
        for target, source in zip(self._inputs.tensors(), inputs.tensors(), strict=True):
            target[: len(source)].copy_(source)

    def replay(self, graph: DecodeGraph, step: Step) -> None:
        """Run a step: its numbers in one transfer, then the graph; always on one stream."""
        self._stream.check(self._inputs.window.device)
        self._step.fill(step)
        graph.replay()

    def _capture(self, capture: Capture, requests: int) -> DecodeGraph:
        self._step.fill(None)  # so that warming up does not touch the cache
        view = self._step.first(requests)
        tokens = len(view.token_slots)
        topk = {ratio: chosen[:requests] for ratio, chosen in self._inputs.topk.items()}
        inputs = replace(self._inputs.of_tokens(lambda rows: rows[:tokens]), topk=topk)
        last: dict[str, op.Call] = {}

        def show(call: op.Call) -> None:
            last[call.name] = call

        def run() -> None:
            _find_completed(self._tables, view)
            settings = op.Run(self._outputs, self._longest_tokens, show=show)
            op.run_layers(self._work, view, inputs, settings)

        with dependent_launches(self._dependent):
            replay = capture(run)
        return DecodeGraph(requests, replay, tuple(last.values()))


def _any_inputs(inputs: InputBank, tokens: int, topk: dict[int, Tensor]) -> StepInputs:
    first = torch.zeros(tokens, dtype=torch.int64)
    return inputs.take(first.to(inputs.window.device), topk, first)


def _find_completed(tables: DeviceTables, step: Step) -> None:
    for (table, ratio, per_block), entries in step.families.items():
        numbers = step.token_slots, step.positions, entries
        launch(plan_completed(tables.cells[table], ratio, per_block, *numbers))


def foresee_modules(
    layers: Sequence[LayerCache], manager: KVCacheManager, inputs: InputBank
) -> list[KernelModule]:
    """Modules that chunks and decode steps will launch, by a step that launches nothing."""
    device, plan, engine = manager.device, manager.plan, inputs.asks is not None
    step = Step.room(manager.entry_groups, 1, 1, device)
    topk = torch.full((1, plan.config.index_topk), -1, dtype=torch.int32, device=device)
    taken = _any_inputs(inputs, 1, dict.fromkeys(op.selecting_ratios(layers), topk))
    outputs = op.Outputs(device, plan.config.index_topk, plan.config.window_tokens)
    run, tables = op.Run(outputs, plan.schemas[0].block_tokens), manager.device_tables
    with foresee() as launches:
        op.run_layers([(e, op.prefill_operations(e)) for e in layers], step, taken, run)
        decoding = [(e, op.all_decode_operations(e, engine=engine)) for e in layers]
        op.run_layers(decoding, step, taken, run)
        for layer in layers:  # what fills a cache that is measured
            for part in map(layer.part, layer.parts):
                values = torch.empty(1, part.store.layout.format.dims, dtype=torch.bfloat16)
                nothing = {"values": values.to(device), "entries": step.token_slots}
                layer.backend.entry_insert(store=part.store, **nothing)
        if tables is not None:
            _find_completed(tables, step)
    return list(dict.fromkeys(launch.module for launch in launches))


def cuda_capture() -> Capture:
    """Captures in CUDA graphs that share one memory pool: capture the largest first."""
    pool: list[Any] = [None]

    def capture(run: Callable[[], None]) -> Replay:
        # The first call loads kernels and makes torch's allocations, which a capture must not; on
        # a stream of its own, as torch asks for.
        make_stream: Any = torch.cuda.Stream
        side = make_stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph: Any = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool[0]):
            run()
        pool[0] = graph.pool()
        replay: Replay = graph.replay
        return replay

    return capture
