"""Which steps work belongs to: ranges that are marked, or else launches of graphs."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsv4kv.measure.profilers.ranges import Ranges, enclosing
from dsv4kv.measure.profilers.trace import NONE, Column, constant

_SUGGESTED = 4
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Steps:
    """Steps, and what lies in them.

    Attributes:
        times_ns: int64[S, 2], begin and end of every step on the host.
        step: Of every call, into the steps, or ``NONE``.
        phase: Of every call, the number of its innermost range's name, or ``NONE``.
    """

    times_ns: Column
    step: Column
    phase: Column


def marked_steps(
    ranges: Ranges, is_step: NDArray[np.bool_], thread: Column, time_ns: Column
) -> Steps:
    """Ranges as steps, of calls at moments on threads."""
    times_ns = np.stack([ranges.start_ns, ranges.closed_ns], axis=1)[is_step]
    return Steps(times_ns, *enclosing(ranges, is_step, thread, time_ns))


def launched_steps(called: Ranges, made: Column) -> Steps:
    """Some of the calls, by their rows, each as a step of its own."""
    step = constant(len(called), NONE)
    step[made] = np.arange(len(made))
    times_ns = np.stack([called.start_ns[made], called.closed_ns[made]], axis=1)
    return Steps(times_ns, step, constant(len(called), NONE))


def tell_instead(step: str, graphs: int, ranges: Ranges, names: Sequence[str]) -> str:
    """What stands for the steps that nobody marked, and which ranges might be them."""
    instead = "every launch of a graph is one" if graphs else "there are no steps"
    found = _suggest(ranges, names)
    more = f"; ranges that repeat, for --step: {', '.join(found)}" if found else ""
    return f"no range is named {step!r}: {instead}{more}"


def tell_empty(step: str, times_ns: Column, in_step: Column) -> list[str]:
    """A warning where steps were marked, and no work was launched inside of them."""
    if not len(times_ns) or not len(in_step) or np.any(in_step != NONE):
        return []
    told = f"no work was launched inside of ranges named {step!r}, on their threads"
    return [f"{told}: name others with --step."]


def _suggest(ranges: Ranges, names: Sequence[str]) -> list[str]:
    """Names of ranges that came more than once, the longest in all first; ``*`` for numbers."""
    calls: dict[str, int] = {}
    spent: dict[str, int] = {}
    lasted = np.maximum(ranges.end_ns - ranges.start_ns, 0)
    counts = np.bincount(ranges.name, minlength=len(names)).tolist()
    totals = np.bincount(ranges.name, lasted, len(names)).tolist()
    for number in np.unique(ranges.name).tolist():
        name = _NUMBER.sub("*", names[number])
        calls[name] = calls.get(name, 0) + counts[number]
        spent[name] = spent.get(name, 0) + totals[number]
    often = [name for name, count in calls.items() if count > 1 and name]
    often.sort(key=lambda name: -spent[name])
    return [f"{name!r} ({calls[name]:,} times)" for name in often[:_SUGGESTED]]
