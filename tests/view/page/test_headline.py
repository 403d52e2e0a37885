import re

import pytest

from dsv4kv.runs.schema import Launch, RunRecord, Verification
from dsv4kv.view.exports import to_markdown
from dsv4kv.view.facts import layers_text
from dsv4kv.view.headline import answer, judge_launches, judge_record, key_numbers, name_run
from dsv4kv.view.outcomes import group_launches
from dsv4kv.view.record import report_record
from dsv4kv.view.table import Table, Text
from tests.runs.records import (
    make_cache,
    make_case,
    make_failed_case,
    make_record,
    make_sweep_cases,
    make_totals,
)
from tests.view.page.markup import parse
from tests.view.page.pages import (
    RUNS,
    html_of,
    make_gpu_record,
    make_launched,
    make_telemetry,
    page_of,
)


def told(record: RunRecord) -> list[str]:
    numbers = key_numbers(group_launches(record.cases))
    return [f"{n.label}: {n.value} {n.spread} {n.unit}".replace("  ", " ") for n in numbers]


def test_a_run_is_named_by_its_model_and_its_gpu_or_else_its_cpu() -> None:
    assert name_run(make_record()) == "KV cache of v4-flash on AMD EPYC 9554"
    assert name_run(make_gpu_record()) == "KV cache of v4-flash on NVIDIA H200"


def test_a_run_without_fault_says_what_was_checked() -> None:
    verdict = judge_record(make_record())
    assert verdict.level == "good"
    assert verdict.sentence == (
        "120 outputs equal the reference, memory as predicted to the byte, no block leaked"
    )


def test_without_checks_nothing_is_called_good() -> None:
    nothing = Verification(checks=0, by_operation={}, failures=[])
    assert judge_record(make_record(make_case(verification=nothing))).level == "note"


def test_the_worst_news_comes_first_and_the_rest_is_counted() -> None:
    case = make_case(totals=make_totals(rejected=3, blocks_left=2))
    verdict = judge_record(make_record(case, make_failed_case("no memory")))
    assert verdict.level == "bad"
    assert verdict.sentence == (
        "blocks still held at the end: 2; the cache leaks; 1 more problems, listed below"
    )
    only_warning = judge_record(make_record(make_case(totals=make_totals(rejected=3))))
    assert only_warning.level == "warning"


def test_a_clock_that_fell_for_heat_is_a_reservation() -> None:
    hot = make_case(telemetry=make_telemetry([0x40] * 9))
    verdict = judge_record(make_record(hot))
    assert verdict.level == "warning"
    assert "thermal" in verdict.sentence


@pytest.mark.parametrize(("status", "level"), [("crashed", "bad"), ("incomplete", "warning")])
def test_a_launch_that_did_not_end_is_told(status: str, level: str) -> None:
    when = dict.fromkeys(("started_utc", "ended_utc"), "2026-11-21T04:19:03Z")
    facts = {"launch": 2, "error": None, "status": status} | when
    (finding,) = judge_launches([Launch.model_validate(facts)])
    assert (finding.level, finding.sentence) == (
        level,
        f"launch 2 {status}: stopped before the end",
    )


def test_one_case_is_told_by_its_step_its_gather_and_its_size() -> None:
    assert told(make_record()) == [
        "Step: 7.95 ± 0.13 ms",
        "Gather: 3.27 ± 0.03 GB/s",
        "Cache per token: 335 B",
    ]


def test_a_gpu_is_told_by_its_graph() -> None:
    assert told(make_gpu_record())[0] == "Decode step on the GPU: 1.00 ± 0.00 ms"


def test_bookkeeping_alone_is_told_by_what_it_has() -> None:
    record = make_record(make_case(operations=[], memcpy=None))
    assert [line.split(":")[0] for line in told(record)] == ["Step", "Cache per token", "Prepare"]


def test_a_sweep_is_told_by_its_best_cases() -> None:
    numbers = key_numbers(group_launches(make_sweep_cases()))
    assert [f"{n.label}: {n.note}" for n in numbers] == [
        (
            "Shortest step, median: at block_tokens=128, concurrency=1 (and 1 other alike), "
            "8.00 ± 0.17 times as fast as at block_tokens=256, concurrency=8, of 6 of 43 layers"
        ),
        (
            "Fastest gather: at block_tokens=256, concurrency=1 (and 1 other alike), "
            "1.041 ± 0.013 times as much as at block_tokens=128, concurrency=8, of 6 of 43 layers"
        ),
    ]


def test_several_launches_are_told_by_their_median_and_the_interval_over_launches() -> None:
    record = make_launched([1_000_000 + 10_000 * n for n in range(7)])
    number = key_numbers(group_launches(record.cases))[0]
    assert number.note == "median, over 7 launches, with the host in it, of 6 of 43 layers"
    assert float(number.spread.removeprefix("± ")) >= 0.02


def test_a_case_that_never_ran_has_no_numbers() -> None:
    assert told(make_record(make_failed_case())) == []


def test_the_share_of_the_yardstick_is_as_uncertain_as_both() -> None:
    gather = key_numbers([[make_case()]])[1]
    assert gather.note.startswith("32.3 ± 0.4 % of this run's memcpy, 10.13 ± 0.04 GB/s, of ")
    launches = [make_case(launch=n) for n in range(3)]
    assert "± ? % of this run's memcpy" in key_numbers([launches])[1].note


def test_what_a_replay_saved_is_exact_in_a_sweep_too() -> None:
    (record,), _ = RUNS["choices"]
    (saved, *_) = key_numbers(group_launches(record.cases))
    assert (saved.label, saved.unit, saved.spread) == ("Most saved", "%", "")


def test_a_sweep_says_first_which_setting_is_best_at_what_and_by_how_much() -> None:
    (article,) = page_of("choices").articles
    (sentence,) = article.answer
    assert re.fullmatch(
        r"Most saved: [\d.]+ % of prompt tokens at strategy=full( \(and 1 other alike\))?, "
        r"[\d.]+ points more than at strategy=zero\.",
        sentence,
    )
    header = parse(html_of("choices")).find("header")[0].text
    assert header.index(sentence) < header.index(article.verdict.sentence)


def test_a_sweep_that_changes_nothing_says_so_in_a_sentence() -> None:
    (article,) = page_of("replays alike").articles
    (sentence,) = article.answer
    assert re.match(
        r"The same at every setting, to 1 % or its interval: prompt tokens saved \([\d.]+ %\); ",
        sentence,
    )
    assert article.numbers == []


@pytest.mark.parametrize("name", ["one case", "a sweep", "launches", "choices", "a GPU"])
def test_a_terminal_ends_with_the_key_numbers_of_the_page(name: str) -> None:
    (record,), _ = RUNS[name]
    (article,) = page_of(name).articles
    *_, last = (part for part in report_record(record) if part != "")
    assert isinstance(last, Text)
    shown = article.numbers[1:2] if name in ("a sweep",) else article.numbers
    assert all(f"{number.label}: {number.figure}" in last.value for number in shown)


@pytest.mark.parametrize("name", ["one case", "a sweep", "launches", "a GPU"])
def test_numbers_of_a_part_of_a_model_say_so_wherever_they_stand(name: str) -> None:
    (record,), _ = RUNS[name]
    part = "of 6 of 43 layers"
    (article,) = page_of(name).articles
    assert all(part in number.note for number in article.numbers)
    for section in article.sections:
        if section.key not in ("machine", "checks"):
            assert all(part in chart.title for chart in section.charts)
            assert all(part in table.note for table in section.tables.values())
    told = [each for each in report_record(record) if isinstance(each, Table)]
    of_machine = ("Telemetry", "Launches")
    assert all(part in table.note for table in told if table.title not in of_machine)
    assert all(part in line for line in answer(record))
    assert part in to_markdown([record])


def test_numbers_of_a_whole_model_say_nothing_of_layers() -> None:
    whole = make_cache(total_layers=6)
    record = make_record(make_case(cache=whole))
    assert layers_text(record.cases) == ""
    assert "layers." not in answer(record)[0]
    assert layers_text([make_case(), make_case(cache=whole)]) == "of 6 of 6 to 43 layers"


def test_the_plus_and_minus_of_launches_is_told_apart_from_that_of_details() -> None:
    cautions = page_of("launches").articles[0].cautions
    assert "± or -/+ is the 95 % interval over launches, ? below six" in cautions
    assert cautions[-2].endswith("in the middle, intervals are within it")
