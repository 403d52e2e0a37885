"""What a trace asks for."""

from collections.abc import Iterator

from dsv4kv.traces import TraceSummary
from dsv4kv.view.table import Part, Table, Text, names, numbers

_STORES = (
    "stores-only: what a server stored, not what was asked of it; prompts cached as a whole are "
    "missing, so there is no hit rate"
)


def describe_trace(summary: TraceSummary, *, stores: bool = False) -> Iterator[Part]:
    """Requests, what their prompts share, and lengths; of what a server stored no hit rate."""
    yield f"{summary.requests:,} requests over {summary.duration_s:,.1f} s"
    if summary.hit_share is not None:
        yield (
            f"{summary.block_references:,} block references (prefix hashes) to "
            f"{summary.distinct_blocks:,} distinct blocks of {summary.hash_block_tokens:,} tokens"
        )
    yield ""
    yield _lengths_table(summary)
    yield from ("", Text(_STORES if stores else _answer(summary), "strong"))


def _answer(summary: TraceSummary) -> str:
    """What there is to reuse."""
    if summary.hit_share is None:
        return "no prefix hashes: what its prompts share is not known"
    return f"{summary.hit_share:.2%} of references are prefix hits in a cache without bound"


def _lengths_table(summary: TraceSummary) -> Table:
    lengths = summary.input_tokens, summary.output_tokens
    rows: dict[str, list[float]] = {"total": [each.total for each in lengths]}
    rows["mean"] = [each.total / summary.requests for each in lengths]
    rows |= {
        label: [getattr(each, label) for each in lengths] for label in ("p50", "p90", "p99", "max")
    }
    return Table(
        "Lengths",
        [*names("tokens"), *numbers("prompt", "output")],
        [(label, *(f"{value:,.0f}" for value in values)) for label, values in rows.items()],
    )
