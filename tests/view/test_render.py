"""Whatever a table holds and however narrow a terminal is, no number is cut."""

import re
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from dsv4kv.view import table as tb
from dsv4kv.view.render import show
from tests.examples import examples
from tests.view.terminal import shown

WORDS = st.text(st.sampled_from("abz09_-/.:<>,漢é"), min_size=1, max_size=30)
SENTENCES = st.lists(WORDS, max_size=8).map(" ".join)
DIGITS = st.integers(-(10**12), 10**12).map("{:,}".format)
SPREADS = st.sampled_from(["", "± ?", "± 0.05", "± 12,345", "-0.03/+0.11"])
CELLS = {
    "name": st.one_of(
        WORDS, st.builds(tb.mark, st.just("bad"), WORDS), st.floats(0, 1).map(tb.bar)
    ),
    "number": st.one_of(DIGITS, st.builds(tb.Number, DIGITS, SPREADS)),
    "prose": SENTENCES.map(tb.Text),
}


@st.composite
def tables(draw: st.DrawFn) -> tb.Table:
    """Up to nine columns of anything."""
    kinds = draw(st.lists(st.sampled_from(sorted(CELLS)), min_size=1, max_size=9))
    row = st.tuples(*(CELLS[kind] for kind in kinds))
    rows, footer = draw(st.lists(row, max_size=3)), draw(st.lists(row, max_size=1))
    title, note, caption = draw(SENTENCES), draw(SENTENCES), draw(SENTENCES)
    return tb.Table(title, [draw(WORDS) for _ in kinds], rows, note, footer, caption)


def told(cell: tb.Cell, kind: str) -> list[str]:
    """What must be on one line: a number with its interval, a name, a word of a sentence."""
    return tb.text_of(cell).split(" ") if kind == "prose" else [tb.text_of(cell)]


@examples(125)
@given(tables(), st.sampled_from([80, 100, 140]))
def test_every_cell_is_whole_and_in_its_terminal(table: tb.Table, width: int) -> None:
    lines = [re.sub(r" +", " ", line).strip() for line in shown(table, width=width).split("\n")]
    keys = max((cell_len(tb.text_of(row[0])) for row in table.cells), default=0)
    if keys <= 30:
        assert max(map(cell_len, lines)) <= width
    text = "\n".join(lines)
    for row in table.cells:
        for head, cell in zip(table.heads, row, strict=True):
            for part in told(cell, head.kind):
                assert re.sub(r" +", " ", part).strip() in text


@pytest.mark.parametrize("colour", [False, True])
def test_a_pipe_gets_no_colours_and_whole_lines(
    colour: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("NO_COLOR" if not colour else "FORCE_COLOR", "1")
    show([tb.Finding("bad", "x " * 40)])
    out = capsys.readouterr().out
    assert ("\x1b" in out) == colour


def test_a_row_of_too_few_cells_is_refused() -> None:
    with pytest.raises(ValueError, match="Times: 1 cells for 2 columns"):
        tb.Table("Times", ["a", "b"], [("x",)])


NAME = "a\nwarning: b\t\x1b[2J\u202ec"


@pytest.mark.parametrize(
    "part",
    [NAME, tb.Text(NAME), tb.Finding("bad", NAME), tb.Facts({"file": NAME}),
     tb.Table(NAME, ["a"], [["x"]]), tb.Table("", ["file"], [[NAME]]),
     tb.Table("", ["a"], [["x"]], note=NAME)],
)  # fmt: skip
def test_a_name_with_control_characters_is_on_one_line_and_shows_them(part: tb.Part) -> None:
    assert r"a\nwarning: b\t\x1b[2J\u202ec" in shown(part)


@pytest.mark.parametrize(
    ("name", "read"),
    [*((each, each) for each in ("plain.jsonl", "it's", "\\", "$(touch x)")),
     ("a\n; touch x", r"a\n; touch x")],
)  # fmt: skip
def test_a_shell_reads_a_command_of_one_line_as_its_words(name: str, read: str) -> None:
    line = tb.Command.of("printf", "%s", name)
    assert line.isprintable()
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=True, text=True)
    assert done.stdout == read
