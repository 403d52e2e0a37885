"""Figures of single operations on a GPU: many calls in one graph, cold and hot.

Cold calls each work on memory of their own: pages in another layer or under another table, other
inputs, other outputs. When the first comes round again, the caches have seen all the others;
where those are too few bytes to drive it out, the row says L2-resident instead. Nothing is
flushed or copied inside the timed region. Hot calls are one call again and again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from dsv4kv.bench.timing import CallTimer
from dsv4kv.cache.handle import LayerCache, LayerCacheHandle
from dsv4kv.cache.step import Completed, EntryGroup
from dsv4kv.cache.table import BlockTable
from dsv4kv.ops.storage import PageStore
from dsv4kv.ops.table import OPERATIONS
from dsv4kv.runs.part import Temperature
from dsv4kv.runs.schema import NotMeasured, Operation
from dsv4kv.serve.executor import StepExecutor
from dsv4kv.serve.inputs import InputBank, StepInputs
from dsv4kv.serve.operations import (
    Call,
    CallMaker,
    Outputs,
    Reads,
    Step,
    StepWork,
    all_decode_operations,
    name_of,
)

_BLOCK_TOKENS = 128  # every compress ratio divides it
_FILLED_AT_ONCE = 8192


class UniformStep:
    """A decode step of requests in slots 0, 1, … that all have ``tokens`` tokens; a ``StepView``.

    ``tokens`` is a multiple of 128, so every layer completes an entry of every request.
    """

    def __init__(
        self, requests: int, tokens: int, table: Tensor, group: EntryGroup | None = None
    ) -> None:
        """Work everything out, so that a timed call computes nothing but its operation.

        Args:
            requests: How many.
            tokens: Of each of them.
            table: int32[at least requests, width], blocks of every slot.
            group: What decides which entries the layer writes; None without compressed KV.
        """
        self.num_requests = requests
        self.max_request_tokens = 1
        self.tokens = tokens
        self.table = table
        self.after = np.full(requests, tokens)
        self.request_slots = torch.arange(requests, device=table.device)
        self.token_slots = self.request_slots
        self.tokens_after = torch.full((requests,), tokens, device=table.device)
        self.positions = self.tokens_after - 1
        self._lengths: dict[int, Tensor] = {}
        self._completed: dict[tuple[int, int], Completed] = {}
        if group is not None:
            _, _, ratio, per_block = group
            self._work_out(ratio, per_block)

    def check_current(self) -> None:
        """See ``StepView``; there is no request that could leave."""

    def chunk_start(self) -> tuple[int, int]:
        """See ``StepView``."""
        return 0, self.tokens - 1

    def lengths(self, ratio: int) -> Tensor:
        """See ``StepView``; of the layer's ratio."""
        return self._lengths[ratio]

    def seen(self, ratio: int) -> Tensor:
        """See ``StepView``: a token of each request, the last."""
        return self.tokens_after if ratio == 1 else self._lengths[ratio]

    def completed(self, table: BlockTable, lane: int, ratio: int, per_block: int) -> Completed:
        """See ``StepView``: the last entry of every request, in the step's own table."""
        return self._completed[ratio, per_block]

    def _work_out(self, ratio: int, per_block: int) -> None:
        logical = self.tokens // ratio - 1
        blocks = self.table[: self.num_requests, logical // per_block].long()
        entries = blocks * per_block + logical % per_block
        self._lengths[ratio] = self.tokens_after // ratio
        self._completed[ratio, per_block] = Completed(self.token_slots, self.positions, entries)

    def token_entries(self, table: BlockTable, lane: int, ratio: int, per_block: int) -> Tensor:
        """See ``StepView``: every token completes one."""
        return self.completed(table, lane, ratio, per_block).entries


Stage = tuple[LayerCache, UniformStep]
"""A layer under a table, and a step on it."""


def draw_stages(layer: LayerCache, requests: int, generator: torch.Generator) -> list[Stage]:
    """The layer under tables of random blocks, no block in two of them.

    The requests are as long as the pool and the table's rows allow; there is one table where the
    layer has none.
    """
    if layer.table is None or layer.blocks is None or layer.main is None:
        device = layer.window.pages.device if layer.window else torch.device("cpu")
        nothing = torch.zeros(requests, 0, dtype=torch.int32, device=device)
        return [(layer, UniformStep(requests, _BLOCK_TOKENS, nothing))]
    slots, width = layer.blocks.shape
    pages = len(layer.main.store.pages)
    columns = min(width, pages // requests)
    order = torch.randperm(pages, generator=generator).int()
    stages = []
    for first in range(0, pages - requests * columns + 1, requests * columns):
        blocks = torch.full((slots, width), -1, dtype=torch.int32)
        chosen = order[first : first + requests * columns]
        blocks[:requests, :columns] = chosen.view(requests, columns)
        moved = blocks.to(layer.blocks.device)
        tokens = columns * layer.schema.block_tokens
        step = UniformStep(requests, tokens, moved, layer.entry_group)
        stages.append((replace(layer, blocks=moved), step))
    return stages


def fill_layers(layers: Sequence[LayerCache], generator: torch.Generator) -> None:
    """Fill every page, ring and state with normal data: zeros would be moved too fast."""
    for layer in layers:
        if layer.window is not None:
            _fill_pages(layer, layer.window, generator)
        for part in map(layer.part, layer.parts):
            _fill_pages(layer, part.store, generator)
            if part.state is not None:
                fill_state(part.state, generator)


def fill_state(state: Tensor, generator: torch.Generator) -> None:
    """Fill compressor states, as they are allocated: kv and score, or running sums."""
    on_device = torch.Generator(state.device).manual_seed(generator.initial_seed())
    state.normal_(generator=on_device)
    if state.dim() == 3:  # max, denominator, weighted sum
        state[:, 1].abs_().add_(1)


def _fill_pages(layer: LayerCache, store: PageStore, generator: torch.Generator) -> None:
    device, dims = store.pages.device, store.layout.format.dims
    values = torch.randn(_FILLED_AT_ONCE, dims, generator=generator).bfloat16().to(device)
    for first in range(0, store.num_entries, _FILLED_AT_ONCE):
        entries = torch.arange(first, min(first + _FILLED_AT_ONCE, store.num_entries))
        layer.backend.entry_insert(store, values[: len(entries)], entries.to(device))


MOST_CALLS, FEWEST_CALLS = 64, 16

COLD_L2S = 4
"""Cold memory comes round again after so many times the L2 cache's bytes, or it may still be
there: caches do not replace strictly by age."""

_ROTATED_BYTES = 256 << 20  # outputs take turns over so much at least, four times an H200's L2

_MOST_INFORMATIVE = (
    "index_scores",
    "attend",
    "select_topk",
    "gather_topk",
    "gather_all",
    "step_write",
    "flush",
    "window_insert",
    "indexer_gather_all",
)
"""Timed first, in this order, after operations that are listed nowhere: those are new."""

_LESS_INFORMATIVE = (
    "indexer_query",
    "gather_window",
    "state_append",
    "indexer_flush",
    "indexer_state_append",
)


@dataclass(frozen=True)
class Figure:
    """What is timed: an operation on the layers of one type, cold or hot."""

    operation: Step  # the operation
    layer_type: str  # attention type of the layers
    stages: Sequence[Stage]  # layers under tables
    hot: bool  # one call again and again

    @property
    def name(self) -> str:
        """As in a record."""
        return name_of(*self.operation)

    @property
    def rank(self) -> tuple[bool, int]:
        """The lower, the more it says."""
        order = (*_MOST_INFORMATIVE, *_LESS_INFORMATIVE)
        return self.hot, order.index(self.name) if self.name in order else -1


def measure_operations(
    executor: StepExecutor, timer: CallTimer, requests: int, seed: int
) -> tuple[list[Operation], list[NotMeasured]]:
    """Time every operation of a decode step of ``requests`` requests, by layer type.

    The most informative come first: what there is no time for is listed with the reason. The
    requests are as long as the pools hold. Overwrites what the cache holds.
    """
    generator = torch.Generator().manual_seed(seed)
    fill_layers(executor.layers, generator)
    engine = executor.in_place
    figures = list(_list_figures(executor.layers, requests, generator, engine=engine))
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
    layers: Sequence[LayerCache], requests: int, generator: torch.Generator, *, engine: bool
) -> Iterator[Figure]:
    by_type: dict[str, list[LayerCache]] = {}
    for layer in layers:
        by_type.setdefault(layer.schema.layer.attn.value, []).append(layer)
    for layer_type, same in by_type.items():
        for alike, operations in _alike(same, engine=engine):
            stages = _stages(alike, requests, generator)
            for operation in operations:
                yield Figure(operation, layer_type, stages, hot=False)
                yield Figure(operation, layer_type, stages[:1], hot=True)


def _alike(
    layers: Sequence[LayerCache], *, engine: bool
) -> Iterator[tuple[list[LayerCache], list[Step]]]:
    """Operations, and layers of one ratio on which they do the same; each operation once.

    Where a type's layers differ (DeepSeek-V4.1), the first that has an operation decides.
    """
    timed: set[Step] = set()
    for first in layers:
        every = all_decode_operations(first, engine=engine)
        left = [each for each in every if each not in timed]
        ratio, timed = first.schema.layer.ratio, timed | set(left)
        if left:
            yield (
                [
                    layer
                    for layer in layers
                    if layer.schema.layer.ratio == ratio
                    and set(left) <= set(all_decode_operations(layer, engine=engine))
                ],
                left,
            )


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
    schemas = [layer.schema for layer in executor.layers]
    positions = step.after - 1
    sizes = executor.index_topk, executor.window_tokens
    work = StepWork(step.after, positions, *sizes, schemas)
    (entries, moved), flops = work.of(calls[0], layer), work.flops(calls[0], layer)
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
        flops=[flops] * len(timing.samples_ns) if flops else [],
        temperature=temperature,
        distinct_bytes=distinct,
        throttled=timing.throttled,
        calls_per_step=_count_calls(executor, figure),
    )


def _count_calls(executor: StepExecutor, figure: Figure) -> int:
    """Layers of the figure's type on which a decode step has the operation."""
    same = [e for e in executor.layers if e.schema.layer.attn.value == figure.layer_type]
    return sum(figure.operation in executor.step_operations(layer) for layer in same)


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
    if OPERATIONS[figure.operation[0]].of_slots:
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
        if call.reads is not None:
            _fill_reads(executor, call.reads, stages[number])
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


def _fill_reads(executor: StepExecutor, reads: Reads, stage: Stage) -> None:
    """What the operations before would have written: any scores, and entries all over."""
    layer, step = stage
    lengths = step.after // max(1, layer.schema.layer.ratio)
    reads.chosen.copy_(executor.chooser.choose(lengths))
    reads.scores.normal_()
    reads.weights.normal_()
    codes = torch.randn(reads.codes.shape, device=reads.codes.device)
    reads.codes.copy_(codes.to(torch.float8_e4m3fn).view(torch.uint8))
    blocks = torch.arange(reads.blocks.shape[1], device=reads.blocks.device)
    reads.blocks.copy_(blocks.expand_as(reads.blocks))


def _draw_inputs(executor: StepExecutor, stage: Stage, number: int) -> StepInputs:
    """Data of a step's tokens in memory of its own, and what CSA layers choose to read."""
    layer, step = stage
    rows = InputBank.rows(number, np.arange(step.num_requests))
    ratio, device = layer.schema.layer.ratio, executor.device
    chosen = executor.chooser.choose(step.after // max(1, ratio)).to(device)
    taken = executor.inputs.take(torch.from_numpy(rows).to(device), {ratio: chosen})
    if executor.queries is None:
        return taken
    return replace(taken, queries=executor.queries.take(rows, step.positions.cpu()))
