"""What is around a run's tables: the run, the machine, the cache, totals, and whether it is right.

Findings are ``bad`` or ``warning`` where numbers must not be believed without more.
"""

import shlex
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from dsv4kv.runs.schema import CacheSummary, Case, RunRecord, Totals
from dsv4kv.units import counted, format_bytes, format_duration
from dsv4kv.view.table import ABSENT, Command, Facts, Finding, Level

_SHARING = {
    "model": "one block table for the whole model",
    "type": "a block table per layer type",
    "layer": "a block table per layer",
}
_MAX_FAILURES = 20


def header(record: RunRecord) -> Facts:
    """Facts that hold for every case of the run."""
    caches = [case.cache for case in record.cases if case.cache]
    placed = any(setting(case, "workload.context") for case in record.cases)
    found, gpu = record.environment, record.environment.gpu
    models = []
    for cache in caches:
        layers = ", ".join(f"{count} {kind}" for kind, count in cache.layers.items())
        held = f"{sum(cache.layers.values())} of {cache.total_layers} layers held"
        models.append(f"{cache.model}, {held}: {layers}")
    counts = {setting(case, "measure.threads") for case in record.cases}
    threads = sorted(count for count in counts if isinstance(count, int))
    machine = [
        found.cpu or "unknown CPU",
        f"{found.cpu_count} CPUs" if found.cpu_count else "",
        f"{' or '.join(map(str, threads))} torch thread{'' if threads == [1] else 's'}"
        if threads
        else "",
        f"{format_bytes(found.memory_bytes)} memory" if found.memory_bytes else "",
        f"load {found.load_1min:.1f}" if found.load_1min is not None else "",
        f"governor {found.governor}" if found.governor else "",
    ]
    dirty = " (dirty)" if found.git_dirty else ""
    software = [f"{name} {version}" for name, version in found.versions.items() if version]
    software.append(f"Python {found.python}")
    software += [f"git {found.git_sha[:12]}{dirty}"] if found.git_sha else []
    rows = {
        "model": "; ".join(dict.fromkeys(models)) or ABSENT,
        "run": f"{record.run_id}, started {record.started_utc}",
        "config": f"{record.config_source}, seed {record.seed}",
        "trace": record.trace_source or ("placed contexts" if placed else "synthetic"),
        "machine": ", ".join(filter(None, machine)),
        "gpu": f"{gpu.name}, {gpu.multiprocessors} multiprocessors, capability {gpu.capability}, "
        f"{format_bytes(gpu.memory_bytes)} memory, {format_bytes(gpu.l2_bytes)} L2"
        if gpu
        else "",
        "software": ", ".join([*software, found.platform]),
        "repeat": pasted(record.reproduce),
    }
    return Facts({label: text for label, text in rows.items() if text})


def pasted(line: str) -> Command:
    """Our command from a file, each word quoted: nothing runs but that; another's is empty."""
    try:
        words = shlex.split(line)
    except ValueError:  # a quote without its end
        words = []
    return Command.of(*words) if words[:1] == ["dsv4kv"] else Command()


def cache_facts(cache: CacheSummary) -> Facts:
    """Geometry of one case's cache."""
    layers = _layers([cache])
    return Facts(
        {
            "cache": f"{cache.num_blocks:,} blocks of {cache.block_tokens:,} tokens, "
            f"{cache.num_slots:,} slots, requests up to {cache.max_context_tokens:,} tokens",
            "tables": f"{_SHARING[cache.sharing]}; HCA state: {cache.state}",
            "formats": ", ".join(f"{place} {name}" for place, name in cache.formats.items()),
            "sizes": f"{cache.bytes_per_token:,.1f} B per token of context, "
            f"{format_bytes(cache.bytes_per_request)} per request slot"
            + (f", {layers}" if layers else ""),
        }
    )


def totals_facts(totals: Totals, cache: CacheSummary | None) -> Facts:
    """What went through the cache. One run gives one observation of a total: no interval."""
    speed, blocks = tokens_per_second(totals), cache.total_blocks if cache else 0
    output = totals.output_tokens / totals.wall_ns * 1e9 if totals.wall_ns else 0
    share = f" of {blocks:,} ({totals.peak_blocks / blocks * 100:.1f} %)" if blocks else ""
    rows = {
        "requests": f"{totals.requests:,} served, peak concurrency {totals.peak_requests:,}",
        "tokens": f"{totals.input_tokens:,} in, {totals.output_tokens:,} out",
        "rate": f"{speed:,.0f} tokens/s in and out, {output:,.0f} tokens/s out (one run)"
        if speed
        else ABSENT,
        "steps": f"{totals.steps:,} in {format_duration(totals.wall_ns)}",
        "peak": f"{totals.peak_blocks:,}{share} blocks allocated, "
        f"{format_bytes(totals.peak_rounding_bytes)} lost to partial pages",
    }
    if totals.resumed_tokens:
        prompts = totals.input_tokens + totals.resumed_tokens
        hits = totals.resumed_tokens / prompts * 100
        rows["resumed"] = (
            f"{totals.resumed_tokens:,} of {prompts:,} prompt tokens ({hits:.1f} %) were cached"
        )
    if drafted := totals.drafted_tokens:
        accepted = (drafted - totals.rolled_back_tokens) / drafted * 100
        rows["drafts"] = (
            f"{drafted:,} proposed, {totals.rolled_back_tokens:,} rolled back, "
            f"{accepted:.1f} % accepted"
        )
    return Facts(rows)


def layers_text(cases: Iterable[Case]) -> str:
    """``3 of 43 layers``, for numbers of a part of a model; else empty."""
    return _layers([case.cache for case in cases if case.cache])


def _layers(caches: Iterable[CacheSummary]) -> str:
    held = {(sum(cache.layers.values()), cache.total_layers) for cache in caches}
    if all(count == whole for count, whole in held):
        return ""
    counts, wholes = ({each[n] for each in held} for n in (0, 1))
    return f"{_span(counts)} of {_span(wholes)} layers"


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


def judge_status(case: Case) -> list[Finding]:
    """Whether the case ran to its end; empty if it did."""
    if case.status == "complete":
        return []
    if case.status == "incomplete":
        return [Finding("warning", "incomplete: stopped before the end; numbers cover what ran")]
    level: Level = "bad" if case.status == "failed" else "warning"
    why = "; ".join((case.error or "").splitlines())
    return [Finding(level, f"{case.status}: {why}")]


def judge_results(case: Case) -> Iterator[Finding]:
    """Rejected requests, leaked blocks, memory against the plan, outputs against the reference."""
    if case.totals and (rejected := case.totals.rejected):
        limit = f"{case.cache.max_context_tokens:,} tokens" if case.cache else "the cache"
        text = f"rejected requests: {rejected:,}, longer than {limit} or the pool"
        yield Finding("warning", text)
    if case.totals and (left := case.totals.blocks_left):
        yield Finding("bad", f"blocks not freed at the end: {left:,}; the cache leaks")
    if pools := case.cache.pools if case.cache else []:
        predicted, allocated = (
            format_bytes(sum(getattr(pool, f"{what}_bytes") for pool in pools))
            for what in ("predicted", "allocated")
        )
        gaps = [
            f"{pool.name} of {pool.layer_type} layers {gap:+,} B"
            for pool in pools
            if (gap := pool.allocated_bytes - pool.predicted_bytes)
        ]
        text = f"{allocated} allocated, {predicted} predicted: {', '.join(gaps)}"
        good = Finding("good", f"{allocated} allocated, as predicted to the byte")
        yield Finding("bad", text) if gaps else good
    yield from foreign_findings(case)
    checked = case.verification
    if failures := checked.failures:
        count = f"{len(failures):,} of {checked.checks:,}"
        yield Finding("bad", f"{count} outputs differ from the reference:")
        yield from (Finding("bad", failure) for failure in failures[:_MAX_FAILURES])
        if (more := len(failures) - _MAX_FAILURES) > 0:
            yield Finding("bad", f"and {more:,} more, in the record")
    elif checked.checks and case.status not in ("failed", "skipped"):
        counts = ", ".join(f"{name} {count:,}" for name, count in checked.by_operation.items())
        yield Finding("good", f"{checked.checks:,} outputs equal the reference: {counts}")
    elif case.status not in ("failed", "skipped"):
        yield Finding("note", "no output was compared with the reference")
    if case.gathers_because:
        yield Finding("note", f"decode steps gather, not read in place: {case.gathers_because}")


def foreign_findings(case: Case) -> Iterator[Finding]:
    """A line for each operation of another backend, checked before the run."""
    for name, count in case.foreign_cases.items():
        yield cases_equal(name, case.backend, count)


def cases_equal(operation: str, backend: str, count: int) -> Finding:
    """How many cases of an operation equal the reference."""
    cases = f"{counted(count, 'case')} equal{'s' if count == 1 else ''} the reference"
    return Finding("good", f"{cases}: {operation} of {backend}")


def _span(counts: Collection[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low}" if low == high else f"{low} to {high}"
