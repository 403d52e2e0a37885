"""Run one configuration from the first request to the last and tell what happened."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from dsv4kv.bench.build import (
    Drive,
    build_drive,
    build_manager,
    build_reuse,
    check_data_path,
    check_device_memory,
    check_memory,
    loop_settings,
    plan_from,
)
from dsv4kv.bench.device import CudaDevice, check_prepare, find_device
from dsv4kv.bench.memory_series import MemoryWatch
from dsv4kv.bench.operation_figures import measure_operations
from dsv4kv.bench.peaks import measure_peaks
from dsv4kv.bench.replay_timing import CallTimer
from dsv4kv.bench.summary import (
    describe_cache,
    describe_verification,
    find_problem,
    list_latencies,
    list_operations,
)
from dsv4kv.bench.telemetry import describe_telemetry, gpu_uuid
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.config.bench import BenchConfig
from dsv4kv.errors import CacheError, PeerUnavailable, VerificationError
from dsv4kv.measure.budget import Budget
from dsv4kv.measure.memcpy import measure_memcpy
from dsv4kv.measure.recorder import Recorder
from dsv4kv.measure.telemetry.telemetry import Telemetry
from dsv4kv.measure.turns import Turns, one_cpu
from dsv4kv.model.plan import CachePlan
from dsv4kv.ops.check import check_backend
from dsv4kv.ops.peers import PEERS
from dsv4kv.ops.registry import ResolvedBackend, resolve_backend
from dsv4kv.ops.variants import Choice, choose, refuse_choice
from dsv4kv.report.memory_record import MemorySeries
from dsv4kv.report.record import Case, Memcpy, Totals
from dsv4kv.workload.contents import PromptContents
from dsv4kv.workload.loop import LoopTotals, ServingLoop
from dsv4kv.workload.source import open_requests

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Setup:
    """A case that is ready to run.

    Attributes:
        config: What was asked for.
        plan: The cache on paper.
        device: None on the CPU.
        resolved: The operations and where they come from.
        manager: The cache.
        recorder: Takes the samples.
        drive: None where no data is moved.
    """

    config: BenchConfig
    plan: CachePlan
    device: CudaDevice | None
    resolved: ResolvedBackend
    manager: KVCacheManager
    recorder: Recorder
    drive: Drive | None


def run_case(
    axis: dict[str, Any],
    config: BenchConfig,
    on_progress: Progress,
    memory_bytes: int | None = None,
    turns: Turns | None = None,
) -> Case:
    """Build the cache, serve the workload, check and record it.

    Ctrl-C ends the run early: what was measured so far comes back, marked incomplete.
    ``on_progress`` is told the tokens of every step; ``memory_bytes`` is the machine's memory;
    ``turns`` are taken with another process.

    Raises:
        ConfigError: The configuration cannot be built, or not on this machine.
        TraceError: The trace cannot be read.
        DeviceError: The device or the package of a backend is not there.
        VerificationError: Operations that come from elsewhere differ from the reference.
    """
    setup = set_up(config, memory_bytes)
    with Telemetry(gpu_uuid(setup.device)) as telemetry:
        memcpy = _measure_memcpy(setup, telemetry)
        with telemetry.window("serve"):
            totals, memory, interrupted, problem = _serve(setup, on_progress, turns)
        problem = problem or _check_tables(setup)
        cache = describe_cache(config, setup.plan, setup.manager)
        verifier = setup.drive.verifier if setup.drive else None
        problem = problem or find_problem(cache, totals, verifier)
        figures: dict[str, Any] = {"operations": list_operations(setup.recorder)}
        if setup.drive and setup.device and not problem and not interrupted:
            try:
                figures = _measure_device(setup, setup.drive, setup.device, telemetry)
            except KeyboardInterrupt:  # what was served is measured all the same
                interrupted = True
    gpu = setup.drive.executor.gpu if setup.drive else None
    return Case(
        axis=axis,
        status="failed" if problem else "incomplete" if interrupted else "complete",
        error=problem,
        config=config.model_dump(mode="json"),
        device="cuda" if setup.device else "cpu",
        backend=setup.resolved.name,
        foreign=list(setup.resolved.foreign),
        variants=dict(setup.resolved.variants),
        backend_version=setup.resolved.version,
        cache=cache,
        totals=totals,
        latencies=list_latencies(setup.recorder, gpu.clock.read_ns() if gpu else None),
        memcpy=memcpy,
        verification=describe_verification(verifier),
        telemetry=describe_telemetry(telemetry),
        memory=memory,
        **figures,
    )


def unbuilt_case(
    axis: dict[str, Any],
    config: BenchConfig,
    status: Literal["failed", "incomplete", "skipped"],
    problem: str | None,
) -> Case:
    """A case of a sweep that ended before it began, and why."""
    return Case(
        axis=axis,
        status=status,
        error=problem,
        config=config.model_dump(mode="json"),
        backend=config.backend or "",
        cache=None,
        totals=None,
        operations=[],
        latencies=[],
        memcpy=None,
        verification=describe_verification(None),
    )


def set_up(config: BenchConfig, memory_bytes: int | None) -> Setup:
    """Build everything that a case runs on; raises as ``run_case`` does."""
    torch.set_num_threads(config.measure.threads)
    plan = plan_from(config)
    real = config.workload.data == "real"
    device = find_device(config.device) if real else None
    check_prepare(config.cache.prepare, device)
    if real:
        check_data_path(plan)
    if memory_bytes is not None:
        check_memory(config, plan, memory_bytes, on_host=device is None)
    if device is not None:
        check_device_memory(config, plan, device)
    resolved = _resolve(config, plan, device)
    recorder = Recorder()
    manager = build_manager(config, plan, device)
    drive = None
    if real:
        parts = resolved.backend, device, resolved.variants
        drive = build_drive(config, manager, recorder, *parts)
    return Setup(config, plan, device, resolved, manager, recorder, drive)


def _resolve(config: BenchConfig, plan: CachePlan, device: CudaDevice | None) -> ResolvedBackend:
    """The operations that will run; those from elsewhere are checked before they are timed."""
    own = "cuda" if device else "cpu"
    if device is None and config.backend in PEERS:
        raise PeerUnavailable(f"{config.backend} runs on a GPU, and the cache is on the CPU.")
    resolved = resolve_backend(config.backend or own, own, _choose_variants(config, device))
    if resolved.foreign and config.workload.data == "real":
        where = device.device if device else torch.device("cpu")
        wrong = check_backend(resolved, plan, where, config.measure.seed)
        if wrong:
            told = "\n".join(map(str, wrong))
            raise VerificationError(f"{told}\nNothing was timed.")
    return resolved


def _choose_variants(config: BenchConfig, device: CudaDevice | None) -> Choice:
    """How the toolkit's own operations are done: several ways only on a GPU."""
    asked = config.ops.variant.model_dump()
    if device is not None:
        return choose(asked, device.architecture)
    refuse_choice(asked)
    return {}


def _serve(
    setup: Setup, on_progress: Progress, turns: Turns | None
) -> tuple[Totals, MemorySeries, bool, str | None]:
    """Run the loop: totals, memory over time, whether interrupted, and what went wrong."""
    config, manager = setup.config, setup.manager
    requests = open_requests(config.workload, config.measure.seed)
    executor = setup.drive.executor if setup.drive else None
    reuse = build_reuse(config, manager, setup.resolved.backend)
    memory = MemoryWatch(manager, setup.recorder, reuse)
    loop = ServingLoop(
        manager,
        requests,
        loop_settings(config),
        setup.recorder,
        executor,
        on_progress,
        reuse,
        PromptContents() if reuse else None,
        turns,
        memory.look,
    )
    interrupted, problem = False, None
    together = turns is not None and config.measure.threads == 1
    try:
        with one_cpu() if together else nullcontext():
            loop.run()
    except KeyboardInterrupt:
        interrupted = True
    except CacheError as error:
        problem = str(error)
    ended = not interrupted and problem is None
    if ended and reuse is not None:
        reuse.forget()
    totals = _totals(loop.totals, manager.num_held_blocks if ended else 0)
    return totals, memory.series(), interrupted, problem


def _totals(totals: LoopTotals, blocks_left: int) -> Totals:
    return Totals(**asdict(totals), blocks_left=blocks_left)


def _check_tables(setup: Setup) -> str | None:
    """Whether the tables on the device are still the host's."""
    try:
        if setup.manager.device_tables is not None:
            setup.manager.device_tables.check()
    except CacheError as error:
        return str(error)
    return None


def _measure_memcpy(setup: Setup, telemetry: Telemetry) -> Memcpy | None:
    """The yardstick of a run on the CPU."""
    if setup.drive is None or setup.device is not None:
        return None
    size = setup.config.measure.memcpy_bytes
    with telemetry.window("memcpy"):
        return Memcpy(bytes=2 * size, samples_ns=measure_memcpy(size))


def _measure_device(
    setup: Setup, drive: Drive, device: CudaDevice, telemetry: Telemetry
) -> dict[str, Any]:
    """Single operations, and what they are held against; the cache is nobody's by now."""
    measure, requests = setup.config.measure, setup.config.workload.concurrency
    budget = Budget(measure.figures_seconds)
    timer = CallTimer(device, telemetry.windows, telemetry.was_throttled, budget)
    floor = timer.time_floors()
    peaks = measure_peaks(device, measure.memcpy_bytes, timer)
    operations, missing = measure_operations(drive.executor, timer, requests, measure.seed)
    return {
        "operations": operations,
        "not_measured": missing,
        "peaks": peaks,
        "empty_kernel_ns": floor or None,
    }
