"""Serves a configured workload until it is steady, and lets a profiler look at a few decode steps.

The loop is the same on a GPU and on the CPU: what is profiled is what ``dsv4kv bench`` measures.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, fields

from dsv4kv.bench.build import build_reuse, loop_settings
from dsv4kv.bench.case import Setup, describe_cache, describe_verification, set_up
from dsv4kv.bench.timing import measure_peaks
from dsv4kv.config.bench import BenchConfig
from dsv4kv.errors import ConfigError
from dsv4kv.measure.memcpy import measure_memcpy
from dsv4kv.measure.profilers.attached import Attached
from dsv4kv.measure.profilers.ranges import STEP
from dsv4kv.measure.recorder import Recorder
from dsv4kv.runs.profile import Profile
from dsv4kv.runs.schema import Case, Memcpy, Peak
from dsv4kv.serve.executor import StepExecutor, StepTokens
from dsv4kv.serve.inputs import PromptContents
from dsv4kv.serve.loop import ServingLoop, open_requests
from dsv4kv.serve.operations import name_of


class Enough(Exception):
    """All steps that were to be profiled are done."""


@dataclass
class Watch:
    """Decides when the profiler looks, and keeps what it looked at."""

    profiler: Attached  # looks
    steps: int  # decode steps to look at
    requests: int  # begin with the first step of so many requests
    warmup: int  # decode steps of so many requests to let pass before
    step_requests: list[int] = field(default_factory=list)  # requests of every step looked at
    useful_bytes: Counter[str] = field(default_factory=Counter)
    """Bytes that operations had to move, by name."""
    active: bool = False  # whether a step is being looked at
    started: bool = False  # whether the profiler is on
    _full: int = 0

    def mark(self, name: str) -> AbstractContextManager[object]:
        """A range inside a profiled step; nothing elsewhere."""
        return self.profiler.mark(name) if self.active else nullcontext()

    @contextmanager
    def look_at(self, step: StepTokens) -> Iterator[None]:
        """Profile a decode step, if it is time; ends the loop after the last."""
        requests = step.batch.num_requests
        self._full += requests == self.requests
        if self._full <= self.warmup:
            yield
            return
        if not self.started:
            self.started = True
            self.profiler.start()
            yield  # not looked at: a profiler takes its time to begin
            return
        self.active = True
        try:
            with self.profiler.mark(STEP):
                yield
        finally:
            self.active = False
        self.step_requests.append(requests)
        if len(self.step_requests) == self.steps:
            raise Enough


@dataclass(kw_only=True)
class ProfiledExecutor(StepExecutor):
    """An executor whose decode steps are looked at."""

    watch: Watch  # looks

    def decode(self, step: StepTokens) -> None:
        """See ``StepExecutor``."""
        with self.watch.look_at(step):
            super().decode(step)
            if self.watch.active:
                self._count_bytes(step)

    def _count_bytes(self, step: StepTokens) -> None:
        """Bytes by kernel: those of indexer keys and of compressed KV have one name on a GPU."""
        work, on_gpu = self.work_of(step), self.gpu is not None
        for layer in self.layers:
            for operation, indexer in self.step_operations(layer):
                entries, moved, _ = work.of(operation, layer.schema, indexer=indexer)
                named = f"{name_of(operation, indexer)} {layer.schema.layer.attn}"
                self.watch.useful_bytes[operation if on_gpu else named] += (
                    moved if entries or on_gpu else 0
                )


def run_profiled(
    config: BenchConfig,
    profiler: Attached,
    steps: int,
    keep: Callable[[Case], None],
    memory_bytes: int | None = None,
) -> None:
    """Profile ``steps`` decode steps of as many requests as may run at once.

    ``keep`` is given the case before the profiler stops, which may end this process: it has the
    bytes that operations had to move, and no kernel table yet.

    Raises:
        ConfigError: The workload moves no data, or never has a step of so many requests.
        Dsv4kvError: As ``run_case``.
    """
    setup = set_up(_adapt(config), memory_bytes)
    if setup.drive is None:
        raise ConfigError("workload.data is none, and so there is nothing to profile: set real.")
    memcpy, peaks = _measure_yardsticks(setup)
    watch = Watch(profiler, steps, config.workload.concurrency, config.measure.warmup_steps)
    _serve(setup, setup.drive.executor, watch)
    case = Case(
        axis={},
        status="complete",
        error=None,
        config=setup.config.model_dump(mode="json"),
        device="cuda" if setup.device else "cpu",
        backend=setup.resolved.name,
        foreign=list(setup.resolved.foreign),
        variants=dict(setup.resolved.variants),
        backend_version=setup.resolved.version,
        cache=describe_cache(config, setup.plan, setup.manager),
        totals=None,
        operations=[],
        latencies=[],
        memcpy=memcpy,
        peaks=peaks,
        verification=describe_verification(None),
        profile=Profile(
            why="",
            command=[],
            files=[],
            step_requests=watch.step_requests,
            useful_bytes=dict(watch.useful_bytes),
            table=None,
        ),
    )
    keep(case)
    profiler.stop()


def _adapt(config: BenchConfig) -> BenchConfig:
    """No checks, which would be profiled, too; and one way of launching, graphs if it may."""
    way = "graph" if config.workload.decode == "both" else config.workload.decode
    workload = config.workload.model_copy(update={"decode": way})
    measure = config.measure.model_copy(update={"verify_every": 0})
    return config.model_copy(update={"workload": workload, "measure": measure})


def _serve(setup: Setup, executor: StepExecutor, watch: Watch) -> None:
    config, recorder = setup.config, Recorder()
    kept = {each.name: getattr(executor, each.name) for each in fields(executor) if each.init}
    profiled = ProfiledExecutor(**kept | {"recorder": recorder, "mark": watch.mark}, watch=watch)
    requests = open_requests(config.workload, config.measure.seed)
    reuse = build_reuse(config, setup.manager, setup.resolved.backend)
    loop = ServingLoop(
        setup.manager,
        requests,
        loop_settings(config),
        recorder,
        profiled,
        reuse=reuse,
        contents=PromptContents() if reuse else None,
    )
    with suppress(Enough):
        loop.run()
    if not watch.step_requests:
        if watch.started:
            watch.profiler.stop()
        raise ConfigError(
            f"the workload has no more than {watch.warmup} decode steps of {watch.requests} "
            "requests, so no steady one to profile: lower workload.concurrency or "
            "measure.warmup_steps, or take a longer workload."
        )


def _measure_yardsticks(setup: Setup) -> tuple[Memcpy | None, list[Peak]]:
    size = setup.config.measure.memcpy_bytes
    if setup.device is not None:
        return None, measure_peaks(setup.device, size)
    return Memcpy(bytes=2 * size, samples_ns=measure_memcpy(size)), []
