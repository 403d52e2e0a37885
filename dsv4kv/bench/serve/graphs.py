"""Decode steps captured as graphs, one for each batch size, and replayed with other numbers."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dsv4kv.bench.device import Capture, Replay
from dsv4kv.bench.serve import executor as ex
from dsv4kv.bench.serve.inputs import InputBank, StepInputs
from dsv4kv.cache.manager import DeviceTables, KVCacheManager
from dsv4kv.cache.step import Step
from dsv4kv.ops.cuda.launch import OneStream, dependent_launches, foresee
from dsv4kv.ops.cuda.launch import run as launch
from dsv4kv.ops.launches import KernelModule
from dsv4kv.ops.launches.pages import plan_completed


@dataclass(frozen=True)
class DecodeGraph:
    """A decode step of at most ``requests`` requests."""

    requests: int  # batch size it was captured for
    replay: Replay
    shown: tuple[ex.Call, ...]  # the last read into each output


class DecodeGraphs:
    """Captured decode steps of every batch size, over memory that never moves."""

    def __init__(
        self,
        executor: ex.StepExecutor,
        manager: KVCacheManager,
        capture: Capture,
        most_requests: int,
        *,
        dependent: bool,
    ) -> None:
        """Capture all of them, with data of the shapes that steps will have.

        ``capture`` makes the graphs, which share one pool of memory and have outputs of their own,
        that nothing else lets grow. ``dependent``: a kernel is set up while the one before it
        still runs.
        """
        device, plan, engine = executor.device, manager.plan, executor.in_place
        assert manager.device_tables is not None
        self._tables, self._dependent, self._stream = manager.device_tables, dependent, OneStream()
        self._outputs = executor.outputs.another()
        self._longest_tokens = plan.max_context_tokens
        layers, tokens_each = executor.layers, 1 + plan.draft_tokens
        self._work = [(e, ex.decode_operations(e, fused=True, engine=engine)) for e in layers]
        groups = [layer.group for layer in layers if layer.group is not None]
        self._step = Step.room(groups, most_requests, tokens_each, device)
        gathered = [] if engine else ex.selecting_ratios(layers)
        topk = {ratio: _no_entries(manager, most_requests) for ratio in gathered}
        self._inputs = _any_inputs(executor.inputs, most_requests * tokens_each, topk)
        # largest first: all there may be, and the powers of two below
        powers = (1 << i for i in reversed(range((most_requests - 1).bit_length())))
        self._graphs = [self._capture(capture, size) for size in (most_requests, *powers)]

    def graph_for(self, requests: int) -> DecodeGraph:
        """The smallest graph for this number of requests, at most those that run at once."""
        return next(graph for graph in reversed(self._graphs) if requests <= graph.requests)

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
        last: dict[str, ex.Call] = {}

        def show(call: ex.Call) -> None:
            last[call.name] = call

        def run() -> None:
            _find_completed(self._tables, view)
            settings = ex.Run(self._outputs, self._longest_tokens, show=show)
            ex.run_layers(self._work, view, inputs, settings)

        with dependent_launches(self._dependent):
            replay = capture(run)
        return DecodeGraph(requests, replay, tuple(last.values()))


def _any_inputs(inputs: InputBank, tokens: int, topk: dict[int, Tensor]) -> StepInputs:
    first = torch.zeros(tokens, dtype=torch.int64)
    return inputs.take(first.to(inputs.every.window.device), topk, first)


def _find_completed(tables: DeviceTables, step: Step) -> None:
    for (table, ratio, per_block), entries in step.families.items():
        numbers = step.token_slots, step.positions, entries
        launch(plan_completed(tables.cells[table], ratio, per_block, *numbers))


def _no_entries(manager: KVCacheManager, requests: int) -> Tensor:
    size = requests, manager.plan.config.index_topk
    return torch.full(size, -1, dtype=torch.int32, device=manager.device)


def foresee_modules(executor: ex.StepExecutor, manager: KVCacheManager) -> list[KernelModule]:
    """Modules that chunks and decode steps will launch, by a step that launches nothing."""
    layers, device, tables = executor.layers, manager.device, manager.device_tables
    step = Step.room(manager.entry_groups, 1, 1, device)
    topk = dict.fromkeys(ex.selecting_ratios(layers), _no_entries(manager, 1))
    taken = _any_inputs(executor.inputs, 1, topk)
    run = ex.Run(executor.outputs.another(), manager.plan.schemas[0].block_tokens)
    with foresee() as launches:
        ex.run_layers([(e, ex.prefill_operations(e)) for e in layers], step, taken, run)
        decoding = [(e, ex.all_decode_operations(e, engine=executor.in_place)) for e in layers]
        ex.run_layers(decoding, step, taken, run)
        for layer in layers:  # what fills a cache that is measured
            for part in map(layer.part, layer.parts):
                values = torch.empty(1, part.store.layout.format.dims, dtype=torch.bfloat16)
                nothing = {"values": values.to(device), "entries": step.token_slots}
                layer.backend.entry_insert(store=part.store, **nothing)
        if tables is not None:
            _find_completed(tables, step)
    return list(dict.fromkeys(launch.module for launch in launches))
