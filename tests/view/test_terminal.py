"""Whatever a table holds and however narrow a terminal is, no number is cut."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from dsv4kv.view.table import (
    Bar,
    Cell,
    Column,
    Facts,
    Finding,
    Histogram,
    Mark,
    Number,
    Part,
    Spark,
    Stack,
    StackPart,
    Table,
    Text,
    names,
    numbers,
    prose,
    text_of,
)
from dsv4kv.view.terminal import draw, wrap
from tests.examples import examples
from tests.view.terminal import shown

WORDS = st.text(st.sampled_from("abz09_-/.:<>,漢é"), min_size=1, max_size=30)
SENTENCES = st.lists(WORDS, max_size=8).map(" ".join)
DIGITS = st.integers(-(10**12), 10**12).map("{:,}".format)
SPREADS = st.sampled_from(["", "± ?", "± 0.05", "± 12,345", "-0.03/+0.11"])
MEASURED = st.builds(Number, DIGITS, SPREADS)
PICTURES = st.one_of(
    st.builds(Bar, st.floats(0, 1)),
    st.builds(Spark, st.lists(st.integers(0, 9), max_size=30)),
    st.builds(Histogram, st.lists(st.integers(1, 9), max_size=30)),
)
CELLS = {
    "name": st.one_of(
        WORDS, SENTENCES.map(Text), st.builds(Mark, st.just("bad"), WORDS), PICTURES
    ),
    "number": st.one_of(DIGITS, MEASURED),
    "prose": st.one_of(SENTENCES, SENTENCES.map(Text)),
}
COLUMNS = st.builds(Column, SENTENCES, st.sampled_from(sorted(CELLS)), st.booleans())


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Up to nine columns of anything."""
    columns = draw(st.lists(COLUMNS, min_size=1, max_size=9))
    row = st.tuples(*(CELLS[column.kind] for column in columns))
    rows, footer = draw(st.lists(row, max_size=3)), draw(st.lists(row, max_size=1))
    keys = draw(st.integers(0, min(3, len(columns))))
    title, note, caption = draw(SENTENCES), draw(SENTENCES), draw(SENTENCES)
    return Table(title, columns, rows, note=note, footer=footer, caption=caption, keys=keys)


def lines_of(part: Part, width: int) -> list[str]:
    return ["".join(text for text, _ in line) for line in draw(part, width)]


def told(cell: Cell, kind: str, width: int) -> list[str]:
    """What must be on one line: a number with its interval, a name, a word of a sentence."""
    parts = text_of(cell).split(" ") if kind == "prose" else [text_of(cell)]
    return [part for part in parts if cell_len(part) <= width]


@examples(125)
@given(tables(), st.integers(32, 200))
def test_every_cell_is_whole_at_every_width(table: Table, width: int) -> None:
    text = "\n".join(re.sub(r" +", " ", line) for line in lines_of(table, width))
    for row in table.cells:
        for column, cell in zip(table.columns, row, strict=True):
            for words in told(cell, column.kind, width):
                assert re.sub(r" +", " ", words).strip() in text


@examples(125)
@given(tables(), st.integers(1, 200))
def test_no_line_is_wider_than_the_terminal(table: Table, width: int) -> None:
    least = 2  # of a character of two columns
    assert max(map(cell_len, lines_of(table, max(width, least))), default=0) <= max(width, least)


@examples(125)
@given(tables(), st.integers(32, 200))
def test_a_value_and_its_interval_stand_on_one_line_in_whatever_is_said(
    table: Table, width: int
) -> None:
    sentence = "; ".join(text_of(cell) for row in table.cells for cell in row)
    parts: list[Part] = [Finding("note", sentence), sentence, Facts({"fact": sentence})]
    for part in (*parts, table):
        assert not [line for line in lines_of(part, width) if line.rstrip().endswith("±")]


@pytest.mark.parametrize(
    "figure", ["12 -2/+6 ms", "69.8 %", "20,408 tokens/s", "3.27 ± 0.03 GB/s", "9.21 MiB"]
)
def test_a_figure_is_never_broken_before_its_interval_or_its_unit(figure: str) -> None:
    sentence = f"Shortest of all: {figure}, at the first setting; then {figure}."
    for width in range(len(figure) + 1, len(sentence)):
        assert sum(line.count(figure) for line in wrap(sentence, width)) == 2, width


SPEEDS = Table(
    "Speeds",
    [
        *names("operation", "layers"),
        *numbers("calls", minor=True),
        *numbers("median µs/call", "GB/s", "% of memcpy"),
        *prose("why"),
    ],
    [
        ("gather", "csa", "400", Number("12.6", "± 1.6"), Number("3.013", "± 0.020"), "29.7", ""),
        ("flush", "hca", "4", Number("276", "± ?"), "–", "–", "no launch reached it in time"),
    ],
    footer=[("memcpy", "", "10", Number("53,005", "± 315"), Number("10.13", "± 0.04"), "–", "")],
    note="cold calls",
    caption="1 GB/s = 10^9 B/s",
    keys=2,
)


def test_headers_are_wrapped_first_and_then_sentences() -> None:
    assert shown(SPEEDS, width=100).splitlines()[1] == (
        "operation  layers  calls  median µs/call           GB/s  % of memcpy  why"
    )
    assert shown(SPEEDS, width=94).splitlines()[1:3] == [
        "                                median                   % of",
        "operation  layers  calls       µs/call           GB/s  memcpy  why",
    ]
    assert "no launch reached it in time" in shown(SPEEDS, width=94)
    assert "no launch reached it in\n" in shown(SPEEDS, width=88)


def test_then_minor_columns_go_to_a_table_below_with_the_same_names() -> None:
    lines = shown(SPEEDS, width=84).splitlines()
    heads = [line.split() for line in lines if line.startswith("operation")]
    assert heads == [
        ["operation", "layers", "µs/call", "GB/s", "memcpy", "why"],
        ["operation", "layers", "calls"],
    ]


def test_and_where_no_column_has_room_beside_the_names_rows_are_lists() -> None:
    lines = shown(SPEEDS, width=20).splitlines()
    assert lines[:10] == [
        "Speeds  cold calls",
        "operation: gather",
        "layers: csa",
        "calls: 400",
        "median µs/call:",
        "  12.6 ± 1.6",
        "GB/s: 3.013 ± 0.020",
        "% of memcpy: 29.7",
        "",
        "operation: flush",
    ]


def test_numbers_stand_with_their_intervals_in_line() -> None:
    lines = [line for line in shown(SPEEDS, width=110).splitlines() if "±" in line]
    assert len({line.index("±") for line in lines}) == 1


def test_a_column_that_says_nothing_is_not_shown() -> None:
    table = Table("", [*names("a", "state"), *prose("why")], [("x", Mark("good"), "")])
    assert shown(table).splitlines()[0].split() == ["a", "state"]


def test_names_longer_than_the_terminal_lose_no_character() -> None:
    name = "void cutlass::gemm<float, 128, 64>::run<" + "x" * 100 + ">(int)"
    lines = lines_of(Table("", [*names("kernel"), *numbers("µs")], [(name, "1.0")]), 60)
    assert name.replace(" ", "") in "".join(lines).replace(" ", "")
    assert max(map(len, lines)) <= 60


@pytest.mark.parametrize("width", [24, 40, 60, 80, 120])
def test_a_stack_is_a_bar_with_every_part_named(width: int) -> None:
    parts = [StackPart("█", "weights", "18.1 GiB", 0.5), StackPart("·", "free", "12 GiB", 0.25)]
    lines = lines_of(
        Stack("one GPU", [*parts, StackPart("-", "spare", "0 B", 0.0)], "40 GiB"), width
    )
    assert lines[0].startswith("one GPU  █")
    assert lines[0].endswith("·  40 GiB")
    assert lines[0].count("█") == pytest.approx(2 * lines[0].count("·"), abs=2)
    text = "\n".join(lines)
    assert "█ weights 18.1 GiB" in text
    assert "· free 12 GiB" in text
    assert "spare" not in text
    assert max(map(len, map(str.rstrip, lines))) <= max(width, 27)
