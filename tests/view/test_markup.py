"""Tables of pages, of Markdown and of CSV, and that they say what a terminal says."""

import csv
import io

import pytest

from dsv4kv.runs.schema import RunRecord
from dsv4kv.view.case import latencies_table, operations_table
from dsv4kv.view.markup import HtmlColumn, to_csv, to_html, to_markdown
from dsv4kv.view.table import (
    Bar,
    Mark,
    Number,
    Table,
    Text,
    Tone,
    names,
    numbers,
    tabulate,
    text_of,
)
from tests.runs.records import make_case
from tests.view.page.markup import parse
from tests.view.page.pages import RUNS, html_of
from tests.view.terminal import shown


def times(*rows: tuple[str, str | Number]) -> Table:
    return Table("Times", [*names("name"), *numbers("time, s")], rows)


MEASURED = times(("a", Number("12.41", "± 0.05")), ("b", "–"))


def test_a_table_of_a_page_has_the_terminals_numbers_in_the_same_order() -> None:
    for table in (operations_table(make_case()), latencies_table(make_case().latencies)):
        rows = [row for row in shown(table, width=200).splitlines()[3:] if row]
        for line, cells in zip(rows, to_html(table).rows, strict=True):
            words = " ".join(text_of(cell) for cell in cells).split()
            assert line.split()[: len(words)] == words


def test_an_interval_has_a_cell_of_its_own_on_a_page() -> None:
    page = to_html(MEASURED)
    assert page.columns == [HtmlColumn("name", "", False), HtmlColumn("time, s", "n", True)]
    assert [(row[1].value, row[1].spread) for row in page.rows] == [("12.41", "± 0.05"), ("–", "")]


def test_a_line_is_drawn_above_the_footer() -> None:
    table = Table("", names("a"), [("1",), ("2",)], footer=[("3",)])
    assert to_html(table).ruled == 1
    assert len(to_html(table).rows) == 3
    assert to_html(MEASURED).ruled == -1


@pytest.mark.parametrize(
    ("tone", "look"), [("good", "good"), ("bad", "bad"), ("dim", "muted"), ("strong", None)]
)
def test_a_tone_is_a_role_on_the_page(tone: Tone, look: str | None) -> None:
    page = to_html(Table("", names("a"), [(Text("x", tone),)]))
    assert page.looks.get(page.rows[0][0].tone) == look


def test_pictures_and_columns_without_anything_are_not_on_a_page() -> None:
    table = Table(
        "", names("launch", "state", "why", "of all"), [("0", Mark("good"), "", Bar(0.5))]
    )
    page = to_html(table)
    assert [column.header for column in page.columns] == ["launch", "state"]
    assert [cell.value for cell in page.rows[0]] == ["0", "✓"]


def test_a_table_without_rows_keeps_its_columns() -> None:
    assert [column.header for column in to_html(times()).columns] == ["name", "time, s"]


def test_every_number_of_a_cases_tables_is_on_its_page() -> None:
    record: RunRecord = RUNS["one case"][0][0]
    text = parse(html_of("one case")).text
    for row in to_html(operations_table(record.cases[0])).rows:
        for cell in row:
            assert cell.value in text
            assert cell.spread in text


def test_markdown_is_one_line_a_row_whatever_a_cell_holds() -> None:
    table = times(("a|b\nc", Number("1", "± 2")), ("d", "–"))
    assert to_markdown(table).splitlines() == [
        "| name | time, s |",
        "|---|---:|",
        "| a\\|b c | 1 ± 2 |",
        "| d |  |",
    ]


def test_csv_is_read_back_as_it_was_whatever_a_cell_holds() -> None:
    rows: list[dict[str, object]] = [{"a": 'x,"y"\nz', "b": 0.1}, {"a": None, "c": True}]
    assert list(csv.DictReader(io.StringIO(to_csv(tabulate(rows)), newline=""))) == [
        {"a": 'x,"y"\nz', "b": "0.1", "c": ""},
        {"a": "", "b": "", "c": "True"},
    ]


def test_a_row_of_too_few_cells_is_refused() -> None:
    with pytest.raises(ValueError, match="Times: 1 cells for 2 columns"):
        Table("Times", names("a", "b"), [("x",)])
