"""One thing that was looked at."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["good", "note", "missing", "broken"]


@dataclass(frozen=True)
class Check:
    """A finding about this machine.

    Attributes:
        topic: What it belongs to: ``machine``, ``software``, ``GPU``, ``profilers``, ``peers`` or
            ``timers``.
        name: What was looked at.
        status: ``missing`` leaves something out, ``broken`` something that `dsv4kv bench` needs.
        found: What is there.
        enables: What it is for.
        advice: What to do; None where nothing is to be done.
    """

    topic: str
    name: str
    status: Status
    found: str
    enables: str
    advice: str | None = None
