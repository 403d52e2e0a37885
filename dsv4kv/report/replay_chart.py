"""The charts of a replay as a file: memory and requests over time, or a page around them."""

from dsv4kv.report.axes import axis_text
from dsv4kv.report.page.build import build_page
from dsv4kv.report.page.charts.latency import Samples, distribution_chart
from dsv4kv.report.page.charts.replay import time_chart
from dsv4kv.report.page.figure import Chart
from dsv4kv.report.page.svg import standalone_svg
from dsv4kv.report.page.write import render_page
from dsv4kv.report.record import Case, RunRecord


def draw_replay(record: RunRecord, suffix: str) -> str:
    """The charts of a replay as ``.svg``, or a page around them as ``.html``.

    One case shows memory and requests over time; a sweep shows how long requests waited for their
    first token in every case.
    """
    if suffix == ".html":
        return render_page(build_page([record]))
    cases = [case for case in record.cases if case.replay]
    if len(cases) == 1 and cases[0].replay is not None:
        return standalone_svg(time_chart(cases[0].replay))
    return standalone_svg(_first_token_chart(cases))


def _first_token_chart(cases: list[Case]) -> Chart:
    rows = [
        Samples(axis_text(case), latency.samples_ns)
        for case in cases
        for latency in case.latencies
        if latency.name == "ttft"
    ]
    return distribution_chart(rows, shared=True)
