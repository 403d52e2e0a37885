"""What is printed in tables is text, and as wide as it needs to be."""

import pytest
from rich.table import Table

from dsv4kv.cli.console import open_console


@pytest.mark.parametrize("name", ["[enforce fail at alloc.cpp]", "a [/b] c", ":warning:", "[red]"])
def test_signs_in_names_are_no_markup(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("name")
    table.add_row(name)
    open_console().print(table)
    open_console().print(name)
    assert capsys.readouterr().out.count(name) == 2


def test_a_file_is_as_wide_as_the_widest_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert open_console().width == 110
    monkeypatch.setenv("COLUMNS", "80")
    assert open_console().width == 80
