"""A sweep of ``dsv4kv budget``: a row for every combination, and the most and the least."""

from collections.abc import Callable, Iterator, Sequence

from dsv4kv.sizing.sweep import Row
from dsv4kv.units import format_bytes
from dsv4kv.view.table import ABSENT, Finding, Part, Table, Text, names, numbers

_REQUEST = ("cache of a request", "B per token")
_LAYOUT = ("fixed per request", "weights per GPU", "free per GPU")


def view_sweep(rows: Sequence[Row]) -> Iterator[Part]:
    """The table, a sentence for every combination without an answer, and the answer."""
    yield sweep_table(rows)
    problems = {row.problem: _point(row) for row in reversed(rows) if row.problem}
    for problem, point in problems.items():
        yield Finding("warning", f"{point}: {problem}")
    yield from ("", Text(f"{sweep_answer(rows)}.", "strong"))


CACHE, GPUS = "cache of one request, GiB", "GPUs needed"


def choose_values(rows: Sequence[Row]) -> tuple[str, Callable[[Row], float]]:
    """Requests that fit, or for given ones the GPUs, the longest context or the cache."""
    if any(row.found is None for row in rows):
        return CACHE, lambda row: row.cached_bytes / 2**30
    first = rows[0].inputs
    if first.concurrency is not None and first.gpus is None:
        return GPUS, lambda row: row.found.scenario.layout.gpus if row.found else 0
    if first.concurrency is not None and first.context is not None:
        return "cache on one GPU, GiB", lambda row: row.found.use.cache / 2**30 if row.found else 0
    if first.concurrency is not None:
        return "longest context, tokens", lambda row: row.found.max_context if row.found else 0
    return "requests at once", lambda row: row.found.max_concurrency if row.found else 0


def sweep_answer(rows: Sequence[Row]) -> str:
    """``Requests at once: 4,910 at context=4K, gpu=b200; 26 at context=1M, gpu=h200``."""
    label, value_of = choose_values(rows)
    most, least = max(rows, key=value_of), min(rows, key=value_of)
    figures = [f"{_figure(value_of(row))} at {_point(row)}" for row in (most, least)]
    if value_of(most) == value_of(least):
        figures = [f"{_figure(value_of(most))} at every combination"]
    return f"{label[0].upper()}{label[1:]}: {'; '.join(figures)}"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.3g}"


def sweep_table(rows: Sequence[Row]) -> Table:
    """A row for every combination."""
    axes = list(rows[0].point)
    return Table(
        "Sweep",
        [
            *names(*axes),
            *numbers("GPUs", "requests at once", "longest context"),
            *numbers(*_REQUEST),
            *numbers(*_LAYOUT, minor=True),
        ],
        [(*row.point.values(), *_cells(row)) for row in rows],
        note="sizes are binary; of a request: stored once, without padding",
        keys=len(axes),
    )


def _point(row: Row) -> str:
    return ", ".join(f"{name}={value}" for name, value in row.point.items())


def _cells(row: Row) -> list[str]:
    request = [format_bytes(row.cached_bytes), f"{row.token_bytes:,.2f}"]
    if (found := row.found) is None:
        return [ABSENT] * 3 + request + [ABSENT] * 3
    layout, use = found.scenario.layout, found.use
    return [
        f"{layout.gpus:,} ({layout.label})",
        f"{found.max_concurrency:,}",
        f"{found.max_context:,}",
        *request,
        format_bytes(sum(cost.fixed_bytes for cost in found.costs)),
        format_bytes(use.weights),
        format_bytes(use.free),
    ]
