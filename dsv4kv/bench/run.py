"""A whole run: every case of a sweep, and the record of it."""

import shlex
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dsv4kv.bench.case import run_case
from dsv4kv.bench.device import describe_gpu
from dsv4kv.bench.launches import bench_arguments
from dsv4kv.bench.serve.loop import count_tokens
from dsv4kv.bench.turns import Turns
from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.load import LoadedConfig, Point
from dsv4kv.errors import Dsv4kvError, PeerUnavailable
from dsv4kv.runs.assemble import begin_record, end_record, make_case
from dsv4kv.runs.points import HERE, Sweep, run_points
from dsv4kv.runs.schema import Case, RunRecord


@dataclass(frozen=True)
class Invocation:
    """How the run was asked for."""

    argv: list[str]  # the command line
    loaded: LoadedConfig  # the configuration file with overrides applied
    cases: Sequence[Point[BenchConfig]]  # points of the sweep; one without axes
    overrides: Sequence[str]  # ``a.b=c`` options, in effect
    axes: Sequence[str]  # ``a.b=1,2`` options
    sweep: Sweep = HERE  # keeps its points; they are timed, so one after the other


class Watcher(Protocol):
    """Receives the progress of a run."""

    def start(self, total_tokens: int) -> None:
        """The run begins and will process about ``total_tokens``."""

    def case(self, case: Point[BenchConfig]) -> None:
        """Another case begins."""

    def advance(self, tokens: int) -> None:
        """More tokens are done."""


def run_bench(invocation: Invocation, watcher: Watcher) -> RunRecord:
    """Run every case; a case that fails does not end a sweep. Raises ``Dsv4kvError``."""
    loaded, points, kept = invocation.loaded, invocation.cases, invocation.sweep.points
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

    def work(number: int) -> Case:
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
) -> Case:
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
