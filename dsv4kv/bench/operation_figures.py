"""Figures of single operations on a GPU: many calls in one graph, cold and hot.

Cold calls each work on memory of their own: pages in another layer or under another table, other
inputs, other outputs. When the first comes round again, the caches have seen all the others;
where those are too few bytes to drive it out, the row says L2-resident instead. Nothing is
flushed or copied inside the timed region. Hot calls are one call again and again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from dsv4kv.bench.rehearsal import Stage, draw_stages, fill_layers
from dsv4kv.bench.replay_timing import CallTimer
from dsv4kv.cache.handle import LayerCache, LayerCacheHandle
from dsv4kv.report.part import Temperature
from dsv4kv.report.record import NotMeasured, Operation
from dsv4kv.workload.executor import StepExecutor
from dsv4kv.workload.inputs import InputBank, StepInputs
from dsv4kv.workload.operations import (
    Call,
    CallMaker,
    Outputs,
    Step,
    all_decode_operations,
    name_of,
)
from dsv4kv.workload.work import StepWork

MOST_CALLS, FEWEST_CALLS = 64, 16

COLD_L2S = 4
"""Cold memory comes round again after so many times the L2 cache's bytes, or it may still be
there: caches do not replace strictly by age."""

_ROTATED_BYTES = 256 << 20  # outputs take turns over so much at least, four times an H200's L2

_OF_SLOTS = {"window_insert", "state_append", "flush", "step_write", "gather_window"}
"""Operations on rings and states: other tables give them no other bytes."""

_MOST_TELLING = (
    "gather_topk",
    "gather_all",
    "step_write",
    "flush",
    "window_insert",
    "indexer_gather_all",
)
"""Timed first, in this order, after operations that are listed nowhere: those are new."""

_LESS_TELLING = ("gather_window", "state_append", "indexer_flush", "indexer_state_append")


@dataclass(frozen=True)
class Figure:
    """What is timed: an operation on the layers of one type, cold or hot.

    Attributes:
        operation: The operation.
        layer_type: Attention type of the layers.
        stages: Layers under tables.
        hot: One call again and again.
    """

    operation: Step
    layer_type: str
    stages: Sequence[Stage]
    hot: bool

    @property
    def name(self) -> str:
        """As in a record."""
        return name_of(*self.operation)

    @property
    def rank(self) -> tuple[bool, int]:
        """The lower, the more it tells."""
        order = (*_MOST_TELLING, *_LESS_TELLING)
        return self.hot, order.index(self.name) if self.name in order else -1


def measure_operations(
    executor: StepExecutor, timer: CallTimer, requests: int, seed: int
) -> tuple[list[Operation], list[NotMeasured]]:
    """Time every operation of a decode step of ``requests`` requests, by layer type.

    The most telling come first: what there is no time for is listed with the reason. The
    requests are as long as the pools hold. Overwrites what the cache holds.
    """
    generator = torch.Generator().manual_seed(seed)
    fill_layers(executor.layers, generator)
    figures = list(_list_figures(executor.layers, requests, generator))
    ranked = sorted(figures, key=lambda figure: figure.rank)
    measured = {
        id(figure): _measure(executor, timer, figure, len(figures) - n)
        for n, figure in enumerate(ranked)
    }
    found = [measured[id(figure)] for figure in figures]
    return (
        [each for each in found if isinstance(each, Operation)],
        [each for each in found if isinstance(each, NotMeasured)],
    )


def cold_or_resident(distinct_bytes: int, l2_bytes: int) -> Literal["cold", "L2-resident"]:
    """Whether calls that touch so many bytes before any of them again find them in memory."""
    return "cold" if distinct_bytes >= COLD_L2S * l2_bytes else "L2-resident"


def _list_figures(
    layers: Sequence[LayerCache], requests: int, generator: torch.Generator
) -> Iterator[Figure]:
    by_type: dict[str, list[LayerCache]] = {}
    for layer in layers:
        by_type.setdefault(layer.schema.layer.attn.value, []).append(layer)
    for layer_type, alike in by_type.items():
        stages = _stages(alike, requests, generator)
        for operation in all_decode_operations(alike[0]):
            yield Figure(operation, layer_type, stages, hot=False)
            yield Figure(operation, layer_type, stages[:1], hot=True)


def _stages(
    layers: Sequence[LayerCache], requests: int, generator: torch.Generator
) -> list[Stage]:
    """All layers under a first table, then all under a second, … : as many as can differ."""
    drawn = [draw_stages(layer, requests, generator) for layer in layers]
    rounds = zip(*drawn, strict=False)  # as long as every layer has one more
    return [stage for stages in rounds for stage in stages][:MOST_CALLS]


def _measure(
    executor: StepExecutor, timer: CallTimer, figure: Figure, figures_left: int
) -> Operation | NotMeasured:
    most_ns = timer.share_ns(figures_left)
    if most_ns is None:
        return _not_measured(figure, "budget")
    layer, step = figure.stages[0]
    calls, turns = _make_calls(executor, timer, figure)
    work = StepWork(step.after, step.after - 1, executor.index_topk, executor.window_tokens)
    entries, moved = work.of(calls[0], layer)
    distinct = moved * min(_places(figure), turns)
    resident = cold_or_resident(distinct, timer.device.l2_bytes)
    temperature: Temperature = "hot" if figure.hot else resident
    rounds = -(-FEWEST_CALLS // len(calls))
    timing = timer.measure(
        [call.run for call in calls] * rounds, figure.name, figure.layer_type, temperature, most_ns
    )
    if not timing.samples_ns:
        return _not_measured(figure, "throttled")
    return Operation(
        name=figure.name,
        layer_type=figure.layer_type,
        samples_ns=timing.samples_ns,
        entries=[entries] * len(timing.samples_ns),
        bytes=[moved] * len(timing.samples_ns),
        temperature=temperature,
        distinct_bytes=distinct,
        throttled=timing.throttled,
    )


def _not_measured(figure: Figure, why: str) -> NotMeasured:
    return NotMeasured.model_validate(
        {
            "name": figure.name,
            "layer_type": figure.layer_type,
            "temperature": "hot" if figure.hot else "cold",
            "why": why,
        }
    )


def _places(figure: Figure) -> int:
    """How many calls work on other pages, rings and states than any before."""
    if figure.operation[0] in _OF_SLOTS:
        return len({layer.schema.layer.layer_idx for layer, _ in figure.stages})
    return len(figure.stages)


def _make_calls(
    executor: StepExecutor, timer: CallTimer, figure: Figure
) -> tuple[list[Call], int]:
    """The operation on every stage, each with its own inputs, and how many outputs take turns."""
    stages, longest_tokens = figure.stages, figure.stages[0][1].tokens

    def make(number: int, outputs: Outputs) -> Call:
        layer, step = stages[number]
        maker = CallMaker(
            LayerCacheHandle(layer, step),
            _draw_inputs(executor, stages[number], number),
            outputs,
            longest_tokens,
        )
        call = maker.make(*figure.operation)
        assert call is not None  # all requests have entries
        return call

    def make_outputs() -> Outputs:
        return Outputs(executor.device, executor.index_topk, executor.window_tokens)

    first = make(0, make_outputs())
    turns = len(stages)
    if first.out is not None:
        rotated = max(_ROTATED_BYTES, COLD_L2S * timer.device.l2_bytes)
        turns = min(turns, -(-rotated // first.out.nbytes))
    outputs = [make_outputs() for _ in range(turns)]
    return [make(number, outputs[number % turns]) for number in range(len(stages))], turns


def _draw_inputs(executor: StepExecutor, stage: Stage, number: int) -> StepInputs:
    """Data of a step's tokens in memory of its own, and what CSA layers choose to read."""
    layer, step = stage
    rows = InputBank.rows(number, np.arange(step.num_requests))
    chosen = executor.chooser.choose(step.after // max(1, layer.schema.layer.ratio))
    device = executor.device
    return executor.inputs.take(torch.from_numpy(rows).to(device), chosen.to(device))
