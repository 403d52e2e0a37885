"""Shell scripts are read in time that grows with their length."""

import re
import subprocess
import sys

import pytest

from dsv4kv.budget import servers, shell
from dsv4kv.budget.servers import find_launches
from dsv4kv.errors import ConfigError


class Counting:
    """A pattern that counts the characters that it is given."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self.pattern, self.characters = pattern, 0

    def match(self, text: str) -> re.Match[str] | None:
        self.characters += len(text)
        return self.pattern.match(text)


def test_the_parts_of_a_word_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counting = Counting(shell._ARRAY)
    monkeypatch.setattr(shell, "_ARRAY", counting)
    text = '{"a":' * 10_000
    assert len(list(shell.split_statements(text))) == 1
    assert counting.characters <= 2 * len(text)


def test_containers_are_opened_to_a_bounded_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    filled = list[str]()

    def fill_in(word: str, _: object) -> str:
        filled.append(word)
        return word

    monkeypatch.setattr(servers, "fill_in", fill_in)
    text = "docker run " * 1_000
    assert list(find_launches(text)) == []
    assert len(filled) <= 100 * 1_000


def test_a_default_of_a_variable_is_sought_nearby() -> None:
    assert shell.fill_in("${a:-" + "b" * 999 + "}", {}) == "b" * 999
    longer = "${a:-" + "b" * 1_000 + "}"
    assert shell.fill_in(longer, {}) == longer


def test_a_text_that_is_longer_than_any_command_is_not_read() -> None:
    with pytest.raises(ConfigError, match="no launch command is longer than 256 KiB"):
        list(find_launches("vllm serve a\n" * 2**15))
    with pytest.raises(ConfigError, match="it has 257 launch commands: give those that you mean"):
        list(find_launches("vllm serve a\n" * 257))


def test_blank_lines_are_passed_over_once() -> None:
    program = (
        "from dsv4kv.budget.servers import find_launches; list(find_launches('\\n' * 250_000))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
