"""What the first screen says: what was measured on what, whether it is right, three numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from dsv4kv.measure.statistics import Estimate, divide
from dsv4kv.record.quantities import (
    allocated_bytes,
    axis_text,
    gather_rate,
    latency_median,
    saved_percent,
)
from dsv4kv.record.schema import Case, Launch, RunRecord
from dsv4kv.record.yardstick import yardsticks
from dsv4kv.units import format_bytes
from dsv4kv.view.case import graph_device_time
from dsv4kv.view.cells import format_estimate, format_number, measured
from dsv4kv.view.facts import tokens_per_second
from dsv4kv.view.page.sections import judge_case
from dsv4kv.view.page.sweep import Reader, across_launches
from dsv4kv.view.table import Finding

_UNITS = (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0))


@dataclass(frozen=True)
class KeyNumber:
    """``8.12``, ``± 0.30``, ``ms``, and what to hold it against."""

    label: str
    value: str
    spread: str
    unit: str
    note: str


def measured_number(
    label: str, estimate: Estimate, unit: str, note: str, scale: float = 1.0
) -> KeyNumber:
    """A number with its interval."""
    cell = measured(estimate, scale)
    return KeyNumber(label, cell.value, cell.spread, unit, note)


def measured_duration(label: str, time: Estimate, note: str) -> KeyNumber:
    """A duration, given in ns, in the largest unit that keeps it at 1 or above."""
    unit, size = next((each for each in _UNITS if time.value >= each[1]), _UNITS[-1])
    return measured_number(label, time, unit, note, 1 / size)


_MOST_NUMBERS = 3

Group = Sequence[Case]
"""Launches of one configuration."""


def name_run(record: RunRecord) -> str:
    """What was measured on what: ``KV cache of v4-flash on NVIDIA H200``."""
    models = ", ".join(dict.fromkeys(case.cache.model for case in record.cases if case.cache))
    if any(case.replay for case in record.cases):
        trace = record.trace_source or "synthetic requests"
        return f"Replay of {trace} through the KV cache of {models or 'no model'}"
    gpu, cpu = record.environment.gpu, record.environment.cpu
    machine = gpu.name if gpu else cpu or "an unknown CPU"
    return f"KV cache of {models or 'no model'} on {machine}"


def judge_record(record: RunRecord) -> Finding:
    """Whether the numbers may be believed, in a sentence."""
    found = [*judge_launches(record.launches)]
    found += [finding for case in record.cases for finding in judge_case(case)]
    for level, more in (("bad", "more problems"), ("warning", "more reservations")):
        if same := [finding for finding in found if finding.level == level]:
            first = same[0].sentence.removesuffix(":")
            rest = f"; {len(same) - 1:,} {more}, listed below" if len(same) > 1 else ""
            return replace(same[0], sentence=first + rest)
    if not record.cases:
        return Finding("warning", "no case ran")
    if any(case.replay for case in record.cases):
        served = sum(case.totals.requests for case in record.cases if case.totals)
        return Finding("good", f"{served:,} requests served in virtual time, no block leaked")
    checks = sum(case.verification.checks for case in record.cases)
    planned = any(case.cache and case.cache.pools for case in record.cases)
    told = [
        f"{checks:,} outputs equal the reference" if checks else "no output was compared",
        *(["memory as predicted to the byte"] if planned else []),
        "no block leaked",
    ]
    return Finding("good" if checks else "note", ", ".join(told))


def judge_launches(launches: Sequence[Launch]) -> list[Finding]:
    """Launches that did not run to their end."""
    return [
        Finding(
            "warning" if launch.status == "incomplete" else "bad",
            f"launch {launch.launch} {launch.status.replace('_', ' ')}: "
            f"{launch.error or 'stopped before the end'}",
        )
        for launch in launches
        if launch.status != "complete"
    ]


def key_numbers(groups: Sequence[Group]) -> list[KeyNumber]:
    """The first three that the run has; of a sweep the best setting's."""
    found = _of_one(groups[0]) if len(groups) == 1 else _of_sweep(groups)
    return list(islice(found, _MOST_NUMBERS))


def _of_one(launches: Group) -> Iterator[KeyNumber]:
    case = launches[0]
    if case.replay:
        yield from _of_replay(case)
    of = f"over {len(launches)} launches" if len(launches) > 1 else ""
    if (time := across_launches(launches, graph_device_time)) is not None:
        note = _join("median", of, "all layers held")
        yield measured_duration("Decode step on the GPU", time, note)
    elif (time := across_launches(launches, _step)) is not None:
        yield measured_duration("Step", time, _join("median", of, "with the host in it"))
    if (rate := across_launches(launches, gather_rate)) is not None:
        yield measured_number("Gather", rate, "GB/s", _share(launches, rate))
    if case.cache:
        size = allocated_bytes(case)
        note = f"{format_bytes(size)} allocated in all" if size else "all layers held"
        value = format_number(case.cache.bytes_per_token)
        yield KeyNumber("Cache per token", value, "", "B", note)
    if (time := across_launches(launches, _prepare)) is not None:
        yield measured_duration("Prepare", time, _join("median", of, "bookkeeping of a step"))
    if case.totals and (speed := tokens_per_second(case.totals)):
        yield KeyNumber("Throughput", f"{speed:,.0f}", "", "tokens/s", "in and out, one run")


def _of_replay(case: Case) -> Iterator[KeyNumber]:
    if (saved := saved_percent(case)) is not None:
        note = "of all prompt tokens were cached and not computed again"
        yield KeyNumber("Saved", f"{saved:.1f}", "", "%", note)
    for name, label in (("ttft", "First token"), ("tpot", "A further token")):
        if (time := latency_median(case, name)) is not None:
            yield measured_duration(label, time, "median over requests, time of the model")


def _of_sweep(groups: Sequence[Group]) -> Iterator[KeyNumber]:
    if best := _best(groups, _saved, 1):
        value, note = f"{best[0].value:.1f}", f"at {best[1]}"
        yield KeyNumber("Most saved", value, "", "% of prompt tokens", note)
    if best := _best(groups, _first_token, -1):
        yield measured_duration("Earliest first token", best[0], f"median, at {best[1]}")
    if best := _best(groups, _step, -1):
        yield measured_duration("Shortest step", best[0], f"median, at {best[1]}")
    if best := _best(groups, gather_rate, 1):
        yield measured_number("Fastest gather", best[0], "GB/s", f"at {best[1]}")
    if best := _best(groups, _throughput, 1):
        label, note = "Highest throughput", f"in and out, at {best[1]}"
        yield KeyNumber(label, f"{best[0].value:,.0f}", "", "tokens/s", note)


def _best(groups: Sequence[Group], read: Reader, sign: int) -> tuple[Estimate, str] | None:
    """The highest (or with ``sign`` -1 the lowest) of a number, and at which setting it was."""
    found = [
        (estimate, axis_text(group[0]))
        for group in groups
        if (estimate := across_launches(group, read)) is not None
    ]
    return max(found, key=lambda each: sign * each[0].value, default=None)


def _step(case: Case) -> Estimate | None:
    return latency_median(case, "step")


def _first_token(case: Case) -> Estimate | None:
    return latency_median(case, "ttft")


def _saved(case: Case) -> Estimate | None:
    saved = saved_percent(case)
    return None if saved is None else Estimate(saved, None)


def _prepare(case: Case) -> Estimate | None:
    return latency_median(case, "prepare")


def _throughput(case: Case) -> Estimate | None:
    speed = tokens_per_second(case.totals) if case.totals else None
    return Estimate(speed, None) if speed else None


def _share(launches: Group, rate: Estimate) -> str:
    peak = across_launches(launches, _yardstick)
    if peak is None:
        return "all gathers together"
    share = format_estimate(divide(rate, peak), 100)
    name = next(known.name for case in launches for known in yardsticks(case))
    return f"{share} % of this run's {name}, {format_estimate(peak)} GB/s"


def _yardstick(case: Case) -> Estimate | None:
    return next((known.rate for known in yardsticks(case)), None)


def _join(*words: str) -> str:
    return ", ".join(filter(None, words))
