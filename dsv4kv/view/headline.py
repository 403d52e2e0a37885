"""What the first screen says: what was measured on what, whether it is right, three numbers."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from dsv4kv.measure.statistics import Estimate, divide, summarize
from dsv4kv.runs.profile import KernelTable
from dsv4kv.runs.quantities import (
    allocated_bytes,
    clock_factor,
    latency_median,
    saved_percent,
    within,
    yardsticks,
)
from dsv4kv.runs.schema import Case, Launch, RunRecord
from dsv4kv.units import counted, format_bytes
from dsv4kv.view.cells import format_estimate, format_number, measured
from dsv4kv.view.facts import layers_text, tokens_per_second
from dsv4kv.view.findings import judge_results, judge_status
from dsv4kv.view.outcomes import (
    DECODE,
    GATHER,
    OUTCOMES,
    PREPARE,
    STEP,
    Group,
    Outcome,
    across_launches,
    differ,
    find_best,
    group_launches,
)
from dsv4kv.view.profile import cache_share, is_on_cpu, time_of
from dsv4kv.view.replay import judge_replay
from dsv4kv.view.step import report_step
from dsv4kv.view.table import Finding, Part, Text
from dsv4kv.view.telemetry import judge_telemetry

_UNITS = (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0))


@dataclass(frozen=True)
class KeyNumber:
    """``8.12``, ``± 0.30``, ``ms``, and what to compare it with."""

    label: str
    value: str
    spread: str
    unit: str
    note: str

    @property
    def figure(self) -> str:
        """``8.12 ± 0.30 ms``."""
        return " ".join(filter(None, (self.value, self.spread, self.unit)))


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


_MOST_NUMBERS, _MOST_LINES = 3, 2


def name_run(record: RunRecord) -> str:
    """What was measured on what: ``KV cache of v4-flash on NVIDIA H200``."""
    models = ", ".join(dict.fromkeys(case.cache.model for case in record.cases if case.cache))
    if any(case.replay for case in record.cases):
        trace = record.trace_source or "synthetic requests"
        return f"Replay of {trace} through the KV cache of {models or 'no model'}"
    if not models and (profiled := [case for case in record.cases if case.profile]):
        return f"Profile of {profiled[0].config.get('name', 'a program')}"
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
    clauses = [
        f"{checks:,} outputs equal the reference" if checks else "no output was compared",
        *(["memory as predicted to the byte"] if planned else []),
        "no block leaked",
    ]
    return Finding("good" if checks else "note", ", ".join(clauses))


def judge_case(case: Case) -> list[Finding]:
    """Everything that a case found out about itself."""
    if case.replay:
        return [*judge_status(case), *judge_replay(case)]
    return [*judge_status(case), *judge_results(case), *judge_telemetry(case)]


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
    layers = layers_text(case for group in groups for case in group)
    return [replace(n, note=_join(n.note, layers)) for n in islice(found, _MOST_NUMBERS)]


def answer(record: RunRecord) -> list[str]:
    """The key numbers in a line, or of a sweep in two: which setting is best at what."""
    groups = group_launches(record.cases)
    numbers = key_numbers(groups)
    if len(groups) > 1:
        found = [f"{n.label}: {n.figure} {n.note}." for n in numbers[:_MOST_LINES]]
        return found or list(filter(None, [unchanged(groups)]))
    return _in_a_line(numbers, layers_text(record.cases))


def _in_a_line(numbers: Iterable[KeyNumber], layers: str) -> list[str]:
    line = "; ".join(f"{number.label}: {number.figure}" for number in numbers)
    return [f"{_join(line, layers)}."] if line else []


def report_answer(record: RunRecord) -> Iterator[Part]:
    """What a terminal ends with: the answer."""
    lines = answer(record)
    yield from _report_lines(lines)
    steps = list(report_step([group[0] for group in group_launches(record.cases)]))
    if steps and not lines:
        yield ""
    yield from steps


def report_profile_answer(table: KernelTable, layers: str) -> Iterator[Part]:
    """What a terminal ends with after a profile; ``layers`` as in ``report_profile``."""
    yield from _report_lines(_in_a_line(profile_numbers(table), layers))


def _report_lines(lines: Sequence[str]) -> Iterator[Part]:
    if lines:
        yield ""
        yield from (Text(line, "strong") for line in lines)


def _of_one(launches: Group) -> Iterator[KeyNumber]:
    case = launches[0]
    if case.replay:
        yield from _of_replay(case)
    if case.profile and case.profile.table:
        yield from profile_numbers(case.profile.table)
    of = f"over {len(launches)} launches" if len(launches) > 1 else ""
    if (time := DECODE.across(launches)) is not None:
        note = _join("median", of, "all layers held")
        yield measured_duration("Decode step on the GPU", time, note)
    elif (time := STEP.across(launches)) is not None:
        yield measured_duration("Step", time, _join("median", of, "with the host in it"))
    if (rate := GATHER.across(launches)) is not None:
        yield measured_number("Gather", rate, "GB/s", _share(launches, rate))
    if case.cache:
        size = allocated_bytes(case)
        note = f"{format_bytes(size)} allocated in all" if size else "all layers held"
        value = format_number(case.cache.bytes_per_token)
        yield KeyNumber("Cache per token", value, "", "B", note)
    if (time := PREPARE.across(launches)) is not None:
        yield measured_duration("Prepare", time, _join("median", of, "bookkeeping of a step"))
    if case.totals and (speed := tokens_per_second(case.totals)):
        yield KeyNumber("Throughput", f"{speed:,.0f}", "", "tokens/s", "in and out, one run")


def profile_numbers(table: KernelTable) -> Iterator[KeyNumber]:
    """The share of the cache, and how long a step took."""
    share, parts = cache_share(table)
    if parts:
        unit = f"% of the {time_of(table)}"
        yield KeyNumber("Work on the KV cache", f"{share:.1f}", "", unit, parts)
    if table.steps:
        steps, on_cpu = table.steps, is_on_cpu(table)
        time = summarize(steps.host_ns if on_cpu else steps.span_ns).estimate
        place = "on the host" if on_cpu else "on the GPU, first begin to last end"
        yield measured_duration(
            "Profiled step", time, f"median of {counted(table.num_steps, 'step')}, {place}"
        )


def _of_replay(case: Case) -> Iterator[KeyNumber]:
    if (saved := saved_percent(case)) is not None:
        note = "of all prompt tokens were cached and not computed again"
        yield KeyNumber("Saved", f"{saved:.1f}", "", "%", note)
    for name, label in (("ttft", "First token"), ("tpot", "A further token")):
        if (time := latency_median(case, name)) is not None:
            factor = clock_factor(case, name)
            known = within(time.value, factor) if factor else time
            yield measured_duration(label, known, "median over requests, time of the model")


def _of_sweep(groups: Sequence[Group]) -> Iterator[KeyNumber]:
    """The best of every outcome that the settings change, and what it is better than."""
    for outcome in OUTCOMES:
        if outcome.best and (best := find_best(outcome, groups)):
            others = f" (and {counted(best.alike, 'other')} alike)" if best.alike else ""
            gain = f"{_gain(outcome, best.estimate, best.worst)} at {best.worst_at}"
            note = f"{outcome.words} at {best.at}{others}, {gain}".strip()
            yield _number(outcome, outcome.best, best.estimate, note)


def unchanged(groups: Sequence[Group]) -> str:
    """What the settings do not change, in a sentence; empty where they change everything."""
    same = []
    for outcome in OUTCOMES:
        found = [known for group in groups if (known := outcome.across(group)) is not None]
        if len(found) > 1 and not differ(found):
            low, high = (f(found, key=lambda each: each.value) for f in (min, max))
            figures = dict.fromkeys(_number(outcome, "", each, "").figure for each in (low, high))
            same.append(f"{outcome.title.partition(',')[0].lower()} ({' to '.join(figures)})")
    return f"The same at every setting, to 1 % or its interval: {'; '.join(same)}." if same else ""


def _number(outcome: Outcome, label: str, estimate: Estimate, note: str) -> KeyNumber:
    """A number of a sweep; what was counted, or measured once, has no interval."""
    if outcome.unit == "ns":
        number = measured_duration(label, estimate, note)
        return replace(number, spread="") if estimate.half_width == 0 else number
    if outcome.unit == "B":
        size, unit = format_bytes(estimate.value).split()
        return KeyNumber(label, size, "", unit, note)
    number = measured_number(label, estimate, outcome.unit, note)
    return number if estimate.half_width else replace(number, spread="")


def _gain(outcome: Outcome, best: Estimate, worst: Estimate) -> str:
    """``1.93 ± 0.02 times as fast as``, ``3.1 points more than``."""
    if outcome.unit == "%":
        return f"{best.value - worst.value:.1f} points more than"
    if not worst.value or not best.value:
        return f"{format_number(best.value - worst.value)} {outcome.unit} from that"
    ratio = divide(worst, best) if outcome.sign < 0 else divide(best, worst)
    known = best.half_width is not None and worst.half_width is not None
    factor = format_estimate(ratio) if known else format_number(ratio.value)
    return f"{factor} times as {'fast' if outcome.sign < 0 else 'much'} as"


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
