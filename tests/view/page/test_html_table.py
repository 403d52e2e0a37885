import pytest
from rich.table import Table
from rich.text import Text

from dsv4kv.record.schema import RunRecord
from dsv4kv.view.case import latencies_table, operations_table
from dsv4kv.view.facts import header
from dsv4kv.view.page.html_table import Cell, HtmlTable, convert_facts, convert_table
from tests.record.records import make_case, make_record
from tests.view.page.markup import parse
from tests.view.page.pages import RUNS, html_of
from tests.view.terminal import shown


def test_a_table_of_a_page_has_the_terminals_numbers_in_the_same_order() -> None:
    for table in (operations_table(make_case()), latencies_table(make_case().latencies)):
        page = convert_table(table, "key")
        drawn = set("▁▂▃▄▅▆▇█▉▊▋▌▍▎▏")
        told = [word for word in shown(table, width=200).split() if not set(word) <= drawn]
        cells = [cell for row in page.rows for cell in row]
        words = " ".join(f"{cell.text} {cell.spread}" for cell in cells).split()
        assert words == [word for word in told[-len(words) - told.count("─") :] if word in words]


def test_an_estimate_is_split_where_its_interval_begins() -> None:
    table = Table("name", "time")
    table.add_row("a", "  12.41 ± 0.05 ")
    table.add_row("b", "–")
    page = convert_table(table, "key")
    assert page.rows == [[Cell("a"), Cell("12.41", "± 0.05")], [Cell("b"), Cell("–")]]
    assert [column.has_spread for column in page.columns] == [False, True]
    assert [column.is_number for column in page.columns] == [False, True]


def test_caption_note_and_rules_are_kept() -> None:
    table = Table("a", title="Operations  cold: every call")
    table.add_row("1", end_section=True)
    table.add_row("2")
    page = convert_table(table, "key")
    assert (page.caption, page.note, page.ruled) == (
        "Operations",
        "cold: every call",
        frozenset({0}),
    )


@pytest.mark.parametrize(
    ("style", "look"), [("green", "good"), ("bold red", "bad"), ("dim", "muted"), ("bold", "")]
)
def test_a_colour_of_the_terminal_is_a_role_on_the_page(style: str, look: str) -> None:
    table = Table("a")
    table.add_row(Text("x", style))
    assert convert_table(table, "key").rows[0][0].look == look


def test_marks_without_a_header_get_one_and_columns_without_anything_go() -> None:
    table = Table("launch", "", "", "shape")
    table.add_row("0", "✓", "", "▁▂ █")
    page = convert_table(table, "key")
    assert [column.header for column in page.columns] == ["launch", "state"]
    assert page.rows == [[Cell("0"), Cell("✓")]]


def test_facts_keep_their_labels() -> None:
    facts = convert_facts(header(make_record()))
    assert facts["trace"] == "builtin:chat"
    assert facts["config"] == "configs/bench/default.yaml, seed 0"


def test_every_number_of_a_cases_tables_is_on_its_page() -> None:
    record: RunRecord = RUNS["one case"][0][0]
    text = parse(html_of("one case")).text
    page: HtmlTable = convert_table(operations_table(record.cases[0]), "key")
    for row in page.rows:
        for cell in row:
            assert cell.text in text
            assert cell.spread in text
