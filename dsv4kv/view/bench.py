"""Runs of ``bench``: the headline, the operations of a step, and everything that was measured.

Times of a busy machine, and values whose interval is unknown or as large as they are, are marked
``!`` and are never part of the headline. Rates are decimal: 1 GB/s is 10^9 B/s.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from dsv4kv.measure.statistics import Estimate, divide, estimate_rate, summarize
from dsv4kv.runs.quantities import (
    Measured,
    Quantity,
    axis_names,
    axis_text,
    by_quantity,
    datasheet_gbps,
    datasheet_tflops,
    list_measured,
    over_launches,
    per_step,
    setting_text,
    step_shares,
    yardsticks,
)
from dsv4kv.runs.schema import Case, GpuFacts, Latency, Operation, RunRecord
from dsv4kv.units import format_bytes, format_count, format_duration
from dsv4kv.view import plots
from dsv4kv.view.facts import (
    cache_facts,
    header,
    judge_results,
    judge_status,
    layers_text,
    totals_facts,
)
from dsv4kv.view.outcomes import (
    DECODE,
    GATHER,
    MEMORY,
    PREPARE,
    STEP,
    TOKENS,
    Group,
    Outcome,
    best_sentences,
    estimate_bar,
    group_launches,
    middle_launch,
    sweep_charts,
    unchanged_sentence,
)
from dsv4kv.view.quantity import format_quantity, quantity, size, us
from dsv4kv.view.table import (
    ABSENT,
    Cell,
    Chart,
    Finding,
    Level,
    Number,
    Page,
    Part,
    Read,
    Section,
    Table,
    Text,
    bar,
    mark,
)
from dsv4kv.view.telemetry import (
    busy_cpus,
    held_section,
    is_busy,
    judge_telemetry,
    machine_section,
)

MAX_ROWS: Final = 8
"""Rows of a table, and problems, of an answer without ``--verbose``."""
_NOTES = {
    "cpu": "reference CPU backend, not a performance claim",
    "cuda": "cold: each call on other memory, beyond L2; hot: the same call repeated",
}
_MARKS: dict[str, Level] = {"complete": "good", "incomplete": "warning", "skipped": "missing"}
_Launches = tuple[Quantity, list[Measured]]
_SHORT_NS = 10_000  # below, launching the kernels is much of an operation's time


def bench_page(record: RunRecord) -> Page:
    """Everything that a run has to show."""
    groups = group_launches(record.cases)
    layers = layers_text(record.cases)
    sections = [
        replace(section, parts=[_of(part, layers) for part in section.parts])
        for section in _sections(record, groups)
    ]
    sections.append(Section("Is it right", list(judge_run(record))))
    sections.append(Section("How to repeat it", [header(record)]))
    return Page(name_run(record), list(_answer(record, groups)), sections)


def name_run(record: RunRecord) -> str:
    """What was measured on what: ``KV cache of v4-flash on NVIDIA H200``."""
    models = ", ".join(dict.fromkeys(case.cache.model for case in record.cases if case.cache))
    gpu, cpu = record.environment.gpu, record.environment.cpu
    on_gpu = any(case.device == "cuda" for case in record.cases)
    machine = gpu.name if gpu and on_gpu else cpu or "an unknown CPU"
    layers = layers_text(record.cases).removeprefix("of ")
    what = f"KV cache of {models or 'no model'}"
    return f"{what}, {layers}, on {machine}" if layers else f"{what} on {machine}"


def judge_run(record: RunRecord) -> Iterator[Finding]:
    """Everything that a run found out about itself, each case's under its name."""
    if record.status != "complete" and (record.launches or len(record.cases) != 1):
        yield _judge_end(record)
    for launch in record.launches:
        if launch.status != "complete":
            why = launch.error or "stopped before the end"
            level: Level = "warning" if launch.status == "incomplete" else "bad"
            state = launch.status.replace("_", " ")
            yield Finding(level, f"launch {launch.launch} {state}: {why}")
    several, checks = len(record.cases) > 1, 0
    for case in record.cases:
        launch_words = [f"launch {case.launch}"] if record.launches else []
        name = ", ".join(filter(None, (*launch_words, axis_text(case)))) if several else ""
        for found in (*judge_status(case), *judge_results(case), *judge_telemetry(case)):
            if found.is_problem or not several:
                sentence = f"{name}: {found.sentence}" if name else found.sentence
                yield replace(found, sentence=sentence)
        checks += case.verification.checks
    if several and checks and not any(case.verification.failures for case in record.cases):
        yield Finding("good", f"{checks:,} outputs equal the reference in all cases together")


def _judge_end(record: RunRecord) -> Finding:
    """How many cases or launches ran to their end."""
    what = record.launches or record.cases
    count = Counter(each.status.replace("_", " ") for each in what)
    level: Level = "bad" if record.status == "failed" or count["failed"] else "warning"
    counts = ", ".join(f"{n} {status}" for status, n in sorted(count.items()))
    kind = "launches" if record.launches else "cases"
    sentence = f"of {len(what)} {kind} {counts}" if what else "no case ran"
    return Finding(level, f"{record.status}: {sentence}")


def _answer(record: RunRecord, groups: Sequence[Group]) -> Iterator[Part]:
    problems = [found for found in judge_run(record) if found.is_problem]
    problems.sort(key=lambda found: found.level != "bad")
    yield from problems[:3]
    if len(problems) > 3:
        yield Finding(problems[3].level, f"and {len(problems) - 3:,} more problems: --verbose")
    if not groups:
        return
    doubtful = any(is_busy(case) for case in record.cases)
    if doubtful:
        cpus = max(busy_cpus(case) for case in record.cases)
        yield Finding("warning", f"other processes used {cpus:.1f} CPUs: times are marked !")
    if len(groups) > 1:
        yield from _sweep_headline(groups, doubtful=doubtful)
        yield from ("", sweep_table(groups, MAX_ROWS + 4))
        yield from _more(len(groups), MAX_ROWS + 4)
    else:
        sentence = f"{name_run(record)}: {_headline(groups[0], doubtful=doubtful)}."
        good = _verdict(record)
        yield Text(sentence, "strong" if good else "plain")
        if good:
            yield good
        if len(groups[0]) > 1:
            rows = by_quantity(list_measured(record))
            yield from ("", launches_table(list_measured(record), "Medians of launches", MAX_ROWS))
            yield from _more(len(rows), MAX_ROWS)
        elif groups[0][0].operations:
            yield from ("", operations_table(groups[0][0], MAX_ROWS))
            yield from _more(len(_timed(groups[0][0])), MAX_ROWS)
        elif groups[0][0].latencies:
            yield from ("", latencies_table(groups[0][0].latencies))


def _more(count: int, shown: int) -> Iterator[Part]:
    if count > shown:
        yield Text(f"and {count - shown:,} more rows: --verbose", "dim")


def _verdict(record: RunRecord) -> Finding | None:
    """What is right; None where something is not."""
    if any(found.level == "bad" for found in judge_run(record)):
        return None
    checks = sum(case.verification.checks for case in record.cases)
    planned = any(case.cache and case.cache.pools for case in record.cases)
    words = [
        f"{checks:,} outputs equal the reference" if checks else "no output was compared",
        *(["memory as predicted to the byte"] if planned else []),
        "no block leaked",
    ]
    return Finding("good" if checks else "note", ", ".join(words))


def _headline(launches: Group, *, doubtful: bool) -> str:
    """Step, gather and size, without what is not known well."""
    found = []
    step = DECODE if DECODE.across(launches) else STEP
    for outcome, name in ((step, step.title.partition(",")[0].lower()), (GATHER, "gather")):
        estimate = outcome.across(launches)
        if estimate and not doubtful and is_known(estimate):
            found.append(f"{name} {outcome.text(estimate)}")
    case = launches[0]
    if case.cache:
        found.append(f"{case.cache.bytes_per_token:,.0f} B of cache per token")
        if allocated := MEMORY.across(launches):
            found.append(f"{format_bytes(allocated.value)} allocated")
    return ", ".join(found) or "nothing was measured"


def _sweep_headline(groups: Sequence[Group], *, doubtful: bool) -> Iterator[Part]:
    sentences = list(best_sentences(groups)) or [unchanged_sentence(groups)]
    for sentence in filter(None, sentences[:2]):
        yield Finding("warning", sentence) if doubtful else Text(sentence, "strong")


def is_known(estimate: Estimate) -> bool:
    """Whether the interval is known, and smaller than the value."""
    return estimate.half_width is not None and estimate.half_width < abs(estimate.value)


def checked(estimate: Estimate | None, scale: float = 1.0, *, busy: bool = False) -> Number:
    """A cell that is marked where the value is not known well."""
    cell = quantity(estimate, scale)
    if estimate is None or (is_known(estimate) and not busy):
        return cell
    return replace(cell, value=f"! {cell.value}", tone="warning")


def backend_note(case: Case) -> str:
    """Which operations ran, and what to make of their times."""
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
    """In a step, or where no step is like another of all calls."""
    known = any(per_step(case, each)[2] for each in case.operations)
    return per_step(case, operation)[2] if known else sum(operation.samples_ns)


def operations_table(case: Case, most: int | None = None, gpu: GpuFacts | None = None) -> Table:
    """Time, rate and share of each operation; with ``most`` only those that take most time.

    The rate is all useful bytes over all time, and that of plain copies likewise. Operations with
    matrix products have a roof: memory allows FLOP/B times the rate of copies, tensor cores the
    datasheet's dense rate of the ``gpu``.
    """
    known, busy = yardsticks(case), is_busy(case)
    best = known[0].rate if known else None
    rows = _timed(case)[:most] if most else case.operations
    whole = sum(_time_of(case, each) for each in _timed(case)) or 1

    def share_of_best(each: Operation) -> Number:
        rate = estimate_rate(each.bytes, each.samples_ns)
        share = divide(rate, best) if rate and best and best.value else None
        return checked(share, 100, busy=busy)

    columns: list[tuple[str, Read]] = [
        ("operation", _name),
        ("layers", _layers),
        ("median µs", lambda each: checked(_median(each.samples_ns), 1e-3, busy=busy)),
        (
            "GB/s",
            lambda each: checked(estimate_rate(each.bytes, each.samples_ns), busy=busy),
        ),
        (f"% of {known[0].name if known else 'copy'}", share_of_best),
        ("% of time", lambda each: _percent(_time_of(case, each), whole, each.temperature)),
    ]
    if most is None:
        columns += [
            ("calls", lambda each: _calls(len(each.samples_ns), each.throttled)),
            ("entries", lambda each: quantity(sum(each.entries))),
            ("useful bytes", lambda each: size(sum(each.bytes))),
            ("bytes till reused", lambda each: size(each.distinct_bytes)),
            ("FLOP/B", lambda each: quantity(_intensity(each))),
            ("GFLOP/s", lambda each: quantity(_flop_rate(each))),
            ("bound by", lambda each: _roof(each, best, gpu)[0]),
            ("% of the roof", lambda each: _roof(each, best, gpu)[1]),
        ]
    peaks = "; ".join(
        f"{each.name} {format_quantity(each.rate)} GB/s" for each in known[: 1 if most else None]
    )
    missing = [f"not measured: {_name(e)} {_layers(e)}, {e.why}" for e in case.not_measured]
    if case.empty_kernel_ns and any(
        sum(e.samples_ns) < _SHORT_NS * len(e.samples_ns) for e in rows
    ):
        empty = format_quantity(_median(case.empty_kernel_ns), 1e-3)
        missing.append(f"an empty kernel takes {empty} µs")
    return Table(
        "Operations",
        columns,
        rows,
        note="; ".join(filter(None, (peaks, backend_note(case)))),
        caption="" if most else "\n".join(missing),
        keys=2,
    )


def _percent(part: float, whole: float, temperature: str | None = None) -> Number:
    counts = part and temperature in (None, "cold")
    return Number(f"{part / whole * 100:.1f}" if counts else ABSENT)


def _median(samples_ns: Sequence[int]) -> Estimate | None:
    return summarize(samples_ns).estimate if samples_ns else None


def _name(operation: object) -> str:
    name = getattr(operation, "name", "").removeprefix("indexer_")
    return f"{name} {getattr(operation, 'temperature', None) or ''}".rstrip()


def _layers(operation: object) -> str:
    indexer = getattr(operation, "name", "").startswith("indexer_")
    return f"{getattr(operation, 'layer_type', '')}{' idx' if indexer else ''}"


def _calls(kept: int, throttled: int) -> Number:
    return Number(f"{kept:,} of {kept + throttled:,}" if throttled else f"{kept:,}")


def _intensity(operation: Operation) -> float | None:
    return sum(operation.flops) / sum(operation.bytes) if operation.flops else None


def _flop_rate(operation: Operation) -> float | None:
    time_ns = sum(operation.samples_ns)
    return sum(operation.flops) / time_ns if operation.flops and time_ns else None


def _roof(operation: Operation, copy: Estimate | None, gpu: GpuFacts | None) -> tuple[str, Number]:
    """What bounds an operation's GFLOP/s, and the share of that bound that is reached."""
    intensity, rate = _intensity(operation), _flop_rate(operation)
    if intensity is None or rate is None or operation.temperature == "hot":
        return ABSENT, Number(ABSENT)
    peak = datasheet_tflops(gpu, fp8=operation.name == "index_scores") if gpu else None
    allowed = {"memory": intensity * copy.value} if copy else {}
    allowed |= {"tensor cores": peak * 1e3} if peak else {}
    if not allowed:
        return ABSENT, Number(ABSENT)
    bound = min(allowed, key=lambda name: allowed[name])
    return bound if len(allowed) > 1 else ABSENT, _percent(rate, allowed[bound])


def latencies_table(latencies: Sequence[Latency]) -> Table:
    """Bookkeeping and steps: medians and the tail, in µs."""
    found = [(each, summarize(each.samples_ns)) for each in latencies if each.samples_ns]
    graph, eager = (
        next((s.estimate for e, s in found if e.name == f"decode_{way}_device"), None)
        for way in ("graph", "eager")
    )
    note = ""
    if graph and eager:
        ratio = format_quantity(divide(eager, graph))
        note = f"launched one by one, a step takes {ratio} times as long as a graph"
    return Table(
        "Latencies",
        [
            ("action", lambda row: row[0].name),
            ("median µs", lambda row: checked(row[1].estimate, 1e-3)),
            ("p90 µs", lambda row: us(row[1].percentiles.get(90.0))),
            ("p99 µs", lambda row: us(row[1].percentiles.get(99.0))),
            ("max µs", lambda row: us(row[1].maximum)),
            ("samples", lambda row: quantity(row[1].n)),
            ("outliers", lambda row: quantity(row[1].outliers)),
        ],
        found,
        note=note,
    )


def launches_table(found: Sequence[Measured], title: str, most: int | None = None) -> Table:
    """Quantities: median of launch medians with its interval over launches, rate, and range."""

    def medians(row: _Launches) -> list[float]:
        return [each.median_ns for each in row[1]]

    def rate(row: _Launches) -> Estimate | None:
        return over_launches([rate.value for each in row[1] if (rate := each.rate_gbps)])

    return Table(
        title,
        [
            ("quantity", lambda row: f"{row[0].name} {row[0].temperature}".strip()),
            ("layers", lambda row: row[0].layer_type),
            ("median µs", lambda row: checked(over_launches(medians(row)), 1e-3)),
            ("GB/s", lambda row: checked(rate(row))),
            (
                "slowest / fastest",
                lambda row: quantity(max(medians(row)) / (min(medians(row)) or 1)),
            ),
            ("launches", lambda row: quantity(len(row[1]))),
            ("samples each", lambda row: quantity(len(row[1][0].samples_ns))),
        ],
        list(by_quantity(found).items())[:most],
        note="95 % interval over launches",
        keys=2,
    )


def sweep_table(groups: Sequence[Group], most: int | None = None) -> Table:
    """A row per setting, over its launches. The gather rate is that of all gathers, cold ones."""
    cases = [case for group in groups for case in group]
    busy = any(is_busy(case) for case in cases)
    columns: list[tuple[str, Read]] = [
        (name.replace("_", " "), partial(_axis_cell, path=path))
        for path, name in axis_names(cases).items()
    ]
    keys = len(columns)
    for title, outcome, scale in (
        ("GPU decode µs", DECODE, 1e-3),
        ("step µs", STEP, 1e-3),
        ("gather GB/s", GATHER, 1.0),
        ("prepare µs", PREPARE, 1e-3),
        ("tokens/s", TOKENS, 1.0),
    ):
        columns.append((title, partial(_outcome_cell, outcome=outcome, scale=scale, busy=busy)))
    return Table(
        "Sweep",
        [
            *columns,
            ("allocated", lambda group: size(_value(MEMORY.across(group)))),
            ("state", lambda group: mark(_MARKS.get(group[0].status, "bad"))),
        ],
        groups[:most],
        note="; ".join(dict.fromkeys(backend_note(case) for case in cases if case.totals)),
        keys=keys,
    )


def _axis_cell(group: Group, path: str) -> str:
    return _setting(path, group[0].axis[path]) if path in group[0].axis else ABSENT


def _outcome_cell(group: Group, outcome: Outcome, scale: float, *, busy: bool) -> Number:
    found = outcome.across(group)
    if outcome is TOKENS and found:
        return Number(f"{found.value:,.0f}")
    return checked(found, scale, busy=busy)


def _value(estimate: Estimate | None) -> float | None:
    return estimate.value if estimate else None


def _setting(path: str, value: object) -> str:
    """A setting as people write it: contexts as ``128K``."""
    if path == "workload.context" and isinstance(value, int):
        return format_count(value)
    return setting_text(value)


def step_table(cases: Sequence[Case]) -> Table | None:
    """Bytes and time of a decode step by kind of work; None where no case knows."""
    axes = axis_names(cases)
    rows: list[list[Cell | str]] = []
    for case in cases:
        shares = step_shares(case)
        moved, spent = sum(s.bytes for s in shares) or 1, sum(s.ns for s in shares) or 1
        rows += [
            [
                *(_setting(path, case.axis.get(path, ABSENT)) for path in axes),
                each.kind,
                Number(format_bytes(each.bytes) if each.bytes else ABSENT),
                _percent(each.bytes, moved),
                Number(format_duration(each.ns)),
                _percent(each.ns, spent),
                bar(each.ns / spent),
            ]
            for each in shares
        ]
    if not rows:
        return None
    names = [name.replace("_", " ") for name in axes.values()]
    headers = ["work", "bytes a step", "% of bytes", "time a step", "% of time", "of time"]
    return Table(
        "Where a decode step goes",
        [*names, *headers],
        rows,
        note="all requests and layers held; useful bytes by the byte model",
        keys=len(axes) + 1,
    )


def _of(part: Part, layers: str) -> Part:
    """A table with the layers next to its title, where its numbers are of a part of a model."""
    return part.noted(layers) if isinstance(part, Table) and part.title != "Telemetry" else part


def _sections(record: RunRecord, groups: Sequence[Group]) -> Iterator[Section]:
    gpu = record.environment.gpu
    if len(groups) > 1:
        cases = [middle_launch(group) for group in groups]
        yield Section(
            "What the settings change",
            [sweep_table(groups), *sweep_charts(groups)],
            unchanged_sentence(groups),
        )
        yield from _step_section(cases)
        return
    if record.launches:
        steps = [
            estimate_bar(f"launch {case.launch}", found, "ns")
            for case in record.cases
            if (found := STEP.read(case))
        ]
        charts = [plots.bars("Median step of each launch", steps, unit="ns")] if steps else []
        table = launches_table(list_measured(record), "Medians")
        yield Section("How far launches differ", [table, *charts])
    for group in groups:
        yield from case_sections(middle_launch(group), gpu)


def case_sections(case: Case, gpu: GpuFacts | None) -> Iterator[Section]:
    """Everything that one case has to show."""
    timed = [latency for latency in case.latencies if latency.samples_ns]
    on_gpu = gpu if case.device == "cuda" else None
    if timed:
        yield Section("How long it took", [latencies_table(timed), _latency_chart(timed)])
    if case.operations:
        yield Section(
            "How fast bytes moved",
            [operations_table(case, gpu=on_gpu), *_rate_charts(case, on_gpu)],
            "Useful bytes over time, with 95 % intervals.",
        )
        yield from _step_section([case])
    if case.cache:
        totals = [totals_facts(case.totals, case.cache)] if case.totals else []
        yield Section("Where the memory is", [cache_facts(case.cache), *totals, *_pools(case)])
    if case.memory and case.memory.at_ns:
        yield held_section(case.memory)
    yield from machine_section(case)


def _step_section(cases: Sequence[Case]) -> Iterator[Section]:
    if table := step_table(cases):
        yield Section("Where a decode step goes", [table])


def _pools(case: Case) -> Iterator[Part]:
    pools = case.cache.pools if case.cache else []
    if not pools:
        return
    whole = sum(pool.allocated_bytes for pool in pools) or 1
    yield Table(
        "Cache",
        [
            ("pool", lambda pool: pool.name),
            (
                "layers",
                lambda p: f"{p.layer_type} × {p.layers}" if p.layer_type != "all" else "all",
            ),
            ("units", lambda pool: quantity(pool.units)),
            ("bytes/unit", lambda pool: quantity(pool.unit_bytes)),
            ("predicted", lambda pool: size(pool.predicted_bytes)),
            ("allocated", lambda pool: size(pool.allocated_bytes)),
            ("of all", lambda pool: bar(pool.allocated_bytes / whole)),
            (
                "as predicted",
                lambda pool: (
                    mark("good")
                    if pool.predicted_bytes == pool.allocated_bytes
                    else mark("bad", "differs")
                ),
            ),
        ],
        pools,
        keys=2,
    )


def _latency_chart(latencies: Sequence[Latency]) -> Chart:
    rows = [estimate_bar(e.name, summarize(e.samples_ns).estimate, "ns") for e in latencies]
    return plots.bars("Median of each action", rows, unit="ns", dots=True)


def _rate_charts(case: Case, gpu: GpuFacts | None) -> Iterator[Chart]:
    """Rates next to those of plain copies."""
    found = [
        (f"{_name(each)} {_layers(each)}", rate)
        for each in case.operations
        if (rate := estimate_rate(each.bytes, each.samples_ns)) and rate.value > 0
    ]
    if not found:
        return
    found.sort(key=lambda pair: -pair[1].value)
    limits = {each.name: rate.value for each in yardsticks(case) if (rate := each.rate)}
    promised = datasheet_gbps(gpu) if gpu else None
    limits |= {"datasheet": float(promised)} if promised else {}
    rows = [estimate_bar(name, rate, "GB/s") for name, rate in found]
    yield plots.bars("Rate of each operation, GB/s", rows, unit="GB/s", dots=True, lines=limits)
