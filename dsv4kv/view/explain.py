"""A start-up log, a benchmark's results and a calibration: what their numbers mean."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4kv.budget.gpus import gpu_names
from dsv4kv.budget.inputs import DEFAULT_GPU
from dsv4kv.units import counted, format_bytes
from dsv4kv.view import table as tb

if TYPE_CHECKING:
    from dsv4kv.engines.explain import Change, Explanation
    from dsv4kv.replay.clock.fit import Compared, Estimate, Fit
    from dsv4kv.replay.clock.measured import Measured

_MAX_CHANGES = 3
_MAX_CANDIDATES = 5


def explanation_page(log: "Explanation", layouts: Sequence[str] = ()) -> tb.Page:
    """What the printed number means, how many requests fit, and what would change it.

    ``layouts`` are the words of a command that compares this layout with others.
    """
    fits: tb.Columns = [
        ("context", lambda fit: fit.context_tokens),
        ("requests", lambda fit: fit.requests),
        ("tokens", lambda fit: fit.tokens),
        ("requests, one in prefill", lambda fit: min(fit.requests, fit.prefilling)),
    ]
    differs = any(fit.prefilling < fit.requests for fit in log.fits)
    fits = fits if differs else fits[:-1]
    note = "as far as memory goes" if log.exact else "as the log counts"
    if limits := [fit.requests for fit in log.fits if fit.held > fit.requests]:
        note = f"no more than {max(limits):,} run"
    derived = "" if log.seen_in_logs else " (rules derived from source)"
    answer: list[tb.Part] = [_head(log), *[f"{log.title}{derived}"] * log.exact, *log.meaning]
    if log.fits:
        answer += ["", tb.Table("What fits in steady decode", fits, log.fits, note=note)]
    gains = [change for change in log.changes if change.gains]
    if gains:
        answer += ["", _changes(log, gains).first(_MAX_CHANGES)]
    if layouts:
        words = "To try other layouts, with budget's guess of the memory outside the cache:"
        answer += ["", tb.dim(words), tb.Command.of(*layouts)]
    return tb.Page(f"{log.source}: {log.title}", answer, list(_explanation_sections(log, gains)))


def _explanation_sections(log: "Explanation", gains: "Sequence[Change]") -> Iterator[tb.Section]:
    statements: tb.Columns = [
        ("what", lambda each: each.what),
        ("value", lambda each: each.value),
        ("how it is known", lambda each: each.how),
    ]
    configuration: list[tb.Part] = [tb.Table("Configuration", statements, log.statements)]
    if log.candidates:
        configuration.append("The log would read the same with:")
        configuration += [f"  {title}" for title in log.candidates[:_MAX_CANDIDATES]]
        if (more := len(log.candidates) - _MAX_CANDIDATES) > 0:
            configuration.append(f"  and {more} more")
    yield tb.Section("Configuration", configuration)
    in_flight = f"reserve for {log.in_flight_tokens:,} tokens in flight"
    costs = [
        ("fixed: windows and states in steady decode", format_bytes(log.fixed_bytes)),
        (in_flight, format_bytes(log.in_flight_bytes)),
        ("per token of context", f"{log.bytes_per_token:,.2f} B"),
        ("padding in it", f"{log.padding_bytes_per_token:,.2f} B"),
        (f"one {log.unit}", f"{log.unit_bytes:,.2f} B"),
        (f"all {log.units:,} {log.unit}s", format_bytes(log.cache_bytes)),
    ]
    sizes = [tb.Table("One request", ["cost", "bytes"], costs)] if log.exact else []
    if log.measured:
        measured = log.measured | ({"KV cache": log.cache_bytes / 2**30} if log.exact else {})
        rows = [(what, format_bytes(int(gib * 2**30))) for what, gib in measured.items()]
        note = "replaces budget's assumptions: --reserve is all but weights and KV"
        title, heads = "Memory measured by the engine", ["one GPU", "size"]
        sizes.append(tb.Table(title, heads, rows, note=note))
    yield tb.Section("Bytes", sizes)
    if len(log.changes) > min(len(gains), _MAX_CHANGES):
        yield tb.Section("All changes", [_changes(log, log.changes, "All changes")])
    if len(log.ranks) > 1:
        ranks: tb.Columns = [
            ("rank", lambda rank: rank.rank or None),
            ("tokens", lambda r: tb.Number("refused" if r.tokens is None else f"{r.tokens:,}")),
            ("memory", lambda r: f"{r.available_gib:.2f} GiB" if r.available_gib else ""),
        ]
        title = "Ranks, the smallest first: it is the one explained"
        yield tb.Section("Ranks", [tb.Table(title, ranks, log.ranks)])


def _head(log: "Explanation") -> tb.Finding:
    ranks = log.replicas
    fits = ""
    if log.fits:
        most = log.fits[-1]
        held = counted(most.requests, "request")
        limited = most.held > most.requests
        doing = " run" if limited else " in steady decode"
        fits = f"{held} of {most.context_tokens:,} tokens{doing}"
        if ranks > 1:
            fits += f" on each of {ranks} ranks, {most.requests * ranks:,} in total"
        if most.prefilling < most.requests:
            whose = "each has one" if ranks > 1 else "one is"
            fits += f", {most.prefilling * ranks:,} while {whose} in prefill"
        if limited:
            fits = f"; {fits}: memory would hold {most.held:,}{' on each' * (ranks > 1)}"
        else:
            fits = f"; {'memory' if log.exact else 'it'} holds {fits}"
    by = log.engine if log.exact else log.engine.partition(":")[0]
    if log.refused:
        return tb.bad(f"{log.source}: {by} refused to start{fits}.")
    printed = f"{log.source}: {by} printed {log.printed_tokens or 0:,} tokens"
    if log.printed_tokens is None:
        printed = f"{log.source}: {by} printed no number of tokens"
    return tb.Finding("good" if log.exact else "warning", f"{printed}{fits}.")


def _changes(
    log: "Explanation", changes: "Sequence[Change]", title: str = "Biggest levers"
) -> tb.Table:
    """Changes with the tokens that are printed, of a limit of requests those that run."""

    def value(change: "Change") -> tb.Number:
        count = change.requests
        return tb.Number(counted(count or change.printed_tokens, "request" if count else "token"))

    def gain(change: "Change") -> tb.Number:
        more = change.requests - log.fits[-1].requests if change.requests else change.gain_tokens
        return tb.Number(f"{more:+,}")

    columns: tb.Columns = [
        ("change", lambda change: change.what),
        ("new value", value),
        ("difference", gain),
    ]
    limited = any(fit.held > fit.requests for fit in log.fits[-1:])
    binds = "; the request limit binds: more tokens alone run no more" * limited
    note = f"each alone, in the log's KV memory{binds}"
    return tb.Table(title, columns, changes, note=note)


def results_page(runs: "Sequence[Measured]", path: Path) -> tb.Page:
    """Runs of a benchmark: their load, and the median of each time."""

    def median(name: str) -> tb.Read:
        return lambda run: tb.ms(
            {each[:2]: each[2] * 1e9 for each in run.latencies}.get((name, 50.0))
        )

    columns: tb.Columns = [
        ("run", lambda run: run.name),
        ("requests", lambda run: len(run.requests)),
        ("concurrency", lambda run: run.concurrency),
        ("TTFT p50 ms", median("ttft")),
        ("TPOT p50 ms", median("tpot")),
        ("duration s", lambda run: run.duration_s),
    ]
    engines = ", ".join(dict.fromkeys(run.engine for run in runs))
    assumed = ", ".join(dict.fromkeys(f"assumed: {run.assumed}" for run in runs if run.assumed))
    table = tb.Table(f"Benchmark of {engines}", columns, runs, note=assumed)
    gpu = next((run.gpu for run in runs if run.gpu in gpu_names()), DEFAULT_GPU)
    again = tb.Command.of("dsv4kv", "replay", "calibrate", path, "--gpu", gpu, "--name", "mine")
    return tb.Page("Benchmark", [table, "", again])


def results_values(runs: "Sequence[Measured]") -> list[dict[str, Any]]:
    """Runs of a benchmark for programs, without their requests."""
    return [{**asdict(run), "requests": len(run.requests)} for run in runs]


# ---- replay calibrate

_CLIENT = ("client, HTTP and tokenizer", "ms")
_QUANTITIES = {"ttft": "TTFT", "tpot": "TPOT", "throughput": "whole run"}


def report_fit(fit: "Fit") -> Iterator[tb.Part]:
    """How far predictions are off, then coefficients, then every measurement."""
    from dsv4kv.replay.clock.steps import CONSTANTS
    from dsv4kv.runs.statistics import Estimate as Interval

    def fitted(each: "Estimate") -> tb.Number | Interval:
        if not each.determined:
            return tb.Number(tb.number(each.value), "± ?")
        return Interval(each.value, 1.96 * each.value * each.error)

    def name(each: "Compared") -> str:
        mean = math.isnan(each.share) and each.quantity != "throughput"
        return _QUANTITIES[each.quantity] + (" mean" if mean else "")

    def number(each: "Compared", value_s: float) -> str:
        return tb.number(value_s * (1.0 if each.quantity == "throughput" else 1e3))

    def others(each: "Compared") -> tb.Number | None:
        left_out_s = each.left_out_s
        off = None if left_out_s is None else (left_out_s / each.measured_s - 1) * 100
        return None if off is None else tb.Number(f"{off:+.0f} %")

    yield from (tb.strong(line) for line in _answers(fit))
    coefficients: tb.Columns = [
        ("of", lambda each: CONSTANTS.get(each.name, _CLIENT)[0]),
        ("fitted", fitted),
        ("unit", lambda each: CONSTANTS.get(each.name, _CLIENT)[1]),
        ("before", lambda each: tb.number(each.before)),
        ("known", lambda each: tb.mark("good" if each.determined else "missing")),
    ]
    note = "± is the 95 % interval of these runs; – these runs do not determine it"
    yield from ("", tb.Table("Coefficients of the clock", coefficients, fit.estimates, note=note))
    compared: tb.Columns = [
        ("run", lambda each: each.run),
        ("of", name),
        ("measured", lambda each: number(each, each.measured_s)),
        ("fitted", lambda each: number(each, each.fitted_s)),
        ("cross-validated", others),
    ]
    rows = [each for each in fit.compared if math.isnan(each.share) or each.share == 50.0]
    note = "; ".join(["s for whole runs, else ms; medians where there are any", *fit.assumed])
    yield from ("", tb.Table("Predicted and measured", compared, rows, note=note, keys=2))


def _answers(fit: "Fit") -> Iterator[str]:
    from dsv4kv.replay.clock.fit import FEWEST_TO_LEAVE_OUT
    from dsv4kv.replay.clock.steps import CONSTANTS

    errors = {name: fit.median_error(name) for name in _QUANTITIES}
    known = [
        f"{_QUANTITIES[name]} {f'{off:.0%}' if off >= 0.01 else 'under 1 %'}"
        for name, off in errors.items()
        if off is not None
    ]
    if known:
        yield f"Median error on held-out runs: {', '.join(known)}."
    else:
        runs = counted(len({each.run for each in fit.compared}), "run")
        yield (
            f"{runs} cannot be cross-validated ({FEWEST_TO_LEAVE_OUT} or more are needed): the "
            "clock keeps its previous error."
        )
    yield from fit.doubts
    unknown = [each.name for each in fit.estimates if not each.determined]
    if unknown := [CONSTANTS.get(name, _CLIENT)[0] for name in unknown]:
        yield (
            f"Not determined by these runs: {', '.join(unknown)}. Runs at concurrency 1, at a "
            "high concurrency, and with long prompts determine them."
        )
