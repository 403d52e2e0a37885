from dsv4kv.report.page.build import Page
from dsv4kv.report.page.html_table import HtmlTable
from dsv4kv.report.page.section import Section
from tests.report.page.markup import parse
from tests.report.page.pages import html_of, page_of
from tests.report.records import make_sweep_cases


def sections(name: str) -> dict[str, Section]:
    page: Page = page_of(name)
    return {section.key: section for article in page.articles for section in article.sections}


def charts(name: str) -> list[str]:
    return [chart.key for chart in page_of(name).charts()]


def test_a_page_has_the_charts_that_the_run_has_data_for() -> None:
    assert charts("one case") == ["latencies", "order", "rates", "roofline", "pools", "held"]
    assert charts("a GPU") == [
        "latencies",
        "order",
        "rates",
        "roofline",
        "pools",
        "telemetry",
        "kernels",
    ]
    assert charts("launches")[0] == "launches"
    assert charts("bookkeeping") == ["latencies", "order", "pools"]
    assert charts("a failure") == charts("no case") == []


def test_a_sweep_has_a_chart_for_each_number_and_one_of_the_steps() -> None:
    assert charts("a sweep") == [
        "sweep-step",
        "sweep-gather",
        "sweep-prepare",
        "sweep-tokens",
        "sweep-memory",
        "cases",
    ]


def test_the_setting_with_more_values_is_across_and_the_other_in_lines() -> None:
    chart = next(page_of("a sweep").charts())
    (axes,) = chart.figure.axes
    assert axes.get_xlabel() == "concurrency"
    assert [container.get_label() for container in axes.containers] == [
        "block_tokens 128",
        "block_tokens 256",
    ]


def test_a_sweep_has_a_row_of_rates_for_each_case_also_for_one_that_failed() -> None:
    table: HtmlTable = sections("a sweep")["operations"].tables[0]
    assert [row[0].text for row in table.rows][-1] == "block_tokens=256, concurrency=64"
    assert [cell.text for cell in table.rows[-1][1:]] == ["–"] * 7
    assert len(table.rows) == len(make_sweep_cases())


def test_a_failed_case_of_a_sweep_is_named_with_what_failed() -> None:
    findings = sections("a sweep")["checks"].findings
    assert [finding.sentence for finding in findings] == [
        "block_tokens=256, concurrency=64: failed: 64 requests need 512 blocks; 256 are free"
    ]


def test_a_case_that_is_alone_tells_its_good_news_too() -> None:
    findings = sections("one case")["checks"].findings
    assert [finding.level for finding in findings] == ["good", "good"]


def test_a_throttled_run_says_so_beside_its_chart() -> None:
    assert sections("a GPU")["machine"].note == "Shaded: power cap for 0.40 s."


def test_a_known_gpus_datasheet_is_a_roof_and_an_unknown_ones_is_not() -> None:
    assert "datasheet 4,800" in parse(html_of("a GPU")).text
    assert "datasheet 4" not in parse(html_of("one case")).text


def test_what_a_profiler_warned_of_is_told() -> None:
    assert [f.sentence for f in sections("a GPU")["kernels"].findings] == ["the buffer was full"]


def test_a_comparison_stands_before_the_runs_with_its_verdict_and_counts() -> None:
    page = page_of("a comparison")
    assert page.title == "From main to change"
    assert page.verdict is not None
    assert page.verdict.level == "bad"
    assert [(n.label, n.value) for n in page.numbers] == [
        ("Change of time, all rows", "+0.0"),
        ("Slower", "1"),
        ("Faster", "1"),
    ]
    (first, *_) = parse(html_of("a comparison")).find("header")
    assert "launch 3 was lost" in first.text


def test_every_run_of_several_is_an_article_of_its_own() -> None:
    root = parse(html_of("two runs"))
    assert len(root.find("article")) == 2
    assert root.find("h1")[0].text == "2 runs"
