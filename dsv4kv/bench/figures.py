"""Figures of single operations on a GPU: many calls in one graph, cold and hot.

Cold calls each work on memory of their own: pages in another layer or under another table, other
inputs, other outputs. When the first comes round again, the caches have seen all the others;
where those are too few bytes to drive it out, the row says L2-resident instead. Nothing is
flushed or copied inside the timed region. Hot calls are one call again and again.

``bench op`` times one operation at a batch, a top k and a context, once it equals the reference.
On the CPU its calls run one after the other by the same rules, and the last-level cache stands for
the L2.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from dsv4kv.bench import build as bd
from dsv4kv.bench.device import (
    CallTimer,
    CudaDevice,
    Timing,
    find_device,
    gpu_uuid,
    measure_baseline,
)
from dsv4kv.bench.serve import executor as ex
from dsv4kv.bench.serve.inputs import InputBank
from dsv4kv.bench.telemetry import Telemetry
from dsv4kv.cache.manager import EntryGroup, LayerCache
from dsv4kv.cache.step import Step
from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.load import load_config
from dsv4kv.errors import ConfigError, PeerUnavailable, VerificationError
from dsv4kv.model.config import AttentionType
from dsv4kv.model.plan import CachePlan
from dsv4kv.ops.check import check_again, check_scenes, foreign_scenes, read_by, turn_pages
from dsv4kv.ops.scenes import scenes_of
from dsv4kv.ops.spec import OPERATIONS, READS
from dsv4kv.ops.storage import PageStore
from dsv4kv.runs.parts import Temperature
from dsv4kv.runs.points import make_case
from dsv4kv.runs.schema import Case, NotMeasured, Operation

_BLOCK_TOKENS = 128  # every compress ratio divides it
_FILLED_AT_ONCE = 8192


def uniform_step(requests: int, tokens: int, table: Tensor, group: EntryGroup | None) -> Step:
    """A decode step of requests in slots 0, 1, … that all have ``tokens`` tokens.

    ``tokens`` is a multiple of 128, so every layer completes an entry of every request. All is
    worked out here, so that a timed call computes nothing but its operation. ``table``: blocks of
    every slot, int32[at least requests, width]; ``group``: None without compressed KV.
    """
    step = Step.room([group] if group else [], requests, 1, table.device)
    for slots in (step.request_slots, step.token_slots):
        torch.arange(requests, out=slots)
    step.tokens_after.fill_(tokens)
    step.positions.fill_(tokens - 1)
    for each in (step.lengths, step.seen):
        for ratio, entries in each.items():
            entries.fill_(tokens // ratio)
    if group is not None:
        _, _, ratio, per_block = group
        logical = tokens // ratio - 1
        blocks = table[:requests, logical // per_block].long()
        step.entries[group].copy_(blocks * per_block + logical % per_block)
    return step


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
            if (state := part.state) is not None:
                on_device = torch.Generator(state.device).manual_seed(generator.initial_seed())
                state.normal_(generator=on_device)
                if state.dim() == 3:  # running sums: max, denominator, weighted sum
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

    operation: ex.LayerOperation
    layer_type: str  # attention type of the layers
    stages: Sequence[Stage]  # layers under tables
    hot: bool  # one call again and again

    @property
    def name(self) -> str:
        return ex.name_of(*self.operation)


def list_figures(executor: ex.StepExecutor, requests: int, seed: int) -> list[Figure]:
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


def _alike(
    layers: Sequence[LayerCache], *, engine: bool
) -> Iterator[tuple[list[LayerCache], list[ex.LayerOperation]]]:
    """Operations, each once, and layers of one ratio on which they do the same."""
    timed: set[ex.LayerOperation] = set()
    for first in layers:
        every = ex.all_decode_operations(first, engine=engine)
        left = [each for each in every if each not in timed]
        timed |= set(left)
        alike = [
            layer
            for layer in layers
            if layer.schema.layer.ratio == first.schema.layer.ratio
            and set(left) <= set(ex.all_decode_operations(layer, engine=engine))
        ]
        if left:
            yield alike, left


def measure_figures(
    executor: ex.StepExecutor, timer: CallTimer, figures: Sequence[Figure]
) -> tuple[list[Operation], list[NotMeasured]]:
    """Time figures, cold ones first; those without time left, with the reason.

    Overwrites what the cache holds.
    """
    found: dict[int, Operation | NotMeasured] = {}
    for n, place in enumerate(sorted(range(len(figures)), key=lambda i: figures[i].hot)):
        found[place] = _measure(executor, timer, figures[place], len(figures) - n)
    each = [found[place] for place in range(len(figures))]
    return (
        [row for row in each if isinstance(row, Operation)],
        [row for row in each if isinstance(row, NotMeasured)],
    )


def _measure(
    executor: ex.StepExecutor, timer: CallTimer, figure: Figure, figures_left: int
) -> Operation | NotMeasured:
    most_ns = timer.share_ns(figures_left)
    known: dict[str, Any] = {"name": figure.name, "layer_type": figure.layer_type}
    unknown = known | {"temperature": "hot" if figure.hot else "cold"}
    if most_ns is None:
        return NotMeasured(**unknown, why="budget")
    calls, turns = _make_calls(executor, timer, figure)
    layer, step, tokens = figure.stages[0]
    after = np.full(step.num_requests, tokens)
    work = executor.work(after, after - 1)
    operation, indexer = figure.operation
    entries, moved, flops = work.of(operation, layer.schema, indexer=indexer)
    places = len(figure.stages)  # calls on other pages, rings and states than any before
    if OPERATIONS[operation].of_slots:
        places = len({each.schema.layer.layer_idx for each, _, _ in figure.stages})
    distinct = moved * min(places, turns)
    temperature: Temperature = "hot"
    if not figure.hot:
        cold = distinct >= COLD_L2S * timer.device.l2_bytes
        temperature = "cold" if cold else "L2-resident"
    on_gpu = timer.device.architecture != "cpu"  # where a graph's launch is shared by its calls
    rounds = -(-FEWEST_CALLS // len(calls)) if on_gpu else 1
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


def _make_calls(
    executor: ex.StepExecutor, timer: CallTimer, figure: Figure
) -> tuple[list[Callable[[], None]], int]:
    """The operation on every stage, each with its own inputs, and how many outputs take turns."""
    stages, operation, device = figure.stages, figure.operation, executor.device

    def make(number: int, run: ex.Run) -> tuple[Callable[[], None], Tensor | None]:
        layer, step, tokens = stages[number]
        ratio, reads = layer.schema.layer.ratio, None
        lengths = np.full(step.num_requests, tokens // max(1, ratio))
        if operation[0] in READS:
            reads = run.outputs.reads(layer, step.num_tokens, run.longest_tokens)
            _fill_reads(reads, executor.chooser.choose(lengths))
        rows = torch.from_numpy(InputBank.rows(number, np.arange(step.num_requests))).to(device)
        chosen = {ratio: executor.chooser.choose(lengths).to(device)}
        inputs = executor.inputs.take(rows, chosen, step.positions.cpu())
        tensors = ex.Filling(layer, step, inputs, run, reads).arguments(operation)
        assert tensors is not None  # all requests have entries
        return partial(getattr(layer.backend, operation[0]), **tensors), tensors.get("out")

    def make_run() -> ex.Run:
        return ex.Run(executor.outputs.another(), stages[0][2])

    _, out = make(0, make_run())
    turns = len(stages)
    if out is not None:
        rotated = max(_ROTATED_BYTES, COLD_L2S * timer.device.l2_bytes)
        turns = min(turns, -(-rotated // out.nbytes))
    runs = [make_run() for _ in range(turns)]
    return [make(number, runs[number % turns])[0] for number in range(len(stages))], turns


def _fill_reads(reads: ex.Reads, chosen: Tensor) -> None:
    """Fill what the operations before would have written: any scores, and entries all over."""
    reads.chosen.copy_(chosen)
    reads.scores.normal_()
    reads.weights.normal_()
    codes = torch.randn(reads.codes.shape, device=reads.codes.device)
    reads.codes.copy_(codes.to(torch.float8_e4m3fn).view(torch.uint8))
    blocks = torch.arange(reads.blocks.shape[1], device=reads.blocks.device)
    reads.blocks.copy_(blocks.expand_as(reads.blocks))


_SEEDS = 4  # random draws of every scene that is checked
_COMPARED = 4  # calls of a row that are compared after they were timed
_TURNS = 2  # how often two backends are timed alternately
_TYPICAL_CACHE_BYTES = 32 << 20


@dataclass(frozen=True)
class Shape:
    """What an operation is timed at."""

    batch: int  # requests
    topk: int | None  # entries that a token selects; None is the model's
    context: int  # tokens of every request


class OperationBench:
    """Checks and times one operation of a backend, and our own one next to it."""

    def __init__(self, name: str, settings: Sequence[str], seconds: float) -> None:
        """``settings`` are a benchmark's; each row is measured for about ``seconds``."""
        base = name.removeprefix("indexer_") if name not in OPERATIONS else name
        if base not in OPERATIONS:
            known = ", ".join(sorted(OPERATIONS))
            raise ConfigError(f"there is no operation {name!r}: choose one of {known}.")
        reads = "engine" if base in READS else "gather"
        self._name, self.operation, self._seconds = name, base, seconds
        self._settings = ["workload.decode=eager", f"workload.step={reads}", *settings]
        config = self._load(None)
        types: dict[AttentionType, int] = {}
        for schema in sorted(bd.plan_from(config).schemas, key=lambda e: not e.layer.selects):
            types.setdefault(schema.layer.attn, schema.layer.layer_idx)
        self._small = self._load(sorted(types.values()))  # a layer of each type
        self.device = find_device(config.device)
        self.own = bd.resolve(config.model_copy(update={"backend": None}), self.device)
        self.resolved = bd.resolve(config, self.device)
        if self.resolved.foreign and base not in self.resolved.foreign:
            brought = ", ".join(self.resolved.foreign)
            raise ConfigError(f"{self.resolved.name} has {brought}, and no {base}.")

    def _load(self, layers: list[int] | None, batch: int = 1, context: int = 1024) -> BenchConfig:
        held = "null" if layers is None else layers
        sizes = f"workload.concurrency={batch}", f"cache.max_context_tokens={context}"
        return load_config("default", [*self._settings, *sizes, f"model.layers={held}"]).config

    def check(self) -> int:
        """Cases that equal the reference.

        Raises ``VerificationError`` for one that does not, ``PeerUnavailable`` if there is none.
        """
        bd.check_data_path(plan := bd.plan_from(self._small))
        where = self.device.device if self.device else torch.device("cpu")
        resolved, cases, first = self.resolved, 0, self._small.measure.seed
        draw = partial(foreign_scenes, resolved) if resolved.foreign else scenes_of
        for seed in range(first, first + _SEEDS):
            scenes = [each for each in draw(plan, seed) if each.operation == self.operation]
            cases += len(scenes)
            if wrong := check_scenes(resolved.name, resolved.backend, scenes, where, seed):
                raise VerificationError(f"{wrong[0]}\nNothing was timed.")
        if not cases:
            raise PeerUnavailable(
                f"{self.operation} of {resolved.name} takes no pages of this cache: "
                "nothing checked."
            )
        return cases

    def time(self, shape: Shape, memory_bytes: int | None = None) -> list[Case]:
        """The operation at a shape, of the backend and of our own where that is another."""
        config = self._load(self._layers_with_operation(), shape.batch, shape.context)
        plan = bd.plan_from(config)
        if shape.topk:
            model = plan.config.model_copy(update={"index_topk": shape.topk})
            plan = replace(plan, config=model)
        bd.check_memory(config, plan, memory_bytes, self.device)
        torch.set_num_threads(config.measure.threads)
        executor = self._build(config, plan)
        backends = list({each.name: each for each in (self.own, self.resolved)}.values())
        turns = _TURNS if len(backends) > 1 else 1
        timed: dict[str, list[Operation]] = {}
        with Telemetry(gpu_uuid(self.device)) as telemetry:
            known = measure_baseline(self.device, config.measure.memcpy_bytes)
            for backend in backends * turns:
                layers = [replace(e, backend=backend.backend) for e in executor.layers]
                mine = replace(executor, layers=layers)
                about = f"{self.operation} of {backend.name}, batch {shape.batch}"
                found = self._time_once(mine, shape.batch, about, telemetry, turns)
                timed[backend.name] = _pooled(timed.get(backend.name), found)
        given = {"batch": shape.batch, "topk": plan.config.index_topk, "context": shape.context}
        return [
            make_case(
                axis=given,
                config=config.model_dump(mode="json"),
                device="cuda" if self.device else "cpu",
                backend=backend.name,
                backend_version=backend.version,
                foreign=list(backend.foreign),
                operations=timed[backend.name],
                telemetry=telemetry.describe(),
                **known,
            )
            for backend in reversed(backends)
        ]

    def _time_once(
        self, executor: ex.StepExecutor, batch: int, about: str, telemetry: Telemetry, turns: int
    ) -> list[Operation]:
        found: list[Operation] = []
        own = getattr(self.own.backend, self.operation)
        for figure in list_figures(executor, batch, self._small.measure.seed):
            if figure.name == self._name and not figure.hot:
                polled = telemetry.windows, telemetry.was_throttled, self._seconds / turns
                device = self.device or host_device()
                timer = _CheckedTimer(self.operation, own, about, device, *polled)
                found += measure_figures(executor, timer, [figure])[0]
        return found

    def _build(self, config: BenchConfig, plan: CachePlan) -> ex.StepExecutor:
        manager = bd.build_manager(config, plan, self.device)
        return bd.build_drive(config, manager, ex.Recorder(), self.own, self.device).executor

    def _layers_with_operation(self) -> list[int]:
        """Layers on which a decode step has the operation, one of a type."""
        executor = self._build(self._small, bd.plan_from(self._small))
        figures = list_figures(executor, 1, 0)
        names = {each.name for each in figures}
        if self._name not in names:
            raise ConfigError(
                f"{self._name} is not an operation of a decode step of "
                f"{self._small.model.preset}: choose one of {', '.join(sorted(names))}."
            )
        types = {each.layer_type for each in figures if each.name == self._name}
        held = {each.schema.layer.attn.value: each.schema.layer for each in executor.layers}
        return sorted(held[each].layer_idx for each in types)


def _pooled(before: Sequence[Operation] | None, found: list[Operation]) -> list[Operation]:
    """Measured operations, with the samples of the turn before."""
    if before is None:
        return found
    names = ("samples_ns", "entries", "bytes", "flops")
    return [
        each.model_copy(
            update={name: [*getattr(old, name), *getattr(each, name)] for name in names}
        )
        for old, each in zip(before, found, strict=True)
    ]


class _CheckedTimer(CallTimer):
    """Times calls, and then does some of them again, as they were timed, to compare them."""

    def __init__(
        self, operation: str, own: Callable[..., None], subject: str, *timer: Any
    ) -> None:
        """``own`` answers the same arguments; ``subject`` is timed, in words."""
        super().__init__(*timer)
        self._operation, self._own, self._subject = operation, own, subject

    def measure(self, calls: Sequence[Callable[[], object]], *about: Any, **more: Any) -> Timing:
        """As a ``CallTimer``; raises ``VerificationError`` where a call's outputs are wrong."""
        operation = self._operation
        some = [cast("partial[None]", each) for each in calls[:: -(-len(calls) // _COMPARED)]]
        given = [{k: each.keywords[k] for k in OPERATIONS[operation].names} for each in some]
        before = [read_by(operation, each) for each in given]
        timing = super().measure(calls, *about, **more)
        for call, arguments, old in zip(some, given, before, strict=True):
            turn_pages(operation, arguments)
            problem = check_again(operation, self._capture([call]), self._own, arguments)
            turn_pages(operation, arguments)
            if not all(map(torch.equal, old, read_by(operation, arguments))):
                problem = "it changed what it only reads."
            if problem:
                raise VerificationError(
                    f"{self._subject}, as timed: {problem}\nNothing is ranked."
                )
        return timing


class _HostEvent:
    """A moment of the host, whose work is done when it is recorded."""

    def __init__(self) -> None:
        self._at_ns = 0

    def record(self) -> None:
        self._at_ns = perf_counter_ns()

    def synchronize(self) -> None:
        """Nothing is left to do."""

    def elapsed_time(self, end: Any) -> float:
        return float(end._at_ns - self._at_ns) / 1e6


def host_device() -> CudaDevice:
    """The CPU as a device that calls are timed on; work is replayed by doing it again."""
    sizes = [
        int(path.read_text().strip().removesuffix("K")) << 10
        for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    ]
    cache = max(sizes, default=_TYPICAL_CACHE_BYTES)

    def repeat(run: Callable[[], None]) -> Callable[[], None]:
        run()
        return run

    return CudaDevice(torch.device("cpu"), "cpu", 0, cache, _HostEvent, lambda: repeat)
