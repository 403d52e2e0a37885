"""Figures of single operations on a GPU: many calls in one graph, cold and hot.

Cold calls each work on pages of their own, in another layer or under another table: when the
first comes round again, the caches have seen all the others. Nothing is flushed or copied inside
the timed region. Hot calls are one call again and again.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

import torch

from dsv4kv.bench.rehearsal import Stage, draw_stages, fill_pages
from dsv4kv.bench.replay_timing import CallTimer
from dsv4kv.cache.handle import LayerCache, LayerCacheHandle
from dsv4kv.report.record import Operation
from dsv4kv.workload.executor import StepExecutor
from dsv4kv.workload.operations import Call, CallMaker, Outputs, Step, decode_operations
from dsv4kv.workload.work import StepWork

MOST_CALLS, FEWEST_CALLS = 64, 16
_ROTATED_BYTES = 256 << 20  # outputs take turns over so much, five times an H200's L2

_OF_SLOTS = {"window_insert", "state_append", "flush", "gather_window"}
"""Operations on rings and states: other tables give them no other bytes."""


def measure_operations(
    executor: StepExecutor, timer: CallTimer, requests: int, seed: int
) -> list[Operation]:
    """Time every operation of a decode step of ``requests`` requests, by layer type.

    The requests are as long as the pools hold. Overwrites what the cache holds.
    """
    timer.time_empty_graph()
    generator = torch.Generator().manual_seed(seed)
    fill_pages(executor.layers, generator)
    by_type: dict[str, list[LayerCache]] = {}
    for layer in executor.layers:
        by_type.setdefault(layer.schema.layer.attn.value, []).append(layer)
    found: list[Operation] = []
    for layer_type, layers in by_type.items():
        stages = _stages(layers, requests, generator)
        found += _measure_type(executor, timer, layer_type, stages)
    return found


def _stages(
    layers: Sequence[LayerCache], requests: int, generator: torch.Generator
) -> list[Stage]:
    """All layers under a first table, then all under a second, … : as many as can differ."""
    drawn = [draw_stages(layer, requests, generator) for layer in layers]
    rounds = zip(*drawn, strict=False)  # as long as every layer has one more
    return [stage for stages in rounds for stage in stages][:MOST_CALLS]


def _measure_type(
    executor: StepExecutor, timer: CallTimer, layer_type: str, stages: Sequence[Stage]
) -> Iterator[Operation]:
    layer, step = stages[0]
    layers = len({stage.schema.layer.layer_idx for stage, _ in stages})
    work = StepWork(step.after, step.after - 1, executor.index_topk, executor.window_tokens)
    for operation in decode_operations(layer):
        cold = _make_calls(executor, operation, stages)
        entries, moved = work.of(cold[0], layer)
        places = layers if operation[0] in _OF_SLOTS else len(stages)
        rounds = -(-FEWEST_CALLS // len(cold))
        runs: list[tuple[Literal["cold", "hot"], list[Call], int]] = [
            ("cold", cold * rounds, places),
            ("hot", cold[:1] * (rounds * len(cold)), 1),
        ]
        for temperature, calls, distinct in runs:
            name = cold[0].name
            samples = timer.time([call.run for call in calls], name, layer_type, temperature)
            yield Operation(
                name=name,
                layer_type=layer_type,
                samples_ns=samples,
                entries=[entries] * len(samples),
                bytes=[moved] * len(samples),
                temperature=temperature,
                distinct_bytes=moved * distinct,
            )


def _make_calls(executor: StepExecutor, operation: Step, stages: Sequence[Stage]) -> list[Call]:
    """The operation on every stage, with outputs that take turns."""
    (layer, step), device = stages[0], executor.device
    chosen = executor.chooser.choose(step.after // max(1, layer.schema.layer.ratio))
    rows = torch.arange(step.num_requests)
    inputs = executor.inputs.take(rows.to(device), chosen.to(device))

    def make(stage: Stage, outputs: Outputs) -> Call:
        handle = LayerCacheHandle(*stage)
        call = CallMaker(handle, inputs, outputs, step.tokens).make(*operation)
        assert call is not None  # all requests have entries
        return call

    def make_outputs() -> Outputs:
        return Outputs(device, executor.index_topk, executor.window_tokens)

    out = make(stages[0], make_outputs()).out
    turns = 1 if out is None else min(len(stages), -(-_ROTATED_BYTES // out.nbytes))
    outputs = [make_outputs() for _ in range(turns)]
    return [make(stage, outputs[i % turns]) for i, stage in enumerate(stages)]
