"""A sweep of ``dsv4kv budget`` on a terminal: a row for every combination."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from dsv4kv.report.cells import ABSENT, new_table
from dsv4kv.sizing.sweep import Row
from dsv4kv.units import format_bytes

_HEADERS = (
    "GPUs",
    "requests\nat once",
    "longest\ncontext",
    "cache of a\nrequest",
    "B per\ntoken",
    "fixed per\nrequest",
    "weights\nper GPU",
    "free\nper GPU",
)


def view_sweep(rows: Sequence[Row]) -> Iterator[RenderableType]:
    """The table, and a sentence for every combination without an answer."""
    table = new_table("Sweep", "sizes are binary; of a request: stored once, without padding")
    for name in rows[0].point:
        table.add_column(name, no_wrap=True)
    for header in _HEADERS:
        table.add_column(header, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row.point.values(), *_cells(row))
    yield table
    problems = {row.problem: _point(row) for row in reversed(rows) if row.problem}
    for problem, point in problems.items():
        yield Text(f"{point}: {problem}", "yellow")


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
