"""The tour of a new user finds what it looks for; ``make tour`` goes on it."""

import pytest

from tests.tour import PLACES, faults

PLACE = {place.name: place for place in PLACES}


@pytest.mark.parametrize(
    ("command", "place", "code", "printed", "fault"),
    [
        ("budget", "pipe", 2, b"", "exit code 2, not 0"),
        ("profile smoke --ncu", "pipe", 0, b"", "exit code 0, not 9"),
        ("budget", "pipe", 0, b"Traceback (most recent call last):", "'Traceback' is printed"),
        ("budget", "pipe", 0, b"\x1b[1mbold", "escape codes in a pipe"),
        ("budget", "pipe", 0, b"\xff", "not to be read: "),
        ("budget", "ascii", 0, "µ".encode(), "not to be read: "),
        ("budget", "terminal", 0, b"\x1b[1m" + b"x" * 81, "81 columns: "),
        ("budget", "terminal", 0, "█".encode() * 81, "81 columns: "),
        ("budget", "no-color", 0, b"\x1b[1;32mgreen\x1b[0m", "colours, and NO_COLOR is set"),
    ],
)
def test_what_is_wrong_is_found(
    command: str, place: str, code: int, printed: bytes, fault: str
) -> None:
    assert [
        each.startswith(fault) for each in faults(f"dsv4kv {command}", PLACE[place], code, printed)
    ] == [True] + [False] * (b"\xff" in printed)


@pytest.mark.parametrize(
    ("command", "place", "code", "printed"),
    [
        ("budget", "terminal", 0, b"\x1b[1;32m" + b"x" * 80 + b"\x1b[0m\r\n" + b"y" * 80),
        ("budget", "no-color", 0, b"\x1b[1mbold\x1b[0m \x1b[2K"),
        ("budget --json", "ascii", 0, "µ".encode()),
        ("config show smoke", "terminal", 0, b"x" * 99),
        ("compare results/A.json results/B.json", "pipe", 3, b"UNCLEAR"),
    ],
)
def test_what_is_right_is_not(command: str, place: str, code: int, printed: bytes) -> None:
    assert list(faults(f"dsv4kv {command}", PLACE[place], code, printed)) == []
