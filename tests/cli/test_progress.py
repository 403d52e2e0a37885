from io import StringIO

import pytest
from rich.console import Console

from dsv4kv.cli import progress
from dsv4kv.cli.progress import Watcher


@pytest.fixture(autouse=True)
def every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "EVERY_S", 10.0)


def watch(*, terminal: bool, quiet: bool = False) -> str:
    """What a count to 100 tokens prints that takes a second a token."""
    seconds, stream = 0.0, StringIO()
    console = Console(file=stream, force_terminal=terminal, quiet=quiet, width=80)
    with Watcher(console, "bench", "tokens", clock=lambda: seconds) as watcher:
        watcher.start(100)
        for _ in range(100):
            seconds += 1
            watcher.advance(1)
    return stream.getvalue()


def test_a_log_gets_a_line_every_ten_seconds_with_the_time_left() -> None:
    lines = watch(terminal=False).splitlines()
    assert lines[:2] == [
        "bench: 10 of 100 tokens, 10 s, about 90 s left",
        "bench: 20 of 100 tokens, 20 s, about 80 s left",
    ]
    assert lines[9:] == ["bench: 100 of 100 tokens, 100 s"]


def test_nothing_is_printed_of_what_takes_less() -> None:
    stream = StringIO()
    with Watcher(Console(file=stream), "bench", "tokens", 9, clock=lambda: 0.0) as watcher:
        watcher.advance(9)
    assert stream.getvalue() == ""


def test_a_terminal_has_a_bar_and_no_lines() -> None:
    drawn = watch(terminal=True)
    assert "100 / 100 tokens" in drawn
    assert "of 100 tokens" not in drawn


@pytest.mark.parametrize("terminal", [True, False])
def test_nothing_is_printed_where_quiet_is_asked_for(terminal: bool) -> None:
    assert watch(terminal=terminal, quiet=True) == ""
