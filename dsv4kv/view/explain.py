"""``dsv4kv budget --explain``: a start-up log, or what is between two."""

import json as json_module
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4kv.view.console import print_document
from dsv4kv.view.table import ABSENT, Part, Table, names, numbers, prose

if TYPE_CHECKING:
    from dsv4kv.engines.logs.explain import Explanation, Waterfall


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
        document, parts = _document(explanation), _report_explanation(explanation)
        explained = [explanation]
    else:
        from dsv4kv.engines.logs.explain import compare_logs

        waterfall = compare_logs(*paths)
        document, parts = _document(waterfall), _report_waterfall(waterfall)
        explained = [waterfall.before, waterfall.after]
    if json:
        print_document(json_module.dumps(document, ensure_ascii=False, indent=2))
    else:
        from dsv4kv.view.terminal import show

        show(parts)
    return all(each.printed_tokens is not None for each in explained)


def _document(record: Any) -> dict[str, Any]:
    from dataclasses import asdict

    document = asdict(record)
    for name in ("start_tokens", "end_tokens"):
        if hasattr(record, name):
            document[name] = getattr(record, name)
    return document


def _report_explanation(explanation: "Explanation") -> list[Part]:
    """From the number to what it means, what fits, and what would change it."""
    tables: list[Part] = [_ranks(explanation)] if len(explanation.ranks) > 1 else []
    tables += [_statements(explanation), _costs(explanation), _fits(explanation)]
    tables += [_measured(explanation)] if explanation.measured else []
    tables += [_changes(explanation)] if explanation.changes else []
    tables += [_candidates(explanation)] if explanation.candidates else []
    apart = [part for table in tables for part in ("", table)]
    return [_head(explanation), *explanation.meaning, *apart]


def _head(explanation: "Explanation") -> str:
    printed = explanation.printed_tokens
    number = "refused to start" if printed is None else f"{printed:,} tokens"
    proof = "" if explanation.seen_in_logs else " (rules derived from source, not seen in a log)"
    return f"{explanation.source}: {number}\n{explanation.title}{proof}\n"


def _ranks(explanation: "Explanation") -> Table:
    return Table(
        "Ranks, the smallest first: it is the one explained",
        [*names("rank"), *numbers("tokens", "memory")],
        [
            (
                rank.rank or ABSENT,
                "refused" if rank.tokens is None else f"{rank.tokens:,}",
                "" if rank.available_gib is None else f"{rank.available_gib:.2f} GiB",
            )
            for rank in explanation.ranks
        ],
    )


def _statements(explanation: "Explanation") -> Table:
    return Table(
        "Configuration",
        [*names("what"), *prose("value", "how it is known")],
        [(each.what, each.value, each.how) for each in explanation.statements],
    )


def _costs(explanation: "Explanation") -> Table:
    from dsv4kv.units import format_bytes

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
    return Table("One request", [*prose("cost"), *numbers("bytes")], rows)


def _fits(explanation: "Explanation") -> Table:
    return Table(
        "What really fits in steady decode, as far as memory goes",
        numbers("context", "requests", "tokens"),
        [
            (f"{fit.context_tokens:,}", f"{fit.requests:,}", f"{fit.tokens:,}")
            for fit in explanation.fits
        ],
    )


def _measured(explanation: "Explanation") -> Table:
    from dsv4kv.units import format_bytes

    measured = explanation.measured | {"KV cache": explanation.cache_bytes / 2**30}
    return Table(
        "Memory that the log says was measured",
        [*names("one GPU"), *numbers("size")],
        [(what, format_bytes(int(gib * 2**30))) for what, gib in measured.items()],
        note="in place of what budget assumes: --reserve takes what is neither weights nor KV",
    )


def _changes(explanation: "Explanation") -> Table:
    return Table(
        "What would change the number most",
        [*prose("change"), *numbers("prints", "gain")],
        [
            (change.what, f"{change.printed_tokens:,}", f"{change.gain_tokens:+,}")
            for change in explanation.changes[:_MOST_CHANGES]
        ],
    )


def _candidates(explanation: "Explanation") -> str:
    shown = explanation.candidates[:_MOST_CANDIDATES]
    more = len(explanation.candidates) - len(shown)
    lines = ["The log would read the same with:", *(f"  {title}" for title in shown)]
    return "\n".join([*lines, *([f"  and {more} more"] if more else [])])


def _report_waterfall(waterfall: "Waterfall") -> list[Part]:
    rows = [(waterfall.before.source, "", f"{waterfall.start_tokens:,}", "", "", "")]
    rows += [
        (
            step.what,
            f"{step.gain_tokens:+,}",
            f"{step.tokens:,}",
            f"{step.unit_bytes:,.2f}",
            f"{step.units:,}",
            f"{step.units_per_request:,.0f}",
        )
        for step in waterfall.steps
    ]
    difference = waterfall.end_tokens - waterfall.start_tokens
    ends = (f"{difference:+,}", f"{waterfall.end_tokens:,}", "", "", "")
    table = Table(
        "From one number to the other",
        [
            *prose("step"),
            *numbers("gain", "tokens"),
            *numbers("bytes of a unit", "units", "units per request", minor=True),
        ],
        [*rows, (waterfall.after.source, *ends)],
    )
    titles = [f"{log.source}: {log.title}" for log in (waterfall.before, waterfall.after)]
    return [*titles, "", table]
