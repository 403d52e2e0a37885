"""Runs of ``bench`` and of ``bench op``: the headline, operations, everything measured.

Times of a busy machine, and values whose interval is unknown or as large as they are, are marked
``!`` and are never part of the headline. Rates are decimal: 1 GB/s is 10^9 B/s.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from dsv4kv.runs import quantities as q
from dsv4kv.runs.schema import Case, GpuFacts, Operation, Pool, RunRecord
from dsv4kv.runs.statistics import Estimate, divide, estimate_rate, summarize
from dsv4kv.units import counted, format_bytes, format_duration
from dsv4kv.view import facts, plots
from dsv4kv.view import outcomes as oc
from dsv4kv.view import table as tb

MAX_ROWS: Final = 8
"""Rows of a table, and problems, of an answer without ``--verbose``."""
_NOTES = {
    "cpu": "reference CPU backend, not a performance claim",
    "cuda": "cold: each call on other memory, beyond L2; hot: the same call repeated",
}
_MARKS: dict[str, tb.Level] = {"complete": "good", "incomplete": "warning", "skipped": "missing"}
_SHORT_NS = 10_000  # below, launching the kernels is much of an operation's time


def bench_page(record: RunRecord) -> tb.Page:
    groups, layers = oc.group_launches(record.cases), facts.layers_text(record.cases)
    sections = []
    for section in _sections(record, groups):
        parts = [  # numbers of a part of a model say so
            each.noted(layers)
            if isinstance(each, tb.Table) and each.title != "Telemetry"
            else each
            for each in section.parts
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
        results = (*facts.judge_status(case), *facts.judge_results(case))
        for found in (*results, *facts.judge_telemetry(case)):
            if found.is_problem or not several:
                yield replace(found, sentence=f"{name}: {found.sentence}".removeprefix(": "))
    checks = sum(case.verification.checks for case in record.cases)
    if several and checks and not any(case.verification.failures for case in record.cases):
        yield tb.good(f"{checks:,} outputs equal the reference in all cases together")


def _answer(record: RunRecord, groups: Sequence[oc.Group]) -> Iterator[tb.Part]:
    findings = list(judge_run(record))
    problems = sorted((f for f in findings if f.is_problem), key=lambda f: f.level != "bad")
    yield from problems[:3]
    if len(problems) > 3:
        rest = counted(len(problems) - 3, "more problem")
        yield tb.Finding(problems[3].level, f"and {rest}: --verbose")
    if not groups:
        return
    busy = any(facts.is_busy(case) for case in record.cases)
    if busy:
        cpus = max(facts.busy_cpus(case) for case in record.cases)
        yield tb.warning(f"other processes used {cpus:.1f} CPUs: times are marked !")
    if len(groups) > 1:
        sentences = list(oc.best_sentences(groups)) or [oc.unchanged_sentence(groups)]
        for sentence in filter(None, sentences[:2]):
            yield tb.warning(sentence) if busy else tb.strong(sentence)
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
    cell = tb.quantity(estimate, scale)
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


def _time_of(case: Case, operation: Operation) -> float:
    known = any(q.per_step(case, each)[2] for each in case.operations)
    return q.per_step(case, operation)[2] if known else sum(operation.samples_ns)


def operations_table(case: Case, most: int | None = None, gpu: GpuFacts | None = None) -> tb.Table:
    """Time, rate and share of each operation; with ``most`` only those that take most time.

    A rate is all useful bytes over all time, for operations and for plain copies. Operations
    with matrix products have a roof: memory allows FLOP/B times the rate of copies, tensor cores
    the datasheet's dense rate of the ``gpu``.
    """
    known, busy = q.yardsticks(case), facts.is_busy(case)
    best = known[0].rate if known else None
    timed = [e for e in case.operations if e.samples_ns and e.temperature in (None, "cold")]
    timed.sort(key=lambda each: -_time_of(case, each))
    rows = timed if most else case.operations
    whole = sum(_time_of(case, each) for each in timed) or 1

    def share_of_best(each: Operation) -> tb.Number:
        rate = estimate_rate(each.bytes, each.samples_ns)
        share = divide(rate, best) if rate and best and best.value else None
        return checked(share, 100, busy=busy)

    def share_of_time(each: Operation) -> tb.Number | None:
        return _percent(_time_of(case, each), whole) if each.temperature != "hot" else None

    def calls(each: Operation) -> tb.Number:
        kept, all_ = len(each.samples_ns), len(each.samples_ns) + each.throttled
        return tb.Number(f"{kept:,} of {all_:,}" if each.throttled else f"{kept:,}")

    of_copy = f"% of {known[0].name if known else 'copy'}"
    columns: list[tb.Column] = [
        ("operation", _name),
        ("layers", _layers),
        ("median µs", lambda each: checked(_median(each.samples_ns), 1e-3, busy=busy)),
        ("GB/s", lambda each: checked(estimate_rate(each.bytes, each.samples_ns), busy=busy)),
        (of_copy, share_of_best),
        ("% of time", share_of_time),
    ]
    peaks = [f"{each.name} {tb.format_quantity(each.rate)} GB/s" for each in known]
    if most:
        note = "; ".join([*peaks[:1], _backend_note(case)])
        return tb.Table("Operations", columns, rows, note, keys=2, least=[of_copy]).first(most)
    columns += [
        ("calls", calls),
        ("useful bytes", lambda each: tb.size(sum(each.bytes))),
        ("FLOP/B", _intensity),
        ("GFLOP/s", _flop_rate),
        ("bound by", lambda each: roof(each, best, gpu)[0]),
        ("% of the roof", lambda each: roof(each, best, gpu)[1]),
    ]
    missing = [f"not measured: {_name(e)} {_layers(e)}, {e.why}" for e in case.not_measured]
    short = any(sum(e.samples_ns) < _SHORT_NS * len(e.samples_ns) for e in rows)
    if case.empty_kernel_ns and short:
        empty = tb.format_quantity(_median(case.empty_kernel_ns), 1e-3)
        missing.append(f"an empty kernel takes {empty} µs")
    note, caption = "; ".join([*peaks, _backend_note(case)]), "\n".join(missing)
    return tb.Table("Operations", columns, rows, note, caption=caption, keys=2, least=[of_copy])


def _percent(part: float, whole: float) -> tb.Number | None:
    return tb.Number(f"{part / whole * 100:.1f}") if part else None


def _median(samples_ns: Sequence[int]) -> Estimate | None:
    return summarize(samples_ns).estimate if samples_ns else None


def _name(operation: object) -> str:
    name = getattr(operation, "name", "").removeprefix("indexer_")
    return f"{name} {getattr(operation, 'temperature', None) or ''}".rstrip()


def _layers(operation: object) -> str:
    indexer = getattr(operation, "name", "").startswith("indexer_")
    return f"{getattr(operation, 'layer_type', '')}{' idx' if indexer else ''}"


def _intensity(operation: Operation) -> float | None:
    moved = sum(operation.bytes)
    return sum(operation.flops) / moved if operation.flops and moved else None


def _flop_rate(operation: Operation) -> float | None:
    time_ns = sum(operation.samples_ns)
    return sum(operation.flops) / time_ns if operation.flops and time_ns else None


def roof(
    operation: Operation, copy: Estimate | None, gpu: GpuFacts | None
) -> tuple[str | None, tb.Number | None]:
    """What bounds matrix products, and the share of that bound in percent."""
    intensity, rate = _intensity(operation), _flop_rate(operation)
    if intensity is None or rate is None or operation.temperature == "hot":
        return None, None
    figure = "fp8_tflops" if operation.name == "index_scores" else "bf16_tflops"
    peak = q.on_datasheet(gpu, figure) if gpu else None
    allowed = {"memory": intensity * copy.value} if copy else {}
    allowed |= {"tensor cores": peak * 1e3} if peak else {}
    if not allowed:
        return None, None
    bound = min(allowed, key=lambda name: allowed[name])
    return bound if len(allowed) > 1 else None, _percent(rate, allowed[bound])


def _latencies_table(case: Case) -> tb.Table:
    found = [(each, summarize(each.samples_ns)) for each in case.latencies if each.samples_ns]
    steps = {each.name: summary.estimate for each, summary in found}
    graph, eager = steps.get("decode_graph_device"), steps.get("decode_eager_device")
    note = ""
    if graph and eager:
        ratio = tb.format_quantity(divide(eager, graph))
        note = f"launched one by one, a step takes {ratio} times as long as a graph"
    columns: tb.Columns = [
        ("action", lambda row: row[0].name),
        ("median µs", lambda row: checked(row[1].estimate, 1e-3, busy=facts.is_busy(case))),
        ("p99 µs", lambda row: tb.us(row[1].percentiles.get(99.0))),
        ("max µs", lambda row: tb.us(row[1].maximum)),
        ("samples", lambda row: row[1].n),
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
        ("slowest / fastest", lambda row: max(row[1]) / (min(row[1]) or 1)),
        ("launches", lambda row: len(row[1])),
    ]
    note = "95 % interval over launches"
    return tb.Table("Medians of launches", columns, rows, note=note, keys=2)


def _sweep_table(groups: Sequence[oc.Group]) -> tb.Table:
    cases = [case for group in groups for case in group]
    busy = any(facts.is_busy(case) for case in cases)

    def number(outcome: oc.Outcome, scale: float = 1.0) -> tb.Read:
        return lambda group: checked(outcome.across(group), scale, busy=busy)

    def allocated(group: oc.Group) -> tb.Number:
        found = oc.MEMORY.across(group)
        return tb.size(found.value if found else None)

    columns = axes = oc.axis_columns(cases, lambda group: group[0])
    if any(case.status != "complete" for case in cases):
        state = "state", lambda group: tb.mark(_MARKS.get(group[0].status, "bad"))
        columns = [*axes, state]
    columns = [
        *columns,
        ("GPU decode µs", number(oc.DECODE, 1e-3)),
        ("step µs", number(oc.STEP, 1e-3)),
        ("gather GB/s", number(oc.GATHER)),
        ("prepare µs", number(oc.PREPARE, 1e-3)),
        ("tokens/s", number(oc.TOKENS)),
        ("allocated", allocated),
    ]
    note = "; ".join(dict.fromkeys(_backend_note(case) for case in cases if case.totals))
    return tb.Table("Sweep", columns, groups, note=note, keys=len(axes))


class _Share(NamedTuple):
    """A kind of work of a case's step, and the bytes and nanoseconds of the whole step."""

    case: Case
    work: q.StepShare
    step_bytes: float
    step_ns: float


def step_table(cases: Sequence[Case]) -> tb.Table | None:
    """Bytes and time of a decode step by kind of work; None where no case knows."""
    axes = oc.axis_columns(cases, lambda row: row.case)
    rows = list[_Share]()
    for case in cases:
        shares = q.step_shares(case)
        step_bytes = sum(each.bytes for each in shares) or 1
        step_ns = sum(each.ns for each in shares) or 1
        rows += [_Share(case, each, step_bytes, step_ns) for each in shares]
    if not rows:
        return None

    columns: tb.Columns = [
        *axes,
        ("work", lambda row: row.work.kind),
        ("bytes a step", lambda row: tb.size(row.work.bytes or None)),
        ("% of bytes", lambda row: _percent(row.work.bytes, row.step_bytes)),
        ("time a step", lambda row: tb.Number(format_duration(row.work.ns))),
        ("% of time", lambda row: _percent(row.work.ns, row.step_ns)),
        ("of time", lambda row: tb.bar(row.work.ns / row.step_ns)),
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
            pools = [tb.Table("Cache", _POOLS, case.cache.pools, keys=2)] * bool(case.cache.pools)
            yield tb.Section("Memory", [facts.cache_facts(case.cache), *totals, *pools])
        if telemetry := facts.telemetry_table(case):
            yield tb.Section("Telemetry", [telemetry])


def _pool_layers(pool: Pool) -> str:
    return "all" if pool.layer_type == "all" else f"{pool.layer_type} × {pool.layers}"


_POOLS: tb.Columns = [
    ("pool", lambda pool: pool.name),
    ("layers", _pool_layers),
    ("units", lambda pool: pool.units),
    ("bytes/unit", lambda pool: pool.unit_bytes),
    ("predicted", lambda pool: tb.size(pool.predicted_bytes)),
    ("allocated", lambda pool: tb.size(pool.allocated_bytes)),
]


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
    time: Estimate
    rate: Estimate | None
    speed: Estimate | None  # how many times as fast as our own; None where this is it
    copy: Estimate | None

    @property
    def copy_share(self) -> Estimate | None:
        return divide(self.rate, self.copy) if self.rate and self.copy else None


def _rows(timed: Sequence[Sequence[Case]]) -> Iterator[_Row]:
    for cases in timed:
        own = cases[-1]
        for case in cases:
            known = q.yardsticks(case)
            copy = known[0].rate if known else None
            for each, ours in zip(case.operations, own.operations, strict=True):
                time, ours_time = (summarize(e.samples_ns).estimate for e in (each, ours))
                speed = divide(ours_time, time) if case is not own else None
                rate = estimate_rate(each.bytes, each.samples_ns)
                yield _Row(case, each, time, rate, speed, copy)


def op_page(
    name: str,
    backend: str,
    cases: int,
    timed: Sequence[Sequence[Case]],
    gpu: GpuFacts | None = None,
) -> tb.Page:
    """Cases in sight, then the sentence of one row, then all rows."""
    rows = list(_rows(timed))
    if not rows:
        return tb.Page(name, [tb.warning(f"{name}: nothing was timed: raise --seconds.")])
    busy = any(facts.is_busy(each.case) for each in rows)
    compared = sorted(
        (row for row in rows if row.speed), key=lambda row: row.speed.value if row.speed else 0.0
    )
    answer: list[tb.Part] = [facts.cases_equal(name, backend, cases)]
    if compared:
        own = timed[0][-1].backend
        speeds = [speed for row in (compared[0], compared[-1]) if (speed := row.speed)]
        exact = len(compared) == 1 and not busy
        answer.insert(0, _verdict(f"{name} of {backend}", own, speeds, exact=exact, busy=busy))
    if busy:
        answer.append(tb.warning("other processes were busy: times are marked !"))
    copy = q.yardsticks((compared or rows)[0].case)[0]
    axes = {"batch": "batch", "top-k": "topk", "context": "context"}
    varied = [
        head for head, axis in axes.items() if len({row.case.axis[axis] for row in rows}) > 1
    ]
    shape = rows[0].case.axis
    columns: list[tb.Column] = [
        ("backend", lambda row: row.case.backend),
        ("layers", lambda row: row.operation.layer_type),
        *((head, lambda row, axis=axes[head]: row.case.axis[axis]) for head in varied),
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
    same = [
        f"{head} {tb.quantity(shape[axes[head]]).value}" for head in axes if head not in varied
    ]
    note = "; ".join(
        [*([", ".join(same)] if same else []), f"{copy.name} {tb.format_quantity(copy.rate)} GB/s"]
    )
    return tb.Page(
        name, [*answer, "", tb.Table(name, columns, rows, note=note, keys=2, rest="--json")]
    )


def _verdict(
    what: str, own: str, speeds: Sequence[Estimate], *, exact: bool, busy: bool
) -> tb.Part:
    ratios = [divide(Estimate(1.0, 0.0), each) if each.value < 1 else each for each in speeds]
    known = all(is_known(each) and oc.ends(each)[0] > 1 for each in ratios)
    exact = exact and known
    texts = [tb.format_quantity(each) if exact else tb.number(each.value) for each in ratios]
    words = ["slower" if each.value < 1 else "faster" for each in speeds]
    if texts[0] == texts[1] and words[0] == words[1]:
        said = f"{texts[0]} times {words[0]}"
    elif words[0] == words[1]:
        low, high = sorted(zip((each.value for each in ratios), texts, strict=True))
        said = f"{low[1]} to {high[1]} times {words[0]}"
    else:
        said = f"{texts[0]} times {words[0]} to {texts[1]} times {words[1]}"
    sentence = f"{what} is {said} than {own}"
    if busy or not known:
        return tb.warning(sentence + ", its interval unknown" * (not known))
    return tb.strong(f"{sentence}.")


def op_values(name: str, cases: int, timed: Sequence[Sequence[Case]]) -> dict[str, Any]:
    """The same for programs, with every sample."""
    rows = [
        {"backend": row.case.backend, **row.case.axis, **row.operation.model_dump(mode="json")}
        | {"copy_gbps": row.copy.value if row.copy else None}
        | {"speedup": row.speed.value if row.speed else None}
        for row in _rows(timed)
    ]
    return {"operation": name, "cases_equal": cases, "rows": rows}
