"""What is around a run's tables: the run, the machine, the cache, totals, and whether it is right.

Findings are ``bad`` or ``warning`` where numbers must not be believed without more.
"""

import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from dsv4kv.runs.parts import MeasuredWindow
from dsv4kv.runs.quantities import WindowState, window_state
from dsv4kv.runs.schema import CacheSummary, Case, RunRecord, Totals
from dsv4kv.units import counted, format_bytes, format_duration
from dsv4kv.view import table as tb

_SHARING = {
    "model": "one block table for the whole model",
    "type": "a block table per layer type",
    "layer": "a block table per layer",
}
_MAX_FAILURES = 20


def header(record: RunRecord) -> tb.Facts:
    placed = any(setting(case, "workload.context") for case in record.cases)
    found, gpu = record.environment, record.environment.gpu
    models = []
    for cache in (case.cache for case in record.cases if case.cache):
        layers = ", ".join(f"{count} {kind}" for kind, count in cache.layers.items())
        held = f"{sum(cache.layers.values())} of {cache.total_layers} layers held"
        models.append(f"{cache.model}, {held}: {layers}")
    counts = {setting(case, "measure.threads") for case in record.cases}
    threads = sorted(count for count in counts if isinstance(count, int))
    pools = f"{' or '.join(map(str, threads))} torch thread{'' if threads == [1] else 's'}"
    machine = [
        found.cpu or "unknown CPU",
        f"{found.cpu_count} CPUs" if found.cpu_count else "",
        pools if threads else "",
        f"{format_bytes(found.memory_bytes)} memory" if found.memory_bytes else "",
        f"load {found.load_1min:.1f}" if found.load_1min is not None else "",
        f"governor {found.governor}" if found.governor else "",
    ]
    graphics = gpu and [
        f"{gpu.name}, {gpu.multiprocessors} multiprocessors, capability {gpu.capability}",
        f"{format_bytes(gpu.memory_bytes)} memory, {format_bytes(gpu.l2_bytes)} L2",
    ]
    dirty = " (dirty)" if found.git_dirty else ""
    software = [f"{name} {version}" for name, version in found.versions.items() if version]
    software.append(f"Python {found.python}")
    software += [f"git {found.git_sha[:12]}{dirty}"] if found.git_sha else []
    rows = {
        "model": "; ".join(dict.fromkeys(models)) or tb.ABSENT,
        "run": f"{record.run_id}, started {record.started_utc}",
        "config": f"{record.config_source}, seed {record.seed}",
        "trace": record.trace_source or ("placed contexts" if placed else "synthetic"),
        "machine": ", ".join(filter(None, machine)),
        "gpu": ", ".join(graphics or ()),
        "software": ", ".join([*software, found.platform]),
        "repeat": pasted(record.reproduce),
    }
    return tb.Facts({label: text for label, text in rows.items() if text})


def pasted(line: str) -> tb.Command:
    """Our command from a file, each word quoted: nothing runs but that; another's is empty."""
    try:
        words = shlex.split(line)
    except ValueError:  # a quote without its end
        words = []
    return tb.Command.of(*words) if words[:1] == ["dsv4kv"] else tb.Command()


def cache_facts(cache: CacheSummary) -> tb.Facts:
    sizes = [
        f"{cache.bytes_per_token:,.1f} B per token of context",
        f"{format_bytes(cache.bytes_per_request)} per request slot",
        _layers([cache]),
    ]
    rows = {
        "cache": f"{cache.num_blocks:,} blocks of {cache.block_tokens:,} tokens, "
        f"{cache.num_slots:,} slots, requests up to {cache.max_context_tokens:,} tokens",
        "tables": f"{_SHARING[cache.sharing]}; HCA state: {cache.state}",
        "formats": ", ".join(f"{place} {name}" for place, name in cache.formats.items()),
        "sizes": ", ".join(filter(None, sizes)),
    }
    return tb.Facts(rows)


def totals_facts(totals: Totals, cache: CacheSummary | None) -> tb.Facts:
    """What went through the cache. One run gives one observation of a total: no interval."""
    speed, blocks = tokens_per_second(totals), cache.total_blocks if cache else 0
    output = totals.output_tokens / totals.wall_ns * 1e9 if totals.wall_ns else 0
    share = f" of {blocks:,} ({totals.peak_blocks / blocks * 100:.1f} %)" if blocks else ""
    rate = f"{speed or 0:,.0f} tokens/s in and out, {output:,.0f} tokens/s out (one run)"
    rows = {
        "requests": f"{totals.requests:,} served, peak concurrency {totals.peak_requests:,}",
        "tokens": f"{totals.input_tokens:,} in, {totals.output_tokens:,} out",
        "rate": rate if speed else tb.ABSENT,
        "steps": f"{totals.steps:,} in {format_duration(totals.wall_ns)}",
        "peak": f"{totals.peak_blocks:,}{share} blocks allocated, "
        f"{format_bytes(totals.peak_rounding_bytes)} lost to partial pages",
    }
    if resumed := totals.resumed_tokens:
        prompts = totals.input_tokens + resumed
        hits = f"({resumed / prompts * 100:.1f} %) were cached"
        rows["resumed"] = f"{resumed:,} of {prompts:,} prompt tokens {hits}"
    if drafted := totals.drafted_tokens:
        back = totals.rolled_back_tokens
        accepted = f"{(drafted - back) / drafted * 100:.1f} % accepted"
        rows["drafts"] = f"{drafted:,} proposed, {back:,} rolled back, {accepted}"
    return tb.Facts(rows)


def layers_text(cases: Iterable[Case]) -> str:
    """``3 of 43 layers``, for numbers of a part of a model; else empty."""
    return _layers([case.cache for case in cases if case.cache])


def _layers(caches: Iterable[CacheSummary]) -> str:
    held = {(sum(cache.layers.values()), cache.total_layers) for cache in caches}
    if all(count == whole for count, whole in held):
        return ""
    ends = [(min(counts), max(counts)) for counts in zip(*held, strict=True)]
    count, whole = (f"{low}" if low == high else f"{low} to {high}" for low, high in ends)
    return f"{count} of {whole} layers"


def tokens_per_second(totals: Totals) -> float | None:
    """Prompt and generated tokens over the wall time; None if no time passed."""
    tokens = totals.input_tokens + totals.output_tokens
    return tokens / totals.wall_ns * 1e9 if totals.wall_ns else None


def setting(case: Case, path: str) -> Any:
    """A setting of the case's configuration by dotted path; None where there is none."""
    value: Any = case.config
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def judge_status(case: Case) -> list[tb.Finding]:
    """Whether the case ran to its end; empty if it did."""
    if case.status == "complete":
        return []
    if case.status == "incomplete":
        return [tb.warning("incomplete: stopped before the end; numbers cover what ran")]
    say = tb.bad if case.status == "failed" else tb.warning
    return [say(f"{case.status}: {'; '.join((case.error or '').splitlines())}")]


def judge_results(case: Case) -> Iterator[tb.Finding]:
    """Rejected requests, leaked blocks, memory against the plan, outputs against the reference."""
    if case.totals and (rejected := case.totals.rejected):
        limit = f"{case.cache.max_context_tokens:,} tokens" if case.cache else "the cache"
        yield tb.warning(f"rejected requests: {rejected:,}, longer than {limit} or the pool")
    if case.totals and (left := case.totals.blocks_left):
        yield tb.bad(f"blocks not freed at the end: {left:,}; the cache leaks")
    if pools := case.cache.pools if case.cache else []:
        allocated = format_bytes(sum(pool.allocated_bytes for pool in pools))
        predicted = format_bytes(sum(pool.predicted_bytes for pool in pools))
        gaps = [
            f"{pool.name} of {pool.layer_type} layers {gap:+,} B"
            for pool in pools
            if (gap := pool.allocated_bytes - pool.predicted_bytes)
        ]
        if gaps:
            yield tb.bad(f"{allocated} allocated, {predicted} predicted: {', '.join(gaps)}")
        else:
            yield tb.good(f"{allocated} allocated, as predicted to the byte")
    yield from foreign_findings(case)
    checked = case.verification
    if failures := checked.failures:
        count = f"{len(failures):,} of {checked.checks:,}"
        yield tb.bad(f"{count} outputs differ from the reference:")
        yield from map(tb.bad, failures[:_MAX_FAILURES])
        if (more := len(failures) - _MAX_FAILURES) > 0:
            yield tb.bad(f"and {more:,} more, in the record")
    elif checked.checks and case.status not in ("failed", "skipped"):
        counts = ", ".join(f"{name} {count:,}" for name, count in checked.by_operation.items())
        yield tb.good(f"{checked.checks:,} outputs equal the reference: {counts}")
    elif case.status not in ("failed", "skipped"):
        yield tb.note("no output was compared with the reference")
    if case.gathers_because:
        yield tb.note(f"decode steps gather, not read in place: {case.gathers_because}")


def foreign_findings(case: Case) -> Iterator[tb.Finding]:
    """A line for each operation of another backend, checked before the run."""
    for name, count in case.foreign_cases.items():
        yield cases_equal(name, case.backend, count)


def cases_equal(operation: str, backend: str, count: int) -> tb.Finding:
    """How many cases of an operation equal the reference."""
    cases = f"{counted(count, 'case')} equal{'s' if count == 1 else ''} the reference"
    return tb.good(f"{cases}: {operation} of {backend}")


# ---- what the machine did while a case was measured

BUSY_CPUS: Final = 0.5  # of other processes; one of our polls is a thousandth
_EXPECTED = {"power cap"}  # at full load on parts that are rated by their power
_MAX_NAMES = 4
_NS = 1e-9


def _span(ends: tuple[float, float]) -> str:
    low, high = (f"{end:,.0f}" for end in ends)
    return low if low == high else f"{low}–{high}"


_COLUMNS: dict[str, tuple[str, Callable[..., str]]] = {
    "SM MHz": ("sm_clock_mhz", _span),
    "memory MHz": ("memory_clock_mhz", _span),
    "W": ("power_w", tb.number),
    "°C": ("temperature_c", "{:.0f}".format),
    "CPU MHz": ("cpu_mhz", _span),
    "CPUs used by other processes": ("other_cpus", tb.number),
}

Window = tuple[str, MeasuredWindow, WindowState]
"""Its name, ``gather_topk csa cold``; when it was; and what the machine did."""


def _windows_of(case: Case) -> list[Window]:
    found = case.telemetry
    if found is None:
        return []
    words = ((each.name, each.layer_type, each.temperature) for each in found.windows)
    return [
        (" ".join(filter(None, name)), each, window_state(found, each))
        for name, each in zip(words, found.windows, strict=True)
    ]


def is_busy(case: Case) -> bool:
    """Whether other processes used CPUs or the GPU while it was measured."""
    states = [state for _, _, state in _windows_of(case)]
    return busy_cpus(case) >= BUSY_CPUS or any(state.other_processes for state in states)


def busy_cpus(case: Case) -> float:
    """CPUs that other processes used, in the window with most."""
    return max((state.other_cpus or 0 for _, _, state in _windows_of(case)), default=0.0)


def telemetry_table(case: Case) -> tb.Table | None:
    """A row for each window, a column for whatever the machine reported; None without windows."""
    windows = _windows_of(case)
    if not windows or case.telemetry is None:
        return None
    columns: list[tb.Column] = [
        ("measured", lambda row: row[0]),
        ("s", lambda row: (row[1].ended_ns - row[1].started_ns) * _NS),
    ]

    def cell(row: Window, name: str, form: Callable[..., str]) -> tb.Number | None:
        value = getattr(row[2], name)
        return None if value is None else tb.Number(form(value))

    def limits(row: Window) -> tb.Text:
        """``power cap 62 %, 1,980 down to 1,410 MHz``."""
        state = row[2]
        parts = [f"{name} {share * 100:.0f} %" for name, share in state.limits.items()]
        if state.clock_moved and state.sm_clock_mhz:
            low, high = state.sm_clock_mhz
            parts.append(f"{high:,.0f} down to {low:,.0f} MHz")
        return tb.Text(", ".join(parts), "warning") if state.is_limited else tb.dim("nothing")

    for header, (name, form) in _COLUMNS.items():
        if any(getattr(state, name) is not None for _, _, state in windows):
            columns.append((header, partial(cell, name=name, form=form)))
    samples = case.telemetry.gpu_samples
    if samples is not None and samples.reasons is not None:
        columns.append(("clocks limited by", limits))
    note = f"{1e9 / case.telemetry.interval_ns:.0f} Hz"
    return tb.Table("Telemetry", columns, windows, note=note)


def judge_telemetry(case: Case) -> Iterator[tb.Finding]:
    """Windows whose clocks were limited or moved, that did not converge, or were not alone."""
    windows, found = _windows_of(case), defaultdict[str, list[str]](list)
    moved, open_ended, busy = list[str](), list[str](), list[str]()
    for name, window, state in windows:
        for limit, share in state.limits.items():
            found[limit].append(f"{name} ({share * 100:.0f} % of the time)")
        moved += [name] if state.clock_moved and not state.limits else []
        open_ended += [name] if window.converged is False else []
        cpus = state.other_cpus or 0
        busy += [f"{name} ({cpus:.1f})"] if cpus >= BUSY_CPUS else []
    for limit, names in found.items():
        say = tb.note if limit in _EXPECTED else tb.warning
        yield say(f"{limit} reduced clocks during {_few(names)}")
    if moved:
        yield tb.warning(f"the GPU's clock changed during {_few(moved)}")
    if open_ended:
        yield tb.warning(f"not converged to 0.5 % within the time: {_few(open_ended)}")
    if busy:
        yield tb.note(f"other processes used CPUs during {_few(busy)}")
    if others := max((state.other_processes or 0 for _, _, state in windows), default=0):
        yield tb.warning(f"{others} other processes computed on the GPU")
    reasons = defaultdict[str, list[str]](list)
    for name, reason in (case.telemetry.absent if case.telemetry else {}).items():
        reasons[reason].append(name)
    if reasons:
        missing = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items())
        yield tb.note(f"not available on this machine: {missing}")


def _few(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
