"""What polls have found, as columns."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Column = list[Any]


@dataclass
class Table:
    """Polls of one kind.

    Attributes:
        at_ns: When each was, of ``perf_counter_ns``.
        columns: Answers by name, as many as polls; None where there was none.
    """

    at_ns: list[int] = field(default_factory=list)
    columns: dict[str, Column] = field(default_factory=dict)

    def add(self, at_ns: int, answers: dict[str, Any]) -> None:
        """Add one poll."""
        for name in answers:
            self.columns.setdefault(name, [None] * len(self.at_ns))
        self.at_ns.append(at_ns)
        for name, column in self.columns.items():
            column.append(answers.get(name))


@dataclass
class Readings:
    """Everything that was polled.

    Attributes:
        facts: What does not change of the GPU; empty without one.
        often: Its state at every poll.
        seldom: Its state at every fifth.
        host: The host's.
        absent: What could not be read, or not every time, and why.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    often: Table = field(default_factory=Table)
    seldom: Table = field(default_factory=Table)
    host: Table = field(default_factory=Table)
    absent: dict[str, str] = field(default_factory=dict)


def parse_lines(lines: Iterable[bytes]) -> Readings:
    """Read what ``poll`` wrote; a line that was cut off is left out."""
    found = Readings()
    tables = {"often": found.often, "seldom": found.seldom, "host": found.host}
    for line in lines:
        try:
            answers = json.loads(line)
        except ValueError:
            continue
        kind = answers.pop("kind")
        if kind == "facts":
            found.facts = answers
        elif kind == "absent":
            found.absent |= answers
        else:
            tables[kind].add(answers.pop("at"), answers)
    return found
