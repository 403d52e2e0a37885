from pathlib import Path

from dsv4kv.view.markup import to_html
from dsv4kv.view.page.build import Page
from dsv4kv.view.page.sections import Section, case_sections, profile_sections
from tests.runs.kernel_profiles import from_kineto
from tests.runs.records import make_sweep_cases
from tests.view.page.markup import parse
from tests.view.page.pages import html_of, make_gpu_record, make_profile, make_telemetry, page_of


def sections(name: str) -> dict[str, Section]:
    page: Page = page_of(name)
    return {section.key: section for article in page.articles for section in article.sections}


def charts(name: str) -> list[str]:
    return [chart.key for chart in page_of(name).charts()]


def test_a_page_has_the_charts_that_the_run_has_data_for() -> None:
    assert charts("one case") == ["latencies", "order", "rates", "roofline", "pools", "held"]
    assert charts("a GPU") == [
        "kernels",
        "latencies",
        "order",
        "rates",
        "roofline",
        "pools",
        "telemetry",
    ]
    assert charts("launches")[0] == "launches"
    assert charts("a replay") == ["latencies", "replay"]
    assert charts("bookkeeping") == ["latencies", "order", "pools"]
    assert charts("a failure") == charts("no case") == []


def test_a_sweep_has_a_chart_for_each_number_that_it_changes_and_one_of_the_steps() -> None:
    assert charts("a sweep") == ["sweep-step", "sweep-gather", "sweep-prepare", "cases"]


def test_what_a_sweep_does_not_change_is_a_sentence_and_no_chart() -> None:
    assert sections("a sweep")["sweep"].note.endswith(
        " The same at every setting, to 1 % or its interval: throughput (20,408 tokens/s); "
        "memory allocated (23.6 MiB)."
    )
    assert charts("replays alike") == []
    headers = [
        column.header
        for column in sections("replays alike")["sweep"].tables["sweep-table"].columns
    ]
    assert headers[:2] == ["checkpoint share", "saved tokens"]


def test_choices_are_labelled_bars_and_numbers_are_lines() -> None:
    of_choices = next(page_of("choices").charts())
    (axes,) = of_choices.figure.axes
    assert of_choices.key == "sweep-saved"
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["full", "zero", "ends+junctions"]
    assert [text.get_text()[-1] for text in axes.texts] == ["%"] * 3
    assert len(axes.patches) == 3
    of_numbers = next(page_of("a sweep").charts())
    (axes,) = of_numbers.figure.axes
    assert not axes.patches
    assert len(axes.containers) == 2


def test_a_replay_says_that_its_times_are_those_of_a_model() -> None:
    page = page_of("a replay")
    assert page.title == "Replay of builtin:chat through the KV cache of v4-pro"
    assert list(sections("a replay")) == ["reuse", "latency", "held", "model", "checks"]
    text = parse(html_of("a replay")).text
    assert "times are those of a model, not of this machine" in text
    assert "a layer of decoding" in text
    (article,) = page.articles
    assert [number.label for number in article.numbers] == [
        "Saved",
        "First token",
        "A further token",
    ]
    assert article.verdict.sentence == "12 requests served in virtual time, no block leaked"


def test_the_numbers_of_memory_over_time_are_in_a_table_too() -> None:
    table = sections("one case")["held"].tables["moments-table"]
    assert [column.header for column in table.columns] == [
        "s",
        "blocks",
        "slots",
        "cached blocks",
        "main",
        "state",
    ]
    assert table.rows[-1] == ("1.000", "80", "1", "70", "160 MiB", "16.0 MiB")


def test_the_setting_with_more_values_is_across_and_the_other_in_lines() -> None:
    chart = next(page_of("a sweep").charts())
    (axes,) = chart.figure.axes
    assert axes.get_xlabel() == "concurrency"
    assert [container.get_label() for container in axes.containers] == [
        "block_tokens 128",
        "block_tokens 256",
    ]


def test_a_sweep_has_a_row_of_rates_for_each_case_also_for_one_that_failed() -> None:
    table = to_html(sections("a sweep")["operations"].tables["rate-table"])
    assert [row[0].value for row in table.rows][-1] == "block_tokens=256, concurrency=64"
    assert [cell.value for cell in table.rows[-1][1:]] == ["–"] * 7
    assert table.columns[1].has_spread
    assert table.rows[0][1].spread.startswith("± ")
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


def test_a_gpu_that_tells_no_limits_is_not_said_to_be_free_of_them() -> None:
    case = make_gpu_record().cases[0]
    telemetry = make_telemetry([0, 0, 0])
    samples = telemetry.gpu_samples
    assert samples
    silent = samples.model_copy(update={"reasons": None})
    notes = []
    for told in (samples, silent):
        case = case.model_copy(
            update={"telemetry": telemetry.model_copy(update={"gpu_samples": told})}
        )
        (machine,) = (each for each in case_sections(case, None) if each.key == "machine")
        notes.append(machine.note)
    assert notes == ["Nothing slowed it down.", ""]


def test_a_known_gpus_datasheet_is_a_roof_and_an_unknown_ones_is_not() -> None:
    assert "datasheet 4,800" in parse(html_of("a GPU")).text
    assert "datasheet 4" not in parse(html_of("one case")).text


def test_what_a_profiler_warned_of_is_told() -> None:
    (first, *_) = sections("a GPU")["profile"].findings
    assert (first.level, first.sentence) == ("warning", "the buffer was full")


def test_a_profile_shows_its_steps_its_shares_and_what_they_mean(tmp_path: Path) -> None:
    table = from_kineto(tmp_path)
    profile = make_profile().model_copy(update={"table": table})
    where, which = profile_sections(profile, None)
    assert (where.key, where.heading) == ("profile", "Where the time of a step went")
    assert [each.title for each in where.tables.values()] == ["A step", "What they do"]
    (chart,) = where.charts
    assert chart.description == "gather 100.0 %."
    assert where.findings[-1].sentence.startswith("work on the KV cache: 100.0 % of the time")
    assert which.key == "kernels"


def test_a_comparison_stands_before_the_runs_with_its_verdict_and_counts() -> None:
    page = page_of("a comparison")
    assert page.title == "From main to change"
    assert page.verdict is not None
    assert page.verdict.level == "bad"
    assert [(n.label, n.value) for n in page.numbers] == [
        ("Change of time", "+0.0"),
        ("Slower", "1"),
        ("Faster", "1"),
    ]
    (first, *_) = parse(html_of("a comparison")).find("header")
    assert "launch 3 was lost" in first.text


def test_each_run_of_a_comparison_bears_the_name_of_its_side() -> None:
    root = parse(html_of("a comparison"))
    names = [heading.text for heading in root.find("h2") if "KV cache of" in heading.text]
    assert [name.partition(":")[0] for name in names] == ["main", "change"]


def test_every_run_of_several_is_an_article_of_its_own() -> None:
    root = parse(html_of("two runs"))
    assert len(root.find("article")) == 2
    assert root.find("h1")[0].text == "2 runs"
