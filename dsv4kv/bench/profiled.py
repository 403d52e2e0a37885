"""Serves a configured workload until it is steady, and lets a profiler look at a few decode steps.

The loop is the same on a GPU and on the CPU: what is profiled is what ``dsv4kv bench`` measures.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields

from dsv4kv.bench.build import build_reuse, loop_settings
from dsv4kv.bench.case import Setup, set_up
from dsv4kv.bench.peaks import measure_peaks
from dsv4kv.bench.profile_watch import Enough, MarkingRecorder, ProfiledExecutor, Watch
from dsv4kv.bench.summary import describe_cache, describe_verification
from dsv4kv.config.bench import BenchConfig
from dsv4kv.errors import ConfigError
from dsv4kv.measure.memcpy import measure_memcpy
from dsv4kv.measure.profilers.attached import Attached
from dsv4kv.report.profile_record import Profile
from dsv4kv.report.record import Case, Memcpy, Peak
from dsv4kv.workload.contents import PromptContents
from dsv4kv.workload.executor import StepExecutor
from dsv4kv.workload.loop import ServingLoop
from dsv4kv.workload.source import open_requests


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
    config, recorder = setup.config, MarkingRecorder(watch)
    kept = {each.name: getattr(executor, each.name) for each in fields(executor) if each.init}
    profiled = ProfiledExecutor(**kept | {"recorder": recorder}, watch=watch)
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
