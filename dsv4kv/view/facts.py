"""What is above and below the tables: the run, the machine, the cache, and the totals."""

from collections.abc import Collection, Iterable
from typing import Any

from dsv4kv.runs.schema import CacheSummary, Case, Environment, GpuFacts, RunRecord, Totals
from dsv4kv.units import format_bytes, format_duration
from dsv4kv.view.table import ABSENT, Command, Facts

_SHARING = {
    "model": "one block table for the whole model",
    "type": "a block table per layer type",
    "layer": "a block table per layer",
}


def header(record: RunRecord) -> Facts:
    """Facts that hold for every case of the run."""
    caches = [case.cache for case in record.cases if case.cache]
    rows = {
        "model": "; ".join(dict.fromkeys(map(_model, caches))) or ABSENT,
        "run": f"{record.run_id}, started {record.started_utc}",
        "config": f"{record.config_source}, seed {record.seed}",
        "trace": record.trace_source or ("placed contexts" if _places(record) else "synthetic"),
        "machine": _machine(record.environment, _threads(record)),
        "gpu": _gpu(record.environment.gpu),
        "software": _software(record.environment),
        "repeat": Command(record.reproduce),
    }
    return Facts({label: text for label, text in rows.items() if text})


def cache_facts(cache: CacheSummary) -> Facts:
    """Geometry of one case's cache."""
    formats = ", ".join(f"{place} {name}" for place, name in cache.formats.items())
    rows = {
        "cache": (
            f"{cache.num_blocks:,} blocks of {cache.block_tokens:,} tokens, {cache.num_slots:,} "
            f"slots, requests up to {cache.max_context_tokens:,} tokens"
        ),
        "tables": f"{_SHARING[cache.sharing]}; HCA state: {cache.state}",
        "formats": formats,
        "sizes": (
            f"{cache.bytes_per_token:,.1f} B per token of context, "
            f"{format_bytes(cache.bytes_per_request)} per request slot{_layers(cache)}"
        ),
    }
    return Facts(rows)


def totals_facts(totals: Totals, cache: CacheSummary | None) -> Facts:
    """What went through the cache. One run gives one observation of a total: no interval."""
    rows = {
        "requests": f"{totals.requests:,} served, {totals.peak_requests:,} at once at the peak",
        "tokens": f"{totals.input_tokens:,} in, {totals.output_tokens:,} out",
        "rate": _rate(totals) + _layers(cache),
        "steps": f"{totals.steps:,} in {format_duration(totals.wall_ns)}",
        "peak": _peak(totals, cache),
    }
    if totals.resumed_tokens:
        prompts = totals.input_tokens + totals.resumed_tokens
        share = totals.resumed_tokens / prompts * 100
        rows["resumed"] = (
            f"{totals.resumed_tokens:,} of {prompts:,} prompt tokens ({share:.1f} %) were cached"
        )
    if totals.drafted_tokens:
        rows["drafts"] = _drafts(totals)
    return Facts(rows)


def layers_text(cases: Iterable[Case]) -> str:
    """``of 3 of 43 layers``: what is next to numbers of a part of a model; else empty."""
    return _of_caches([case.cache for case in cases if case.cache])


def _layers(cache: CacheSummary | None) -> str:
    caches = _of_caches([cache]) if cache else ""
    return f", {caches}" if caches else ""


def _of_caches(caches: Iterable[CacheSummary]) -> str:
    held = {(sum(cache.layers.values()), cache.total_layers) for cache in caches}
    if all(count == whole for count, whole in held):
        return ""
    counts, wholes = ({each[n] for each in held} for n in (0, 1))
    return f"of {_span(counts)} of {_span(wholes)} layers"


def _span(counts: Collection[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low}" if low == high else f"{low} to {high}"


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


def _model(cache: CacheSummary) -> str:
    held = sum(cache.layers.values())
    layers = ", ".join(f"{count} {kind}" for kind, count in cache.layers.items())
    return f"{cache.model}, {held} of {cache.total_layers} layers held: {layers}"


def _threads(record: RunRecord) -> list[int]:
    found = (setting(case, "measure.threads") for case in record.cases)
    return sorted({count for count in found if isinstance(count, int)})


def _machine(environment: Environment, threads: list[int]) -> str:
    memory = environment.memory_bytes
    load = environment.load_1min
    thread_word = "thread" if threads == [1] else "threads"
    facts = [
        environment.cpu or "unknown CPU",
        f"{environment.cpu_count} CPUs" if environment.cpu_count else None,
        f"{' or '.join(map(str, threads))} torch {thread_word}" if threads else None,
        f"{format_bytes(memory)} memory" if memory else None,
        f"load {load:.1f}" if load is not None else None,
        f"governor {environment.governor}" if environment.governor else None,
    ]
    return ", ".join(fact for fact in facts if fact)


def _gpu(gpu: GpuFacts | None) -> str:
    if gpu is None:
        return ""
    return (
        f"{gpu.name}, {gpu.multiprocessors} multiprocessors of capability {gpu.capability}, "
        f"{format_bytes(gpu.memory_bytes)} memory, {format_bytes(gpu.l2_bytes)} L2"
    )


def _software(environment: Environment) -> str:
    versions = [f"{name} {v}" for name, v in environment.versions.items() if v]
    dirty = " (dirty)" if environment.git_dirty else ""
    source = [f"git {environment.git_sha[:12]}{dirty}"] if environment.git_sha else []
    return ", ".join([*versions, f"Python {environment.python}", *source, environment.platform])


def _rate(totals: Totals) -> str:
    every = tokens_per_second(totals)
    if every is None:
        return ABSENT
    output = totals.output_tokens / totals.wall_ns * 1e9
    return f"{every:,.0f} tokens/s in and out, {output:,.0f} tokens/s out (one run: no interval)"


def _peak(totals: Totals, cache: CacheSummary | None) -> str:
    total = cache.total_blocks if cache else 0
    of_total = f" of {total:,} ({totals.peak_blocks / total * 100:.1f} %)" if total else ""
    waste = format_bytes(totals.peak_rounding_bytes)
    return f"{totals.peak_blocks:,}{of_total} blocks held, {waste} wasted by rounding up to pages"


def _drafts(totals: Totals) -> str:
    kept = totals.drafted_tokens - totals.rolled_back_tokens
    return (
        f"{totals.drafted_tokens:,} proposed, {totals.rolled_back_tokens:,} rolled back, "
        f"{kept / totals.drafted_tokens * 100:.1f} % accepted"
    )


def _places(record: RunRecord) -> bool:
    """Whether contexts were placed, not served."""
    return any(setting(case, "workload.context") for case in record.cases)
