"""A run: every case of a sweep, each from the first request to the last, and the record of it."""

import shlex
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch

from dsv4kv.bench import build as bd
from dsv4kv.bench.device import (
    Budget,
    CallTimer,
    CudaDevice,
    describe_gpu,
    find_device,
    gpu_uuid,
    measure_memcpy,
    measure_peaks,
)
from dsv4kv.bench.figures import list_figures, measure_figures
from dsv4kv.bench.launches import Turns, bench_arguments, one_cpu
from dsv4kv.bench.serve.executor import Recorder, StepExecutor
from dsv4kv.bench.serve.inputs import PromptContents
from dsv4kv.bench.serve.loop import ServingLoop, count_tokens, open_requests
from dsv4kv.bench.serve.reuse import PrefixReuse
from dsv4kv.bench.serve.verifier import Verifier
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
from dsv4kv.runs.assemble import Invocation, begin_record, end_record, make_case
from dsv4kv.runs.points import run_points


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


def find_problem(
    cache: sc.CacheSummary, totals: sc.Totals, verifier: Verifier | None
) -> str | None:
    """The first thing that must not happen and did."""
    for pool in cache.pools:
        if pool.predicted_bytes != pool.allocated_bytes:
            return (
                f"the {pool.name} pools of {pool.layer_type} layers take {pool.allocated_bytes} B "
                f"where the plan says {pool.predicted_bytes} B."
            )
    if verifier is not None and verifier.failures:
        return f"{len(verifier.failures)} sampled outputs differ from the reference."
    if totals.blocks_left:
        return f"{totals.blocks_left} blocks are still held although every request has ended."
    if totals.rejected and not totals.peak_requests:
        return (
            f"none of {totals.rejected} requests fits into the cache: raise "
            "cache.max_context_tokens or cache.num_blocks."
        )
    return None


def list_operations(recorder: Recorder) -> list[sc.Operation]:
    """Operations that were timed one by one."""
    found = []
    for (name, layer_type), samples in sorted(recorder.operations.items()):
        samples_ns, entries, moved, flops = (samples[i::4].tolist() for i in range(4))
        known = {"samples_ns": samples_ns, "entries": entries, "bytes": moved}
        flops = flops if any(flops) else []
        found.append(sc.Operation(name=name, layer_type=layer_type, flops=flops, **known))
    return found


def list_latencies(
    recorder: Recorder, device_ns: Mapping[str, Sequence[int]] | None = None
) -> list[sc.Latency]:
    """Latencies on the host, and spans on the device's clock."""
    found = {name: samples.tolist() for name, samples in recorder.latencies.items()}
    found |= {name: list(samples) for name, samples in (device_ns or {}).items()}
    return [sc.Latency(name=name, samples_ns=found[name]) for name in sorted(found)]


Progress = Callable[[int], None]


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

    def _foreign_cases(self) -> dict[str, int]:
        if not self.resolved.foreign or self.config.workload.data != "real":
            return {}
        scenes = foreign_scenes(self.resolved, self.plan, self.config.measure.seed)
        return dict(Counter(scene.operation for scene in scenes))

    def facts(self) -> dict[str, Any]:
        """What a record says of the configuration, the device and the operations."""
        resolved = self.resolved
        return {
            "config": self.config.model_dump(mode="json"),
            "device": "cuda" if self.device else "cpu",
            "backend": resolved.name,
            "foreign": list(resolved.foreign),
            "foreign_cases": self._foreign_cases(),
            "variants": dict(resolved.variants),
            "backend_version": resolved.version,
        }


def run_case(
    axis: dict[str, Any],
    config: BenchConfig,
    on_progress: Progress,
    memory_bytes: int | None = None,
    turns: Turns | None = None,
) -> sc.Case:
    """Build the cache, serve the workload, check and record it.

    Ctrl-C ends the run early: what was measured so far comes back, marked incomplete.
    ``on_progress`` is called with the tokens of every step; ``memory_bytes`` is the machine's
    memory; ``turns`` are taken with another process.
    Raises ``ConfigError`` or ``TraceError`` or ``DeviceError`` or ``VerificationError``.
    """
    setup, memcpy = set_up(config, memory_bytes), None
    with Telemetry(gpu_uuid(setup.device)) as telemetry:
        if setup.drive is not None and setup.device is None:
            size = config.measure.memcpy_bytes
            with telemetry.window("memcpy"):
                memcpy = sc.Memcpy(bytes=2 * size, samples_ns=measure_memcpy(size))
        with telemetry.window("serve"):
            totals, interrupted, problem = _serve(setup, on_progress, turns)
        try:
            if setup.manager.device_tables is not None:
                setup.manager.device_tables.check()
        except CacheError as error:
            problem = problem or str(error)
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
    return make_case(
        error=problem,
        interrupted=interrupted,
        axis=axis,
        cache=cache,
        totals=totals,
        latencies=list_latencies(setup.recorder, gpu.clock.read_ns() if gpu else None),
        memcpy=memcpy,
        verification=sc.Verification(
            checks=verifier.checks.total(),
            by_operation=dict(sorted(verifier.checks.items())),
            failures=verifier.failures,
        )
        if verifier
        else sc.NOTHING_CHECKED,
        telemetry=telemetry.describe(),
        gathers_because=setup.drive.gathers_because if setup.drive else None,
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
    if memory_bytes is not None:
        bd.check_memory(config, plan, memory_bytes, on_host=device is None)
    if device is not None:
        bd.check_device_memory(config, plan, device)
    resolved = bd.resolve(config, device)
    if resolved.foreign and real:
        where = device.device if device else torch.device("cpu")
        if wrong := check_backend(resolved, plan, where, config.measure.seed):
            sentences = "\n".join(map(str, wrong))
            raise VerificationError(f"{sentences}\nNothing was timed.")
    recorder = Recorder()
    manager = bd.build_manager(config, plan, device)
    drive = None
    if real:
        drive = bd.build_drive(config, manager, recorder, resolved, device)
    return Setup(config, plan, device, resolved, manager, recorder, drive)


def make_loop(
    setup: Setup, recorder: Recorder, executor: StepExecutor | None, turns: Turns | None = None
) -> tuple[ServingLoop, PrefixReuse | None]:
    """The loop that serves a case's workload, and what shares prefixes in it."""
    config = setup.config
    requests = open_requests(config.workload, config.measure.seed)
    reuse = bd.build_reuse(config, setup.manager, setup.resolved.backend)
    contents = PromptContents() if reuse else None
    served = setup.manager, requests, config, recorder, executor
    return ServingLoop(*served, reuse, contents, turns), reuse


def _serve(
    setup: Setup, on_progress: Progress, turns: Turns | None
) -> tuple[sc.Totals, bool, str | None]:
    """Run the loop: totals, whether interrupted, and what went wrong."""
    manager, executor = setup.manager, setup.drive.executor if setup.drive else None
    loop, reuse = make_loop(setup, setup.recorder, executor, turns)
    interrupted, problem = False, None
    together = turns is not None and setup.config.measure.threads == 1
    try:
        with one_cpu() if together else nullcontext():
            for tokens in loop.steps():
                on_progress(tokens)
    except KeyboardInterrupt:
        interrupted = True
    except CacheError as error:
        problem = str(error)
    ended = not interrupted and problem is None
    if ended and reuse is not None:
        reuse.forget()
    if ended:
        loop.totals.blocks_left = manager.num_held_blocks
    return loop.totals, interrupted, problem


def _measure_device(
    setup: Setup, drive: bd.Drive, device: CudaDevice, telemetry: Telemetry
) -> dict[str, Any]:
    """Single operations and their baselines; no request uses the cache any more."""
    measure, requests = setup.config.measure, setup.config.workload.concurrency
    budget = Budget(measure.figures_seconds)
    timer = CallTimer(device, telemetry.windows, telemetry.was_throttled, budget)
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

    def case(self, case: Point[BenchConfig]) -> None:
        """Another case begins."""

    def advance(self, tokens: int) -> None:
        """More tokens are done."""


def check_variants(points: Sequence[Point[BenchConfig]]) -> None:
    """Refuse before any case runs what each of them would refuse: a GPU's variant on a CPU."""
    for config in (point.config for point in points):
        variants = config.ops.variant.model_dump()
        if any(variants.values()) and describe_gpu(config.device) is None:
            choose(variants, None)


def run_bench(invocation: Invocation[BenchConfig], watcher: Watcher) -> sc.RunRecord:
    """Run every case; a case that fails does not end a sweep. Raises ``Dsv4kvError``."""
    loaded, points, kept = invocation.loaded, invocation.points, invocation.sweep.points
    words = bench_arguments(loaded.source, invocation.overrides, invocation.axes)
    begun = begin_record(
        loaded,
        points[0].config.workload.source,
        argv=invocation.argv,
        reproduce=shlex.join(["dsv4kv", "bench", *words]),
        gpu=describe_gpu(loaded.config.device),
        sweep=invocation.sweep,
    )
    turns, memory_bytes = Turns.join(), begun["environment"].memory_bytes
    if turns and memory_bytes:
        memory_bytes //= 2  # the other process has a cache as well
    done = kept.cases if kept else {}
    watcher.start(_count_all([p for n, p in enumerate(points) if n not in done]))

    def work(number: int) -> sc.Case:
        watcher.case(points[number])
        alone = len(points) == 1
        return _run(points[number], watcher, memory_bytes, turns, alone=alone)

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


def _run(
    point: Point[BenchConfig],
    watcher: Watcher,
    memory_bytes: int | None,
    turns: Turns | None,
    *,
    alone: bool,
) -> sc.Case:
    """Run one case; in a sweep, one that cannot begin leaves the others' results alone."""
    try:
        return run_case(point.axis, point.config, watcher.advance, memory_bytes, turns)
    except (Dsv4kvError, KeyboardInterrupt) as error:
        if alone:
            raise
        config, backend = point.config.model_dump(mode="json"), point.config.backend or ""
        facts: dict[str, Any] = {"axis": point.axis, "config": config, "backend": backend}
        if isinstance(error, KeyboardInterrupt):
            return make_case(**facts, interrupted=True)
        if isinstance(error, PeerUnavailable):
            facts["status"] = "skipped"
        return make_case(**facts, error=str(error))
