"""One operation at a batch, a top k and a context: checked against the reference, then timed.

On a GPU as in a whole run: many calls in a graph, each on other pages. On the CPU the calls run
one after the other by the same rules, and its last-level cache stands for the L2.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Any, cast

import torch

from dsv4kv.bench import build as bd
from dsv4kv.bench.device import CallTimer, CudaDevice, find_device, measure_baseline
from dsv4kv.bench.figures import list_figures, measure_figures
from dsv4kv.bench.protocol import Budget, Timing
from dsv4kv.bench.run import gpu_uuid
from dsv4kv.bench.serve.executor import Recorder, StepExecutor
from dsv4kv.bench.telemetry import Telemetry
from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.load import load_config
from dsv4kv.errors import ConfigError, PeerUnavailable, VerificationError
from dsv4kv.model.config import AttentionType
from dsv4kv.model.plan import CachePlan
from dsv4kv.ops.check import check_again, check_scenes, foreign_scenes, read_by, turn_pages
from dsv4kv.ops.scenes import scenes_of
from dsv4kv.ops.spec import OPERATIONS, READS
from dsv4kv.runs.assemble import make_case
from dsv4kv.runs.schema import Case, Operation

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

    def settings(self) -> list[str]:
        """As settings of a benchmark."""
        return [f"workload.concurrency={self.batch}", f"cache.max_context_tokens={self.context}"]


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
        self._config = self._load(Shape(1, None, 1024), "model.layers=null")
        every = bd.plan_from(self._config)
        types: dict[AttentionType, int] = {}
        for schema in sorted(every.schemas, key=lambda each: not each.layer.selects):
            types.setdefault(schema.layer.attn, schema.layer.layer_idx)
        self._layers = sorted(types.values())
        self.device = find_device(self._config.device)
        self.own = bd.resolve(self._config.model_copy(update={"backend": None}), self.device)
        self.resolved = bd.resolve(self._config, self.device)
        if self.resolved.foreign and base not in self.resolved.foreign:
            brought = ", ".join(self.resolved.foreign)
            raise ConfigError(f"{self.resolved.name} has {brought}, and no {base}.")

    def _load(self, shape: Shape, *more: str) -> BenchConfig:
        return load_config("default", [*self._settings, *shape.settings(), *more]).config

    def check(self) -> int:
        """Cases that equal the reference.

        Raises ``VerificationError`` for one that does not, ``PeerUnavailable`` if there is none.
        """
        config = self._load(Shape(1, None, 1024), f"model.layers={self._layers}")
        bd.check_data_path(plan := bd.plan_from(config))
        where = self.device.device if self.device else torch.device("cpu")
        resolved, cases = self.resolved, 0
        draw = partial(foreign_scenes, resolved) if resolved.foreign else scenes_of
        for seed in range(config.measure.seed, config.measure.seed + _SEEDS):
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
        config = self._load(shape, f"model.layers={self._layers}")
        layers = self._with_operation(config)
        config = self._load(shape, f"model.layers={layers}")
        plan = bd.plan_from(config)
        if shape.topk:
            model = plan.config.model_copy(update={"index_topk": shape.topk})
            plan = replace(plan, config=model)
        if self.device:
            bd.check_device_memory(config, plan, self.device)
        elif memory_bytes:
            bd.check_memory(config, plan, memory_bytes)
        torch.set_num_threads(config.measure.threads)
        executor = self._build(config, plan)
        backends = list({each.name: each for each in (self.own, self.resolved)}.values())
        timed: dict[str, list[Operation]] = {}
        with Telemetry(gpu_uuid(self.device)) as telemetry:
            device = self.device or host_device()
            known = measure_baseline(self.device, config.measure.memcpy_bytes)
            turns = _TURNS if len(backends) > 1 else 1
            for backend in backends * turns:
                mine = replace(
                    executor, layers=[replace(e, backend=backend.backend) for e in executor.layers]
                )
                found: list[Operation] = []
                for figure in list_figures(mine, shape.batch, config.measure.seed):
                    if figure.name == self._name and not figure.hot:
                        budget = Budget(self._seconds / turns)
                        timer = _CheckedTimer(
                            self.operation,
                            getattr(self.own.backend, self.operation),
                            f"{self.operation} of {backend.name}, batch {shape.batch}",
                            device,
                            telemetry.windows,
                            telemetry.was_throttled,
                            budget,
                        )
                        found += measure_figures(mine, timer, [figure])[0]
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

    def _build(self, config: BenchConfig, plan: CachePlan) -> StepExecutor:
        manager = bd.build_manager(config, plan, self.device)
        return bd.build_drive(config, manager, Recorder(), self.own, self.device).executor

    def _with_operation(self, config: BenchConfig) -> list[int]:
        """Layers on which a decode step has the operation, one of a type."""
        small = self._load(Shape(1, None, 1024), f"model.layers={self._layers}")
        executor = self._build(small, bd.plan_from(small))
        figures = list_figures(executor, 1, 0)
        names = {each.name for each in figures}
        if self._name not in names:
            raise ConfigError(
                f"{self._name} is not an operation of a decode step of {config.model.preset}: "
                f"choose one of {', '.join(sorted(names))}."
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


def _repeat(run: Callable[[], None]) -> Callable[[], None]:
    """Stands for a capture: work is replayed by doing it again."""
    run()
    return run


def host_device() -> CudaDevice:
    """The CPU as a device that calls are timed on."""
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    cache = max((_bytes(each.read_text()) for each in sizes), default=_TYPICAL_CACHE_BYTES)
    return CudaDevice(torch.device("cpu"), "cpu", 0, cache, _HostEvent, lambda: _repeat)


def _bytes(text: str) -> int:
    return int(text.strip().removesuffix("K")) << 10
