"""The sections of a replay: what was reused, how long it took, what was held, by which model."""

from collections.abc import Iterator

from dsv4kv.report.facts import cache_facts
from dsv4kv.report.page.charts.latency import Samples, distribution_chart
from dsv4kv.report.page.charts.replay import held_sizes, time_chart
from dsv4kv.report.page.html_table import convert_facts, convert_table
from dsv4kv.report.page.memory import moments_table
from dsv4kv.report.page.section import Section
from dsv4kv.report.record import Case
from dsv4kv.report.replay_record import ReplayResult
from dsv4kv.report.replay_tables import constants_table, memory_table, reuse_table, times_table
from dsv4kv.report.replay_view import replay_facts
from dsv4kv.units import format_bytes

_READ_TIMES = (
    "Times are those of the model of a step below, not of the machine that replayed. The line is "
    "the median in its 95 % interval over requests. No request is left out."
)
_READ_HELD = (
    "Which blocks were found, evicted and held is exact; when that was, the model of a step says."
)
_NS_TO_S = 1e-9


def replay_sections(case: Case, result: ReplayResult) -> Iterator[Section]:
    """Everything that one replay has to tell, in the order of the page."""
    facts = convert_facts(cache_facts(case.cache)) if case.cache else {}
    if case.totals:
        facts |= convert_facts(replay_facts(result, case.totals))
    reuse = convert_table(reuse_table(result.reuse), "reuse-table")
    yield Section("reuse", "What was reused", "", facts, tables=[reuse])
    rows = [Samples(each.name, each.samples_ns) for each in case.latencies if each.samples_ns]
    if rows:
        times = convert_table(times_table(case.latencies), "times-table")
        chart = distribution_chart(rows)
        yield Section(
            "latency", "How long it took", _READ_TIMES, {}, [chart], [times], beside=True
        )
    if result.series.at_ns:
        yield _held_section(result)
    constants = convert_table(constants_table(result), "constants-table")
    yield Section("model", "What the times rest on", tables=[constants])


def _held_section(result: ReplayResult) -> Section:
    series = result.series
    columns = {
        name: [f"{count:,}" for count in getattr(series, name)]
        for name in ("running", "waiting", "paused")
    }
    for name, sizes in held_sizes(result).items():
        columns[name] = [format_bytes(size) for size in sizes]
    seconds = [at * _NS_TO_S for at in series.at_ns]
    tables = [
        convert_table(memory_table(result), "memory-table"),
        moments_table(seconds, columns),
    ]
    chart = time_chart(result)
    return Section("held", "What was held over time", _READ_HELD, {}, [chart], tables, beside=True)
