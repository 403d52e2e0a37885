"""Runs of ``bench`` and of ``bench op``: the headline, operations, everything measured.

Times of a busy machine, and values whose interval is unknown or as large as they are, are marked
``!`` and are never part of the headline. Rates are decimal: 1 GB/s is 10^9 B/s.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from dsv4kv.runs import quantities as q
from dsv4kv.runs.schema import Case, GpuFacts, Operation, Pool, RunRecord
from dsv4kv.runs.statistics import Estimate, divide, estimate_rate, summarize
from dsv4kv.units import counted, format_bytes, format_duration
from dsv4kv.view import facts, plots
from dsv4kv.view import outcomes as oc
from dsv4kv.view import table as tb
from dsv4kv.view import telemetry as tm
from dsv4kv.view.quantity import (
    format_number,
    format_quantity,
    format_setting,
    quantity,
    size,
    us,
)

MAX_ROWS: Final = 8
"""Rows of a table, and problems, of an answer without ``--verbose``."""
_NOTES = {
    "cpu": "reference CPU backend, not a performance claim",
    "cuda": "cold: each call on other memory, beyond L2; hot: the same call repeated",
}
_MARKS: dict[str, tb.Level] = {"complete": "good", "incomplete": "warning", "skipped": "missing"}
_SHORT_NS = 10_000  # below, launching the kernels is much of an operation's time


def bench_page(record: RunRecord) -> tb.Page:
    """Everything that a run has to show."""
    groups, layers = oc.group_launches(record.cases), facts.layers_text(record.cases)
    sections = []
    for section in _sections(record, groups):
        parts = [  # numbers of a part of a model say so
            part.noted(layers)
            if isinstance(part, tb.Table) and part.title != "Telemetry"
            else part
            for part in section.parts
        ]
        sections.append(replace(section, parts=parts))
    sections.append(tb.Section("Verification", list(judge_run(record))))
    sections.append(tb.Section("Run", [facts.header(record)]))
    title = f"{name_run(record)}{q.swept(record.cases)}"
    return tb.Page(title, list(_answer(record, groups)), sections)


def name_run(record: RunRecord) -> str:
    """What was measured on what: ``KV cache of v4-flash on NVIDIA H200``."""
    models = ", ".join(dict.fromkeys(case.cache.model for case in record.cases if case.cache))
    gpu, cpu = record.environment.gpu, record.environment.cpu
    on_gpu = any(case.device == "cuda" for case in record.cases)
    machine = gpu.name if gpu and on_gpu else cpu or "an unknown CPU"
    layers = facts.layers_text(record.cases)
    what = f"KV cache of {models or 'no model'}"
    return f"{what}, {layers}, on {machine}" if layers else f"{what} on {machine}"


def judge_run(record: RunRecord) -> Iterator[tb.Finding]:
    """Everything that a run found out about itself, each case's under its name."""
    several = len(record.cases) > 1
    if record.status != "complete" and (record.launches or len(record.cases) != 1):
        what = record.launches or record.cases
        count = Counter(each.status.replace("_", " ") for each in what)
        counts = ", ".join(f"{n} {status}" for status, n in sorted(count.items()))
        kind = "launches" if record.launches else "cases"
        sentence = f"of {len(what)} {kind} {counts}" if what else "no case ran"
        failed = record.status == "failed" or count["failed"]
        yield tb.Finding("bad" if failed else "warning", f"{record.status}: {sentence}")
    for launch in record.launches:
        if launch.status != "complete":
            why = "; ".join((launch.error or "stopped before the end").splitlines())
            state = launch.status.replace("_", " ")
            level: tb.Level = "warning" if launch.status == "incomplete" else "bad"
            yield tb.Finding(level, f"launch {launch.launch} {state}: {why}")
    for case in record.cases:
        launched = f"launch {case.launch}" if record.launches else ""
        name = ", ".join(filter(None, (launched, q.axis_text(case)))) if several else ""
        for found in (
            *facts.judge_status(case),
            *facts.judge_results(case),
            *tm.judge_telemetry(case),
        ):
            if found.is_problem or not several:
                yield replace(
                    found, sentence=f"{name}: {found.sentence}" if name else found.sentence
                )
    checks = sum(case.verification.checks for case in record.cases)
    if several and checks and not any(case.verification.failures for case in record.cases):
        yield tb.Finding("good", f"{checks:,} outputs equal the reference in all cases together")


def _answer(record: RunRecord, groups: Sequence[oc.Group]) -> Iterator[tb.Part]:
    findings = list(judge_run(record))
    problems = sorted((f for f in findings if f.is_problem), key=lambda f: f.level != "bad")
    yield from problems[:3]
    if len(problems) > 3:
        rest = counted(len(problems) - 3, "more problem")
        yield tb.Finding(problems[3].level, f"and {rest}: --verbose")
    if not groups:
        return
    busy = any(tm.is_busy(case) for case in record.cases)
    if busy:
        cpus = max(tm.busy_cpus(case) for case in record.cases)
        yield tb.Finding("warning", f"other processes used {cpus:.1f} CPUs: times are marked !")
    if len(groups) > 1:
        sentences = list(oc.best_sentences(groups)) or [oc.unchanged_sentence(groups)]
        for sentence in filter(None, sentences[:2]):
            yield tb.Finding("warning", sentence) if busy else tb.Text(sentence, "strong")
        yield from ("", _sweep_table(groups).first(MAX_ROWS + 4))
        return
    (launches,) = groups
    case = launches[0]
    good = not any(found.level == "bad" for found in findings)
    sentence = f"{name_run(record)}: {_headline(launches, busy=busy)}."
    yield tb.Text(sentence, "strong" if good else "plain")
    if good:
        checks = sum(case.verification.checks for case in record.cases)
        planned = any(case.cache and case.cache.pools for case in record.cases)
        words = [
            f"{checks:,} outputs equal the reference" if checks else "no output was compared",
            *(["memory as predicted to the byte"] if planned else []),
            "no block leaked",
        ]
        yield tb.Finding("good" if checks else "note", ", ".join(words))
        yield from facts.foreign_findings(case)
    if len(launches) > 1:
        yield from ("", _launches_table(record).first(MAX_ROWS))
    elif case.operations:
        yield from ("", operations_table(case, MAX_ROWS))
    elif case.latencies:
        yield from ("", _latencies_table(case))


def _headline(launches: oc.Group, *, busy: bool) -> str:
    found, case = [], launches[0]
    step = oc.DECODE if oc.DECODE.across(launches) else oc.STEP
    for outcome, name in ((step, step.title.partition(",")[0].lower()), (oc.GATHER, "gather")):
        estimate = outcome.across(launches)
        if estimate and not busy and is_known(estimate):
            found.append(f"{name} {outcome.text(estimate)}")
    if case.cache:
        found.append(f"{case.cache.bytes_per_token:,.0f} B of cache per token")
        if allocated := oc.MEMORY.across(launches):
            found.append(f"{format_bytes(allocated.value)} allocated")
    return ", ".join(found) or "nothing was measured"


def is_known(estimate: Estimate) -> bool:
    """Whether the interval is known, and smaller than the value."""
    return estimate.half_width is not None and estimate.half_width < abs(estimate.value)


def checked(estimate: Estimate | None, scale: float = 1.0, *, busy: bool = False) -> tb.Number:
    """A cell that is marked where the value is not known well."""
    cell = quantity(estimate, scale)
    if estimate is None or (is_known(estimate) and not busy):
        return cell
    return replace(cell, value=f"! {cell.value}", tone="warning")


def _backend_note(case: Case) -> str:
    words = _NOTES.get(case.backend, case.backend)
    if case.foreign:
        version = f" {case.backend_version}" if case.backend_version else ""
        others = _NOTES[case.device]
        words = f"{', '.join(case.foreign)} from {case.backend}{version}; all others: {others}"
    throttled = any(e.throttled for e in case.operations) or any(p.throttled for p in case.peaks)
    return words + ("; calls while throttled are excluded" if throttled else "")


def _timed(case: Case) -> list[Operation]:
    """Operations with samples, those with the largest share of a step first; cold calls only."""
    found = [e for e in case.operations if e.samples_ns and e.temperature in (None, "cold")]
    return sorted(found, key=lambda each: -_time_of(case, each))


def _time_of(case: Case, operation: Operation) -> float:
    known = any(q.per_step(case, each)[2] for each in case.operations)
    return q.per_step(case, operation)[2] if known else sum(operation.samples_ns)


def operations_table(case: Case, most: int | None = None, gpu: GpuFacts | None = None) -> tb.Table:
    """Time, rate and share of each operation; with ``most`` only those that take most time.

    A rate is all useful bytes over all time, for operations and for plain copies. Operations
    with matrix products have a roof: memory allows FLOP/B times the rate of copies, tensor cores
    the datasheet's dense rate of the ``gpu``.
    """
    known, busy = q.yardsticks(case), tm.is_busy(case)
    best = known[0].rate if known else None
    rows = _timed(case) if most else case.operations
    whole = sum(_time_of(case, each) for each in _timed(case)) or 1

    def share_of_best(each: Operation) -> tb.Number:
        rate = estimate_rate(each.bytes, each.samples_ns)
        share = divide(rate, best) if rate and best and best.value else None
        return checked(share, 100, busy=busy)

    def share_of_time(each: Operation) -> tb.Number:
        counts = each.temperature in (None, "cold")
        return _percent(_time_of(case, each) if counts else 0, whole)

    def calls(each: Operation) -> tb.Number:
        kept, all_ = len(each.samples_ns), len(each.samples_ns) + each.throttled
        return tb.Number(f"{kept:,} of {all_:,}" if each.throttled else f"{kept:,}")

    columns: list[tuple[str, tb.Read]] = [
        ("operation", _name),
        ("layers", _layers),
        ("median µs", lambda each: checked(_median(each.samples_ns), 1e-3, busy=busy)),
        ("GB/s", lambda each: checked(estimate_rate(each.bytes, each.samples_ns), busy=busy)),
        (f"% of {known[0].name if known else 'copy'}", share_of_best),
        ("% of time", share_of_time),
    ]
    if most is None:
        columns += [
            ("calls", calls),
            ("useful bytes", lambda each: size(sum(each.bytes))),
            ("FLOP/B", lambda each: quantity(_intensity(each))),
            ("GFLOP/s", lambda each: quantity(_flop_rate(each))),
            ("bound by", lambda each: roof(each, best, gpu)[0]),
            ("% of the roof", lambda each: roof(each, best, gpu)[1]),
        ]
    peaks = "; ".join(
        f"{each.name} {format_quantity(each.rate)} GB/s" for each in known[: 1 if most else None]
    )
    missing = [f"not measured: {_name(e)} {_layers(e)}, {e.why}" for e in case.not_measured]
    short = any(sum(e.samples_ns) < _SHORT_NS * len(e.samples_ns) for e in rows)
    if case.empty_kernel_ns and short:
        empty = format_quantity(_median(case.empty_kernel_ns), 1e-3)
        missing.append(f"an empty kernel takes {empty} µs")
    note = "; ".join(filter(None, (peaks, _backend_note(case))))
    caption = "" if most else "\n".join(missing)
    table = tb.Table(
        "Operations", columns, rows, note, caption=caption, keys=2, least=[columns[4][0]]
    )
    return table.first(most)


def _percent(part: float, whole: float) -> tb.Number:
    return tb.Number(f"{part / whole * 100:.1f}" if part else tb.ABSENT)


def _median(samples_ns: Sequence[int]) -> Estimate | None:
    return summarize(samples_ns).estimate if samples_ns else None


def _name(operation: object) -> str:
    name = getattr(operation, "name", "").removeprefix("indexer_")
    return f"{name} {getattr(operation, 'temperature', None) or ''}".rstrip()


def _layers(operation: object) -> str:
    indexer = getattr(operation, "name", "").startswith("indexer_")
    return f"{getattr(operation, 'layer_type', '')}{' idx' if indexer else ''}"


def _intensity(operation: Operation) -> float | None:
    return sum(operation.flops) / sum(operation.bytes) if operation.flops else None


def _flop_rate(operation: Operation) -> float | None:
    time_ns = sum(operation.samples_ns)
    return sum(operation.flops) / time_ns if operation.flops and time_ns else None


def roof(
    operation: Operation, copy: Estimate | None, gpu: GpuFacts | None
) -> tuple[str, tb.Number]:
    """What bounds matrix products, and the share of that bound in percent."""
    intensity, rate = _intensity(operation), _flop_rate(operation)
    if intensity is None or rate is None or operation.temperature == "hot":
        return tb.ABSENT, tb.Number(tb.ABSENT)
    figure = "fp8_tflops" if operation.name == "index_scores" else "bf16_tflops"
    peak = q.on_datasheet(gpu, figure) if gpu else None
    allowed = {"memory": intensity * copy.value} if copy else {}
    allowed |= {"tensor cores": peak * 1e3} if peak else {}
    if not allowed:
        return tb.ABSENT, tb.Number(tb.ABSENT)
    bound = min(allowed, key=lambda name: allowed[name])
    return bound if len(allowed) > 1 else tb.ABSENT, _percent(rate, allowed[bound])


def _latencies_table(case: Case) -> tb.Table:
    found = [(each, summarize(each.samples_ns)) for each in case.latencies if each.samples_ns]
    steps = {each.name: summary.estimate for each, summary in found}
    graph, eager = steps.get("decode_graph_device"), steps.get("decode_eager_device")
    note = ""
    if graph and eager:
        ratio = format_quantity(divide(eager, graph))
        note = f"launched one by one, a step takes {ratio} times as long as a graph"
    columns: tb.Columns = [
        ("action", lambda row: row[0].name),
        ("median µs", lambda row: checked(row[1].estimate, 1e-3, busy=tm.is_busy(case))),
        ("p99 µs", lambda row: us(row[1].percentiles.get(99.0))),
        ("max µs", lambda row: us(row[1].maximum)),
        ("samples", lambda row: quantity(row[1].n)),
    ]
    return tb.Table("Latencies", columns, found, note=note)


def _launches_table(record: RunRecord) -> tb.Table:
    rows = []
    for name, found in q.by_quantity(record).items():
        medians = [each.median_ns for each in found]
        rates = [rate.value for each in found if (rate := each.rate_gbps)]
        rows.append((name, medians, rates))
    columns: tb.Columns = [
        ("quantity", lambda row: f"{row[0].name} {row[0].temperature}".strip()),
        ("layers", lambda row: row[0].layer_type),
        ("median µs", lambda row: checked(q.over_launches(row[1]), 1e-3)),
        ("GB/s", lambda row: checked(q.over_launches(row[2]))),
        ("slowest / fastest", lambda row: quantity(max(row[1]) / (min(row[1]) or 1))),
        ("launches", lambda row: quantity(len(row[1]))),
    ]
    note = "95 % interval over launches"
    return tb.Table("Medians of launches", columns, rows, note=note, keys=2)


def _sweep_table(groups: Sequence[oc.Group]) -> tb.Table:
    cases = [case for group in groups for case in group]
    busy = any(tm.is_busy(case) for case in cases)

    def setting(group: oc.Group, path: str) -> str:
        return format_setting(path, group[0].axis[path]) if path in group[0].axis else tb.ABSENT

    def number(group: oc.Group, outcome: oc.Outcome, scale: float) -> tb.Number:
        return checked(outcome.across(group), scale, busy=busy)

    def allocated(group: oc.Group) -> tb.Number:
        found = oc.MEMORY.across(group)
        return size(found.value if found else None)

    axes: list[tuple[str, tb.Read]] = [
        (name.replace("_", " "), partial(setting, path=path))
        for path, name in q.axis_names(cases).items()
    ]
    columns: tb.Columns = [
        *axes,
        ("GPU decode µs", partial(number, outcome=oc.DECODE, scale=1e-3)),
        ("step µs", partial(number, outcome=oc.STEP, scale=1e-3)),
        ("gather GB/s", partial(number, outcome=oc.GATHER, scale=1.0)),
        ("prepare µs", partial(number, outcome=oc.PREPARE, scale=1e-3)),
        ("tokens/s", partial(number, outcome=oc.TOKENS, scale=1.0)),
        ("allocated", allocated),
    ]
    if any(case.status != "complete" for case in cases):
        state = "state", lambda group: tb.mark(_MARKS.get(group[0].status, "bad"))
        columns = [*axes, state, *columns[len(axes) :]]
    note = "; ".join(dict.fromkeys(_backend_note(case) for case in cases if case.totals))
    return tb.Table("Sweep", columns, groups, note=note, keys=len(axes))


def step_table(cases: Sequence[Case]) -> tb.Table | None:
    """Bytes and time of a decode step by kind of work; None where no case knows."""
    axes, rows = q.axis_names(cases), list[tuple[Case, q.StepShare, float, float]]()
    for case in cases:
        shares = q.step_shares(case)
        moved, spent = sum(s.bytes for s in shares) or 1, sum(s.ns for s in shares) or 1
        rows += [(case, each, moved, spent) for each in shares]
    if not rows:
        return None

    def setting(row: Any, path: str) -> str:
        return format_setting(path, row[0].axis.get(path, tb.ABSENT))

    columns: tb.Columns = [
        *((name.replace("_", " "), partial(setting, path=path)) for path, name in axes.items()),
        ("work", lambda row: row[1].kind),
        ("bytes a step", lambda row: size(row[1].bytes or None)),
        ("% of bytes", lambda row: _percent(row[1].bytes, row[2])),
        ("time a step", lambda row: tb.Number(format_duration(row[1].ns))),
        ("% of time", lambda row: _percent(row[1].ns, row[3])),
        ("of time", lambda row: tb.bar(row[1].ns / row[3])),
    ]
    note = "all requests and layers held; useful bytes by the byte model"
    return tb.Table("Decode step by kind of work", columns, rows, note, keys=len(axes) + 1)


def _sections(record: RunRecord, groups: Sequence[oc.Group]) -> Iterator[tb.Section]:
    if len(groups) > 1:
        charts, same = list(oc.sweep_charts(groups)), oc.unchanged_sentence(groups)
        yield tb.Section("Sweep", [*charts, _sweep_table(groups)], same)
        if table := step_table([oc.middle_launch(group) for group in groups]):
            yield tb.Section("Decode step", [table])
        return
    if record.launches:
        yield tb.Section("Launches", [_launches_table(record)])
    for case in map(oc.middle_launch, groups):
        gpu = record.environment.gpu if case.device == "cuda" else None
        if case.operations:
            yield tb.Section(
                "Bandwidth",
                [operations_table(case, gpu=gpu), *_rate_charts(case, gpu)],
                "Useful bytes over time, with 95 % intervals.",
            )
            if step := step_table([case]):
                yield tb.Section("Decode step", [step])
        if any(latency.samples_ns for latency in case.latencies):
            yield tb.Section("Latency", [_latencies_table(case)])
        if case.cache:
            totals = [facts.totals_facts(case.totals, case.cache)] if case.totals else []
            yield tb.Section("Memory", [facts.cache_facts(case.cache), *totals, *_pools(case)])
        yield from tm.sections(case)


def _pools(case: Case) -> Iterator[tb.Part]:
    pools = case.cache.pools if case.cache else []

    def layers(pool: Pool) -> str:
        return "all" if pool.layer_type == "all" else f"{pool.layer_type} × {pool.layers}"

    if pools:
        columns: tb.Columns = [
            ("pool", lambda p: p.name),
            ("layers", layers),
            ("units", lambda p: quantity(p.units)),
            ("bytes/unit", lambda p: quantity(p.unit_bytes)),
            ("predicted", lambda p: size(p.predicted_bytes)),
            ("allocated", lambda p: size(p.allocated_bytes)),
        ]
        yield tb.Table("Cache", columns, pools, keys=2)


def _rate_charts(case: Case, gpu: GpuFacts | None) -> Iterator[tb.Chart]:
    found = [
        (f"{_name(each)} {_layers(each)}", rate)
        for each in case.operations
        if (rate := estimate_rate(each.bytes, each.samples_ns)) and rate.value > 0
    ]
    if not found:
        return
    found.sort(key=lambda pair: -pair[1].value)
    limits = {each.name: rate.value for each in q.yardsticks(case) if (rate := each.rate)}
    promised = q.on_datasheet(gpu, "bandwidth_gbps") if gpu else None
    limits |= {"datasheet": float(promised)} if promised else {}
    rows = [oc.estimate_bar(name, rate, "") for name, rate in found]
    yield plots.bars("Rate of each operation, GB/s", rows, dots=True, lines=limits)


# ---- one operation


class _Row(NamedTuple):
    case: Case
    operation: Operation
    ours: Operation | None  # our own operation at the same shape; None where this is it

    @property
    def time(self) -> Estimate:
        return summarize(self.operation.samples_ns).estimate

    @property
    def rate(self) -> Estimate | None:
        return estimate_rate(self.operation.bytes, self.operation.samples_ns)

    @property
    def speed(self) -> Estimate | None:
        """How many times as fast as ours."""
        ours = self.ours
        return divide(summarize(ours.samples_ns).estimate, self.time) if ours else None

    @property
    def copy(self) -> Estimate | None:
        known = q.yardsticks(self.case)
        return known[0].rate if known else None

    @property
    def copy_share(self) -> Estimate | None:
        return divide(self.rate, self.copy) if self.rate and self.copy else None


def _rows(timed: Sequence[Sequence[Case]]) -> list[_Row]:
    rows = []
    for cases in timed:
        own = cases[-1]
        for case in cases:
            rows += [
                _Row(case, each, ours if case is not own else None)
                for each, ours in zip(case.operations, own.operations, strict=True)
            ]
    return rows


def op_page(
    name: str,
    backend: str,
    cases: int,
    timed: Sequence[Sequence[Case]],
    gpu: GpuFacts | None = None,
) -> tb.Page:
    """Cases in sight, then the sentence of one row, then all rows."""
    rows = _rows(timed)
    if not rows:
        return tb.Page(
            name, [tb.Finding("warning", f"{name}: nothing was timed: raise --seconds.")]
        )
    busy = any(tm.is_busy(each.case) for each in rows)
    compared = sorted((row for row in rows if row.speed), key=_speed)
    answer: list[tb.Part] = (
        [_verdict(name, backend, compared, timed[0][-1].backend, busy=busy)] if compared else []
    )
    answer.append(facts.cases_equal(name, backend, cases))
    if busy:
        answer.append(tb.Finding("warning", "other processes were busy: times are marked !"))
    copy = q.yardsticks((compared or rows)[0].case)[0]
    axes = {"batch": "batch", "top-k": "topk", "context": "context"}
    varied = [
        head for head, axis in axes.items() if len({row.case.axis[axis] for row in rows}) > 1
    ]
    shape = rows[0].case.axis
    columns: list[tuple[str, tb.Read]] = [
        ("backend", lambda row: row.case.backend),
        ("layers", lambda row: row.operation.layer_type),
        *((head, lambda row, axis=axes[head]: quantity(row.case.axis[axis])) for head in varied),
        ("median µs", lambda row: checked(row.time, 1e-3, busy=busy)),
        *([("speedup", lambda row: checked(row.speed, busy=busy))] if compared else []),
        ("GB/s", lambda row: checked(row.rate, busy=busy)),
        (f"% of {copy.name}", lambda row: checked(row.copy_share, 100, busy=busy)),
    ]
    if gpu and any(row.operation.flops for row in rows):
        columns += [
            ("bound by", lambda row: roof(row.operation, row.copy, gpu)[0]),
            ("% of roof", lambda row: roof(row.operation, row.copy, gpu)[1]),
        ]
    if not compared:
        del columns[0]
    same = [f"{head} {quantity(shape[axes[head]]).value}" for head in axes if head not in varied]
    note = "; ".join(
        [*([", ".join(same)] if same else []), f"{copy.name} {format_quantity(copy.rate)} GB/s"]
    )
    return tb.Page(
        name, [*answer, "", tb.Table(name, columns, rows, note=note, keys=2, rest="--json")]
    )


def _speed(row: _Row) -> float:
    return row.speed.value if row.speed else 0.0


def _verdict(
    name: str, backend: str, compared: Sequence[_Row], own: str, *, busy: bool
) -> tb.Part:
    """How much faster or slower than our own, from the slowest row to the fastest."""
    speeds = [speed for row in (compared[0], compared[-1]) if (speed := row.speed)]
    ratios = [divide(Estimate(1.0, 0.0), each) if each.value < 1 else each for each in speeds]
    known = [is_known(each) and _low(each) > 1 for each in ratios]
    exact = len(compared) == 1 and all(known) and not busy
    texts = [format_quantity(each) if exact else format_number(each.value) for each in ratios]
    words = ["slower" if each.value < 1 else "faster" for each in speeds]
    if texts[0] == texts[1] and words[0] == words[1]:
        said = f"{texts[0]} times {words[0]}"
    elif words[0] == words[1]:
        low, high = sorted(zip((each.value for each in ratios), texts, strict=True))
        said = f"{low[1]} to {high[1]} times {words[0]}"
    else:
        said = f"{texts[0]} times {words[0]} to {texts[1]} times {words[1]}"
    sentence = f"{name} of {backend} is {said} than {own}"
    if busy or not all(known):
        return tb.Finding("warning", sentence + ", its interval unknown" * (not all(known)))
    return tb.Text(f"{sentence}.", "strong")


def _low(ratio: Estimate) -> float:
    return ratio.value - (ratio.arms[0] if ratio.arms else ratio.half_width or 0.0)


def op_values(name: str, cases: int, timed: Sequence[Sequence[Case]]) -> dict[str, Any]:
    """The same for programs, with every sample."""
    rows = [
        {"backend": row.case.backend, **row.case.axis, **row.operation.model_dump(mode="json")}
        | {"copy_gbps": row.copy.value if row.copy else None}
        | {"speedup": row.speed.value if row.speed else None}
        for row in _rows(timed)
    ]
    return {"operation": name, "cases_equal": cases, "rows": rows}
