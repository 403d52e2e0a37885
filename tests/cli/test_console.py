"""What is printed in tables is text, and as wide as it needs to be."""

import json
import os
import subprocess
import sys
import unicodedata

import pytest
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from dsv4kv.view.console import open_console, print_document, say


def test_a_sentence_is_wrapped_between_words_on_a_terminal_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    sentence = "error: a/file-of-a-very-long-name cannot be read"
    say(sentence, err=True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    say(sentence, err=True)
    wrapped = ["error:", "a/file-of-a-very-long-name", "cannot be read"]
    assert capsys.readouterr().err.splitlines() == [sentence, *wrapped]


COMMANDS_OF_TERMINALS = [
    "\x1b[2J",  # clear the screen
    "\x1b]52;c;cm0gLXJmIC8=\x07",  # fill the clipboard
    "\x9b31m",  # a colour, in one character
    "\x1bP1$r\x1b\\",
    "\r",
    "\b" * 8,
    "\x7f",
    "\u202e",  # what follows runs backwards
    "\u2066",
]


@pytest.mark.parametrize("command", COMMANDS_OF_TERMINALS, ids=repr)
def test_text_gives_a_terminal_no_commands(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"run{command}id"
    table = Table("name", title=name)
    table.add_row(name)
    console = open_console()
    for each in (table, name, Text(name), Panel(name)):
        console.print(each)
    open_console(stderr=True).print(name)
    say(name)
    say(name, err=True)
    print_document(json.dumps({"name": name}, ensure_ascii=False))
    told = capsys.readouterr()
    printed = told.out + told.err
    controls = {code for code in printed if unicodedata.category(code) in ("Cc", "Cf")}
    assert controls == {"\n"}
    assert "run" in printed
    assert json.loads(told.out.splitlines()[-1]) == {"name": name}


def test_no_columns_at_all_are_those_that_are_not_known() -> None:
    asked = {**os.environ, "COLUMNS": "0"}
    words = [sys.executable, "-P", "-m", "dsv4kv", "budget"]
    done = subprocess.run(words, env=asked, capture_output=True, text=True, check=True)
    assert "requests of" in done.stdout
