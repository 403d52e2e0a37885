"""A run: every case of a sweep, each from the first request to the last, and the record of it."""

import shlex
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch

from dsv4kv.bench import build as bd
from dsv4kv.bench.device import (
    CallTimer,
    CudaDevice,
    describe_gpu,
    find_device,
    gpu_uuid,
    measure_memcpy,
    measure_peaks,
)
from dsv4kv.bench.figures import list_figures, measure_figures
from dsv4kv.bench.launches import Turns, one_cpu
from dsv4kv.bench.serve.executor import Recorder, StepExecutor
from dsv4kv.bench.serve.inputs import PromptContents
from dsv4kv.bench.serve.loop import ServingLoop, count_tokens, open_requests
from dsv4kv.bench.telemetry import Telemetry
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.load import Point
from dsv4kv.errors import CacheError, Dsv4kvError, PeerUnavailable, VerificationError
from dsv4kv.model.plan import CachePlan, bytes_per_token
from dsv4kv.ops.check import check_backend, foreign_scenes
from dsv4kv.ops.registry import ResolvedBackend
from dsv4kv.ops.spec import choose
from dsv4kv.runs import schema as sc
from dsv4kv.runs.points import (
    Invocation,
    as_options,
    begin_record,
    end_record,
    make_case,
    run_points,
)


def describe_cache(
    config: BenchConfig, plan: CachePlan, manager: KVCacheManager
) -> sc.CacheSummary:
    """The cache that was built, planned and allocated."""
    pages = [
        (place, getattr(schema, place))
        for place in ("main", "window", "indexer")
        for schema in plan.schemas
    ]
    allocated = manager.memory_by_pool()
    pools = [
        sc.Pool(
            **asdict(pool),
            predicted_bytes=pool.total_bytes,
            allocated_bytes=allocated.get((pool.name, pool.layer_type, pool.unit_bytes), 0),
        )
        for pool in plan.pools
        if config.workload.data == "real" or pool.name == "tables"
    ]
    return sc.CacheSummary(
        model=plan.config.name,
        layers=dict(Counter(schema.layer.attn.value for schema in plan.schemas)),
        total_layers=plan.config.num_layers,
        block_tokens=config.cache.block_tokens,
        sharing=config.cache.sharing,
        formats={place: page.format.name for place, page in pages if page},
        state=config.cache.state,
        num_blocks=max(plan.num_blocks.values(), default=0),
        total_blocks=sum(plan.num_blocks[group.name] * group.lanes for group in plan.groups),
        num_slots=plan.num_slots,
        max_context_tokens=plan.max_context_tokens,
        bytes_per_token=float(bytes_per_token(plan.schemas)),
        bytes_per_request=sum(schema.slot_bytes for schema in plan.schemas),
        pools=pools,
    )


@dataclass(frozen=True)
class Setup:
    """A case that is ready to run."""

    config: BenchConfig  # what was asked for
    plan: CachePlan  # the cache on paper
    device: CudaDevice | None  # none on the CPU
    resolved: ResolvedBackend  # the operations and where they come from
    manager: KVCacheManager  # the cache
    recorder: Recorder  # takes the samples
    drive: bd.Drive | None  # none where no data is moved

    def facts(self) -> dict[str, Any]:
        """What a record says of the configuration, the device and the operations."""
        resolved, scenes = self.resolved, []
        if resolved.foreign and self.config.workload.data == "real":
            scenes = foreign_scenes(resolved, self.plan, self.config.measure.seed)
        return {
            "config": self.config.model_dump(mode="json"),
            "device": "cuda" if self.device else "cpu",
            "backend": resolved.name,
            "foreign": list(resolved.foreign),
            "foreign_cases": dict(Counter(scene.operation for scene in scenes)),
            "variants": dict(resolved.variants),
            "backend_version": resolved.version,
        }


def run_case(
    axis: dict[str, Any],
    config: BenchConfig,
    on_progress: Callable[[int], None],
    memory_bytes: int | None = None,
    turns: Turns | None = None,
) -> sc.Case:
    """Build the cache, serve the workload, check and record it.

    Ctrl-C ends the run early: what was measured so far comes back, marked incomplete.
    ``on_progress`` is called with the tokens of every step; ``memory_bytes`` is the machine's
    memory; ``turns`` are taken with another process.
    Raises ``ConfigError`` or ``TraceError`` or ``DeviceError`` or ``VerificationError``.
    """
    setup = set_up(config, memory_bytes)
    drive, device, memcpy = setup.drive, setup.device, None
    with Telemetry(gpu_uuid(device)) as telemetry:
        if drive is not None and device is None:
            size = config.measure.memcpy_bytes
            with telemetry.window("memcpy"):
                memcpy = sc.Memcpy(bytes=2 * size, samples_ns=measure_memcpy(size))
        with telemetry.window("serve"):
            totals, interrupted, problem = _serve(setup, on_progress, turns)
        cache = describe_cache(config, setup.plan, setup.manager)
        problem = problem or _find_problem(setup, cache, totals)
        figures: dict[str, Any] = {"operations": _list_operations(setup.recorder)}
        if drive and device and not problem and not interrupted:
            try:
                figures = _measure_device(setup, drive, device, telemetry)
            except KeyboardInterrupt:  # what was served is measured all the same
                interrupted = True
    gpu = drive.executor.gpu if drive else None
    latencies = {name: samples.tolist() for name, samples in setup.recorder.latencies.items()}
    latencies |= gpu.clock.read_ns() if gpu else {}
    verification = sc.NOTHING_CHECKED
    if drive is not None:
        checks, failures = drive.verifier.checks, drive.verifier.failures
        verification = sc.Verification(
            checks=checks.total(), by_operation=dict(sorted(checks.items())), failures=failures
        )
    return make_case(
        error=problem,
        interrupted=interrupted,
        axis=axis,
        cache=cache,
        totals=totals,
        latencies=[sc.Latency(name=n, samples_ns=latencies[n]) for n in sorted(latencies)],
        memcpy=memcpy,
        verification=verification,
        telemetry=telemetry.describe(),
        gathers_because=drive.gathers_because if drive else None,
        **setup.facts(),
        **figures,
    )


def set_up(config: BenchConfig, memory_bytes: int | None) -> Setup:
    """Build everything that a case runs on; raises as ``run_case`` does."""
    torch.set_num_threads(config.measure.threads)
    plan = bd.plan_from(config)
    bd.check_contexts(config, plan)
    real = config.workload.data == "real"
    device = find_device(config.device) if real else None
    if real:
        bd.check_data_path(plan)
    bd.check_memory(config, plan, memory_bytes, device)
    resolved = bd.resolve(config, device)
    if resolved.foreign and real:
        where = device.device if device else torch.device("cpu")
        if wrong := check_backend(resolved, plan, where, config.measure.seed):
            sentences = "\n".join(wrong)
            raise VerificationError(f"{sentences}\nNothing was timed.")
    recorder = Recorder()
    manager = bd.build_manager(config, plan, device)
    drive = bd.build_drive(config, manager, recorder, resolved, device) if real else None
    return Setup(config, plan, device, resolved, manager, recorder, drive)


def make_loop(
    setup: Setup, recorder: Recorder, executor: StepExecutor | None, turns: Turns | None = None
) -> ServingLoop:
    config = setup.config
    requests = open_requests(config.workload, config.measure.seed)
    reuse = bd.build_reuse(config, setup.manager, setup.resolved.backend)
    contents = PromptContents() if reuse else None
    served = setup.manager, requests, config, recorder, executor
    return ServingLoop(*served, reuse, contents, turns)


def _serve(
    setup: Setup, on_progress: Callable[[int], None], turns: Turns | None
) -> tuple[sc.Totals, bool, str | None]:
    """Run the loop: totals, whether interrupted, and what went wrong."""
    executor = setup.drive.executor if setup.drive else None
    loop = make_loop(setup, setup.recorder, executor, turns)
    together = turns is not None and setup.config.measure.threads == 1
    try:
        with one_cpu() if together else nullcontext():
            for tokens in loop.steps():
                on_progress(tokens)
    except KeyboardInterrupt:
        return loop.totals, True, None
    except CacheError as error:
        return loop.totals, False, str(error)
    if loop.reuse is not None:
        loop.reuse.forget()
    loop.totals.blocks_left = setup.manager.num_held_blocks
    return loop.totals, False, None


def _find_problem(setup: Setup, cache: sc.CacheSummary, totals: sc.Totals) -> str | None:
    """The first thing that must not happen and did."""
    try:
        if setup.manager.device_tables is not None:
            setup.manager.device_tables.check()
    except CacheError as error:
        return str(error)
    for pool in cache.pools:
        if pool.predicted_bytes != pool.allocated_bytes:
            return (
                f"the {pool.name} pools of {pool.layer_type} layers take {pool.allocated_bytes} B "
                f"where the plan says {pool.predicted_bytes} B."
            )
    if setup.drive is not None and (failures := setup.drive.verifier.failures):
        return f"{len(failures)} sampled outputs differ from the reference."
    if totals.blocks_left:
        return f"{totals.blocks_left} blocks are still held although every request has ended."
    if totals.rejected and not totals.peak_requests:
        return (
            f"none of {totals.rejected} requests fits into the cache: raise "
            "cache.max_context_tokens or cache.num_blocks."
        )
    return None


def _list_operations(recorder: Recorder) -> list[sc.Operation]:
    found = []
    for (name, layer_type), samples in sorted(recorder.operations.items()):
        samples_ns, entries, moved, flops = (samples[i::4].tolist() for i in range(4))
        known = {"samples_ns": samples_ns, "entries": entries, "bytes": moved}
        flops = flops if any(flops) else []
        found.append(sc.Operation(name=name, layer_type=layer_type, flops=flops, **known))
    return found


def _measure_device(
    setup: Setup, drive: bd.Drive, device: CudaDevice, telemetry: Telemetry
) -> dict[str, Any]:
    """Single operations and their baselines; no request uses the cache any more."""
    measure, requests = setup.config.measure, setup.config.workload.concurrency
    polled = telemetry.windows, telemetry.was_throttled
    timer = CallTimer(device, *polled, measure.figures_seconds)
    floor = timer.time_floor()
    peaks = measure_peaks(device, measure.memcpy_bytes, timer)
    figures = list_figures(drive.executor, requests, measure.seed)
    operations, missing = measure_figures(drive.executor, timer, figures)
    return {
        "operations": operations,
        "not_measured": missing,
        "peaks": peaks,
        "empty_kernel_ns": floor or None,
    }


class Watcher(Protocol):
    """Receives the progress of a run."""

    def start(self, total_tokens: int) -> None:
        """The run begins and will process about ``total_tokens``."""

    def case(self, case: Point[BenchConfig]) -> None: ...

    def advance(self, tokens: int) -> None: ...


def check_variants(points: Sequence[Point[BenchConfig]]) -> None:
    """Refuse before any case runs what each of them would refuse: a GPU's variant on a CPU."""
    for config in (point.config for point in points):
        variants = config.ops.variant.model_dump()
        if any(variants.values()) and describe_gpu(config.device) is None:
            choose(variants, None)


def run_bench(invocation: Invocation[BenchConfig], watcher: Watcher) -> sc.RunRecord:
    """Run every case; a case that fails does not end a sweep. Raises ``Dsv4kvError``."""
    loaded, points, kept = invocation.loaded, invocation.points, invocation.sweep.points
    options = as_options(invocation.overrides, invocation.axes)
    begun = begin_record(
        loaded,
        points[0].config.workload.source,
        argv=invocation.argv,
        reproduce=shlex.join(["dsv4kv", "bench", loaded.source, *options]),
        gpu=describe_gpu(loaded.config.device),
        sweep=invocation.sweep,
    )
    turns, memory_bytes = Turns.join(), begun["environment"].memory_bytes
    if turns and memory_bytes:
        memory_bytes //= 2  # the other process has a cache as well
    done = kept.cases if kept else {}
    watcher.start(_count_all([p for n, p in enumerate(points) if n not in done]))

    def work(number: int) -> sc.Case:
        """Run one case; in a sweep, one that cannot begin leaves the others' results alone."""
        point = points[number]
        watcher.case(point)
        try:
            return run_case(point.axis, point.config, watcher.advance, memory_bytes, turns)
        except (Dsv4kvError, KeyboardInterrupt) as error:
            if len(points) == 1:
                raise
            config, backend = point.config.model_dump(mode="json"), point.config.backend or ""
            facts: dict[str, Any] = {"axis": point.axis, "config": config, "backend": backend}
            if isinstance(error, KeyboardInterrupt):
                return make_case(**facts, interrupted=True)
            if isinstance(error, PeerUnavailable):
                facts["status"] = "skipped"
            return make_case(**facts, error=str(error))

    cases = run_points(invocation.sweep, len(points), work)
    return end_record(begun, cases, len(points))


def _count_all(cases: Sequence[Point[BenchConfig]]) -> int:
    """Tokens of all cases; a workload that several cases share is read once."""
    counts: dict[Hashable, int] = {}
    total = 0
    for case in cases:
        workload, seed = case.config.workload, case.config.measure.seed
        requests = (workload.source, workload.trace_format, workload.skip, workload.limit)
        placed = (workload.context, workload.concurrency) if workload.context else None
        key = (requests, placed, workload.synthetic, seed)
        if key not in counts:
            counts[key] = count_tokens(workload, seed)
        total += counts[key]
    return total
