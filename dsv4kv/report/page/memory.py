"""The sections of memory: where it is, and what was held of it over time."""

from collections.abc import Iterator, Sequence

from dsv4kv.report.facts import cache_facts, totals_facts
from dsv4kv.report.memory_record import MemorySeries
from dsv4kv.report.memory_series import held_table, pool_sizes, stride_text
from dsv4kv.report.page.charts.memory import held_chart, pools_chart
from dsv4kv.report.page.html_table import Cell, Column, HtmlTable, convert_facts, convert_table
from dsv4kv.report.page.section import Section
from dsv4kv.report.record import Case
from dsv4kv.report.tables import cache_table
from dsv4kv.units import format_bytes

_READ_POOLS = "Bars are allocated bytes of all layers, dark ticks what the plan said."
_READ_HELD = (
    "Bytes in blocks and slots that were held, and the share of each that was; what is left to "
    "100 % was free. Times leave checks out."
)
_MOST_MOMENTS = 12
_NS_TO_S = 1e-9


def memory_sections(case: Case) -> Iterator[Section]:
    """Nothing for a case without a cache, or one that ended before its first step."""
    if case.cache:
        yield _pools_section(case)
    if case.memory and case.memory.at_ns:
        yield _held_section(case.memory)


def moments_table(seconds: Sequence[float], columns: dict[str, list[str]]) -> HtmlTable:
    """A chart's numbers at some of its moments, equally far apart; the last is among them."""
    count = len(seconds)
    step = max(1, -(-(count - 1) // (_MOST_MOMENTS - 1)))
    chosen = sorted({count - 1, *range(0, count, step)})
    rows = [
        [Cell(f"{seconds[n]:,.3f}"), *(Cell(cells[n]) for cells in columns.values())]
        for n in chosen
    ]
    headers = [Column(name, True, False) for name in ("s", *columns)]
    told = "" if len(chosen) == count else f"{len(chosen)} of {count:,} points"
    return HtmlTable("moments-table", "Some moments", told, headers, rows, 1, frozenset())


def _pools_section(case: Case) -> Section:
    assert case.cache
    facts = convert_facts(cache_facts(case.cache))
    if case.totals:
        facts |= convert_facts(totals_facts(case.totals, case.cache))
    charts = [pools_chart(case.cache)] if case.cache.pools else []
    tables = [convert_table(cache_table(case.cache), "cache-table", 2)] if case.cache.pools else []
    note = _READ_POOLS if case.cache.pools else ""
    return Section("memory", "Where the memory is", note, facts, charts, tables, beside=True)


def _held_section(series: MemorySeries) -> Section:
    seconds = [at * _NS_TO_S for at in series.at_ns]
    columns = {each.name: [f"{count:,}" for count in each.held] for each in series.units}
    for name, sizes in pool_sizes(series).items():
        header = f"{name}, bytes" if name in columns else name
        columns[header] = [format_bytes(size) for size in sizes]
    return Section(
        "held",
        "What was held over time",
        f"{_READ_HELD} There is {stride_text(series)}.",
        charts=[held_chart(series)],
        tables=[convert_table(held_table(series), "held-table"), moments_table(seconds, columns)],
        beside=True,
    )
