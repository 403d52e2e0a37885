"""Figures of single operations on a GPU: many calls in one graph, cold and hot.

Cold calls each work on memory of their own: pages in another layer or under another table, other
inputs, other outputs. When the first comes round again, the caches have seen all the others;
where those are too few bytes to drive it out, the row says L2-resident instead. Nothing is
flushed or copied inside the timed region. Hot calls are one call again and again.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsv4kv.bench.device import CallTimer
from dsv4kv.bench.serve import operations as op
from dsv4kv.bench.serve.executor import StepExecutor
from dsv4kv.bench.serve.inputs import InputBank, StepInputs
from dsv4kv.cache.layers import LayerCache
from dsv4kv.cache.manager import EntryGroup
from dsv4kv.cache.step import Completed, Step
from dsv4kv.ops.spec import OPERATIONS, READS
from dsv4kv.ops.storage import PageStore
from dsv4kv.ops.work import StepWork
from dsv4kv.runs.parts import Temperature
from dsv4kv.runs.schema import NotMeasured, Operation

_BLOCK_TOKENS = 128  # every compress ratio divides it
_FILLED_AT_ONCE = 8192


def uniform_step(requests: int, tokens: int, table: Tensor, group: EntryGroup | None) -> Step:
    """A decode step of requests in slots 0, 1, … that all have ``tokens`` tokens.

    ``tokens`` is a multiple of 128, so every layer completes an entry of every request. All is
    worked out here, so that a timed call computes nothing but its operation. ``table``: blocks of
    every slot, int32[at least requests, width]; ``group``: None without compressed KV.
    """
    slots = torch.arange(requests, device=table.device)
    after = torch.full((requests,), tokens, device=table.device)
    lengths, entries = {}, {}
    if group is not None:
        _, _, ratio, per_block = group
        logical = tokens // ratio - 1
        blocks = table[:requests, logical // per_block].long()
        entries[group] = blocks * per_block + logical % per_block
        lengths[ratio] = after // ratio
    return Step(
        request_slots=slots,
        tokens_after=after,
        token_slots=slots,
        positions=after - 1,
        lengths=lengths,
        seen={1: after} | lengths,
        entries=entries,
        completed={g: Completed(slots, after - 1, each) for g, each in entries.items()},
        request_ids=slots,
        max_request_tokens=1,
        first_token=(0, tokens - 1),
    )


Stage = tuple[LayerCache, Step, int]
"""A layer under a table, a step on it, and the tokens of its requests."""


def draw_stages(layer: LayerCache, requests: int, generator: torch.Generator) -> list[Stage]:
    """The layer under tables of random blocks, no block in two, for requests as long as fit."""
    if layer.table is None or layer.blocks is None or layer.main is None:
        device = layer.window.pages.device if layer.window else torch.device("cpu")
        nothing = torch.zeros(requests, 0, dtype=torch.int32, device=device)
        return [(layer, uniform_step(requests, _BLOCK_TOKENS, nothing, None), _BLOCK_TOKENS)]
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
        step = uniform_step(requests, tokens, moved, layer.group)
        stages.append((replace(layer, blocks=moved), step, tokens))
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
    device, layout = store.pages.device, store.layout
    filled = min(-(-_FILLED_AT_ONCE // layout.entries), len(store.pages))
    entries = torch.arange(filled * layout.entries)
    values = torch.randn(len(entries), layout.format.dims, generator=generator).bfloat16()
    part = {"values": values.to(device), "entries": entries.to(device)}
    layer.backend.entry_insert(store=store, **part)
    for first in range(filled, len(store.pages), filled):  # the same values again
        rest = store.pages[first : first + filled]
        rest.copy_(store.pages[: len(rest)])


MOST_CALLS, FEWEST_CALLS = 64, 16

COLD_L2S = 4
"""Cold memory comes round again after this many times the L2 cache's bytes, or it may still be
there: caches do not replace strictly by age."""

_ROTATED_BYTES = 256 << 20  # outputs take turns over so much at least, four times an H200's L2


@dataclass(frozen=True)
class Figure:
    """What is timed: an operation on the layers of one type, cold or hot."""

    operation: op.LayerOperation
    layer_type: str  # attention type of the layers
    stages: Sequence[Stage]  # layers under tables
    hot: bool  # one call again and again

    @property
    def name(self) -> str:
        """As in a record."""
        return op.name_of(*self.operation)


def list_figures(executor: StepExecutor, requests: int, seed: int) -> list[Figure]:
    """Fill the cache, and list every operation of a decode step, by layer type, cold and hot.

    The requests are as long as the pools hold.
    """
    generator = torch.Generator().manual_seed(seed)
    fill_layers(executor.layers, generator)
    by_type: dict[str, list[LayerCache]] = {}
    for layer in executor.layers:
        by_type.setdefault(layer.schema.layer.attn.value, []).append(layer)
    figures = []
    for layer_type, same in by_type.items():
        for alike, operations in _alike(same, engine=executor.in_place):
            # all layers under a first table, then all under a second, as long as all have more
            rounds = zip(*(draw_stages(each, requests, generator) for each in alike), strict=False)
            stages = [stage for stages in rounds for stage in stages][:MOST_CALLS]
            for operation in operations:
                figures += [
                    Figure(operation, layer_type, stages, hot=False),
                    Figure(operation, layer_type, stages[:1], hot=True),
                ]
    return figures


def measure_figures(
    executor: StepExecutor, timer: CallTimer, figures: Sequence[Figure]
) -> tuple[list[Operation], list[NotMeasured]]:
    """Time figures, cold ones first; those without time left, with the reason.

    Overwrites what the cache holds.
    """
    ranked = sorted(figures, key=lambda figure: figure.hot)
    measured = {
        id(figure): _measure(executor, timer, figure, len(figures) - n)
        for n, figure in enumerate(ranked)
    }
    found = [measured[id(figure)] for figure in figures]
    return (
        [each for each in found if isinstance(each, Operation)],
        [each for each in found if isinstance(each, NotMeasured)],
    )


def _alike(
    layers: Sequence[LayerCache], *, engine: bool
) -> Iterator[tuple[list[LayerCache], list[op.LayerOperation]]]:
    """Operations, each once, and layers of one ratio on which they do the same."""
    timed: set[op.LayerOperation] = set()
    for first in layers:
        every = op.all_decode_operations(first, engine=engine)
        left = [each for each in every if each not in timed]
        timed |= set(left)
        alike = [
            layer
            for layer in layers
            if layer.schema.layer.ratio == first.schema.layer.ratio
            and set(left) <= set(op.all_decode_operations(layer, engine=engine))
        ]
        if left:
            yield alike, left


def _measure(
    executor: StepExecutor, timer: CallTimer, figure: Figure, figures_left: int
) -> Operation | NotMeasured:
    most_ns = timer.share_ns(figures_left)
    known: dict[str, Any] = {"name": figure.name, "layer_type": figure.layer_type}
    unknown = known | {"temperature": "hot" if figure.hot else "cold"}
    if most_ns is None:
        return NotMeasured(**unknown, why="budget")
    layer, step, tokens = figure.stages[0]
    calls, turns = _make_calls(executor, timer, figure)
    after = np.full(step.num_requests, tokens)
    work = StepWork(executor.counted, after, after - 1)
    operation, indexer = figure.operation
    entries, moved, flops = work.of(operation, layer.schema, indexer=indexer)
    distinct = moved * min(_places(figure), turns)
    temperature: Temperature = "hot"
    if not figure.hot:
        cold = distinct >= COLD_L2S * timer.device.l2_bytes
        temperature = "cold" if cold else "L2-resident"
    rounds = -(-FEWEST_CALLS // len(calls))
    timing = timer.measure(calls * rounds, figure.name, figure.layer_type, temperature, most_ns)
    if not timing.samples_ns:
        return NotMeasured(**unknown, why="throttled")
    # layers of the figure's type on which a decode step has the operation
    same = [e for e in executor.layers if e.schema.layer.attn.value == figure.layer_type]
    return Operation(
        **known,
        samples_ns=timing.samples_ns,
        entries=[entries] * len(timing.samples_ns),
        bytes=[moved] * len(timing.samples_ns),
        flops=[flops] * len(timing.samples_ns) if flops else [],
        temperature=temperature,
        distinct_bytes=distinct,
        throttled=timing.throttled,
        calls_per_step=sum(figure.operation in executor.step_operations(each) for each in same),
    )


def _places(figure: Figure) -> int:
    """How many calls work on other pages, rings and states than any before."""
    if OPERATIONS[figure.operation[0]].of_slots:
        return len({layer.schema.layer.layer_idx for layer, _, _ in figure.stages})
    return len(figure.stages)


def _make_calls(
    executor: StepExecutor, timer: CallTimer, figure: Figure
) -> tuple[list[Callable[[], None]], int]:
    """The operation on every stage, each with its own inputs, and how many outputs take turns."""
    stages, operation = figure.stages, figure.operation

    def make(number: int, run: op.Run) -> tuple[Callable[[], None], Tensor | None]:
        layer, step, _ = stages[number]
        reads = None
        if operation[0] in READS:
            reads = run.outputs.reads(layer, step.num_tokens, run.longest_tokens)
            _fill_reads(executor, reads, stages[number])
        inputs = _draw_inputs(executor, stages[number], number)
        tensors = op.arguments(layer, operation, step, inputs, run, reads)
        assert tensors is not None  # all requests have entries
        return partial(getattr(layer.backend, operation[0]), **tensors), tensors.get("out")

    def make_run() -> op.Run:
        sizes = executor.outputs.index_topk, executor.outputs.window_tokens
        return op.Run(op.Outputs(executor.device, *sizes), stages[0][2])

    _, out = make(0, make_run())
    turns = len(stages)
    if out is not None:
        rotated = max(_ROTATED_BYTES, COLD_L2S * timer.device.l2_bytes)
        turns = min(turns, -(-rotated // out.nbytes))
    runs = [make_run() for _ in range(turns)]
    return [make(number, runs[number % turns])[0] for number in range(len(stages))], turns


def _fill_reads(executor: StepExecutor, reads: op.Reads, stage: Stage) -> None:
    """Fill what the operations before would have written: any scores, and entries all over."""
    layer, step, tokens = stage
    lengths = np.full(step.num_requests, tokens // max(1, layer.schema.layer.ratio))
    reads.chosen.copy_(executor.chooser.choose(lengths))
    reads.scores.normal_()
    reads.weights.normal_()
    codes = torch.randn(reads.codes.shape, device=reads.codes.device)
    reads.codes.copy_(codes.to(torch.float8_e4m3fn).view(torch.uint8))
    blocks = torch.arange(reads.blocks.shape[1], device=reads.blocks.device)
    reads.blocks.copy_(blocks.expand_as(reads.blocks))


def _draw_inputs(executor: StepExecutor, stage: Stage, number: int) -> StepInputs:
    """Data of a step's tokens in memory of its own, and what CSA layers choose to read."""
    layer, step, tokens = stage
    rows = InputBank.rows(number, np.arange(step.num_requests))
    ratio, device = layer.schema.layer.ratio, executor.device
    lengths = np.full(step.num_requests, tokens // max(1, ratio))
    chosen = executor.chooser.choose(lengths).to(device)
    numbers = torch.from_numpy(rows).to(device)
    return executor.inputs.take(numbers, {ratio: chosen}, step.positions.cpu())
