"""``dsv4kv budget --explain``: a start-up log, or what lies between two."""

import json as json_module
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4kv.view.console import open_console, print_document

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from dsv4kv.engines.logs.explain import Explanation
    from dsv4kv.engines.logs.waterfall import Waterfall


_MOST_CHANGES = 6
_MOST_CANDIDATES = 5


def explain(paths: Sequence[Path], json: bool = False) -> bool:
    """Explain one log, or the difference between two; returns whether all of them started.

    Raises:
        ConfigError: More than two logs, or one that cannot be explained.
    """
    from dsv4kv.errors import ConfigError

    if not 1 <= len(paths) <= 2:
        raise ConfigError(f"{len(paths)} logs: give one to explain, or two to compare.")
    if len(paths) == 1:
        from dsv4kv.engines.logs.explain import explain_log

        explanation = explain_log(paths[0])
        document, parts = _document(explanation), _tell(explanation)
        told = [explanation]
    else:
        from dsv4kv.engines.logs.waterfall import compare_logs

        waterfall = compare_logs(*paths)
        document, parts = _document(waterfall), _tell_waterfall(waterfall)
        told = [waterfall.before, waterfall.after]
    if json:
        print_document(json_module.dumps(document, ensure_ascii=False, indent=2))
    else:
        open_console().print(*parts, sep="\n")
    return all(each.printed_tokens is not None for each in told)


def _document(record: Any) -> dict[str, Any]:
    from dataclasses import asdict

    document = asdict(record)
    for name in ("start_tokens", "end_tokens"):
        if hasattr(record, name):
            document[name] = getattr(record, name)
    return document


def _tell(explanation: "Explanation") -> list["RenderableType"]:
    """From the number to what it means, what fits, and what would change it."""
    parts: list[RenderableType] = [_head(explanation), *explanation.meaning, ""]
    if len(explanation.ranks) > 1:
        parts.append(_ranks(explanation))
    parts += [_statements(explanation), _costs(explanation), _fits(explanation)]
    if explanation.changes:
        parts.append(_changes(explanation))
    if explanation.candidates:
        parts.append(_candidates(explanation))
    return parts


def _head(explanation: "Explanation") -> str:
    told = explanation.printed_tokens
    number = "refused to start" if told is None else f"{told:,} tokens"
    proof = "" if explanation.seen_in_logs else " (rules derived from source, not seen in a log)"
    return f"{explanation.source}: {number}\n{explanation.title}{proof}\n"


def _ranks(explanation: "Explanation") -> "Table":
    table = _table("Ranks, the smallest first: it is the one explained", "rank")
    table.add_column("tokens", justify="right")
    table.add_column("memory", justify="right")
    for rank in explanation.ranks:
        tokens = "refused" if rank.tokens is None else f"{rank.tokens:,}"
        memory = "" if rank.available_gib is None else f"{rank.available_gib:.2f} GiB"
        table.add_row(rank.rank or "–", tokens, memory)
    return table


def _statements(explanation: "Explanation") -> "Table":
    table = _table("Configuration", "what")
    table.add_column("value")
    table.add_column("how it is known")
    for statement in explanation.statements:
        table.add_row(statement.what, statement.value, statement.how)
    return table


def _costs(explanation: "Explanation") -> "Table":
    from dsv4kv.units import format_bytes

    table = _table("One request", "cost")
    table.add_column("bytes", justify="right")
    rows = (
        ("fixed: windows and states in steady decode", format_bytes(explanation.fixed_bytes)),
        (
            f"reserve for {explanation.in_flight_tokens:,} tokens in flight",
            format_bytes(explanation.in_flight_bytes),
        ),
        ("marginal, for every token of context", f"{explanation.bytes_per_token:,.2f} B"),
        ("of which padding", f"{explanation.padding_bytes_per_token:,.2f} B"),
        (f"one {explanation.unit}", f"{explanation.unit_bytes:,.2f} B"),
        (f"all {explanation.units:,} {explanation.unit}s", format_bytes(explanation.cache_bytes)),
    )
    for row in rows:
        table.add_row(*row)
    return table


def _fits(explanation: "Explanation") -> "Table":
    table = _table("What really fits in steady decode, as far as memory goes", "context")
    table.add_column("requests", justify="right")
    table.add_column("tokens", justify="right")
    for fit in explanation.fits:
        table.add_row(f"{fit.context_tokens:,}", f"{fit.requests:,}", f"{fit.tokens:,}")
    return table


def _changes(explanation: "Explanation") -> "Table":
    table = _table("What would change the number most", "change")
    table.add_column("prints", justify="right")
    table.add_column("gain", justify="right")
    for change in explanation.changes[:_MOST_CHANGES]:
        table.add_row(change.what, f"{change.printed_tokens:,}", f"{change.gain_tokens:+,}")
    return table


def _candidates(explanation: "Explanation") -> str:
    shown = explanation.candidates[:_MOST_CANDIDATES]
    more = len(explanation.candidates) - len(shown)
    lines = ["The log would read the same with:", *(f"  {title}" for title in shown)]
    return "\n".join([*lines, *([f"  and {more} more"] if more else [])])


def _tell_waterfall(waterfall: "Waterfall") -> list["RenderableType"]:
    table = _table("From one number to the other", "step")
    for name in ("gain", "tokens", "bytes of a unit", "units", "units per request"):
        table.add_column(name, justify="right")
    table.add_row(waterfall.before.source, "", f"{waterfall.start_tokens:,}")
    for step in waterfall.steps:
        table.add_row(
            step.what,
            f"{step.gain_tokens:+,}",
            f"{step.tokens:,}",
            f"{step.unit_bytes:,.2f}",
            f"{step.units:,}",
            f"{step.units_per_request:,.0f}",
        )
    difference = waterfall.end_tokens - waterfall.start_tokens
    table.add_row(waterfall.after.source, f"{difference:+,}", f"{waterfall.end_tokens:,}")
    titles = [f"{told.source}: {told.title}" for told in (waterfall.before, waterfall.after)]
    return [*titles, "", table]


def _table(title: str, first: str) -> "Table":
    from dsv4kv.view.cells import new_table

    table = new_table(title)
    table.add_column(first)
    return table
