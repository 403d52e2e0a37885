"""Which steps work belongs to: ranges that are marked, or else what repeats on the host."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dsv4kv.measure.profilers.ranges import Ranges, enclosing, fitting, process_of
from dsv4kv.measure.profilers.trace import NONE, Column, constant, pick

USUAL: Final = ("execute_*", "step[*", "[Executor] _forward_step *", "ProfilerStep#*")
"""What engines call a step: vLLM's execute_model and execute_context_…, SGLang's step[DECODE bs=8]
and TensorRT-LLM's; and torch's own schedule. The first that work was launched in is taken."""
NO_STEPS: Final = "there are no steps, and the whole capture is reported"
_SUGGESTED = 4
_NUMBER = re.compile(r"\d+")
_LONG = 3.0  # a pause between steps over the longest inside of one, at least
_ALIKE = 2 / 3  # of the steps begin with the same work, at least


@dataclass(frozen=True)
class Launches:
    """What the host launched.

    Attributes:
        called: Calls of the host.
        of_graph: Of every call, whether it launches a graph.
        call: Of every piece of work, the row of its call, or ``NONE``.
        name: Of every piece of work.
        start_ns: Of every piece of work.
        spent_ns: Of every piece of work, how long it took.
    """

    called: Ranges
    of_graph: NDArray[np.bool_]
    call: Column
    name: Column
    start_ns: Column
    spent_ns: Column

    @property
    def made(self) -> Column:
        """Rows of the calls that launched work."""
        return np.unique(self.call[self.call != NONE])

    def first_names(self) -> Column:
        """Of every call, the name of the first work that it launched, or ``NONE``."""
        found = constant(len(self.called), NONE)
        known = np.flatnonzero(self.call != NONE)
        latest_first = known[np.argsort(-self.start_ns[known], kind="stable")]
        found[self.call[latest_first]] = self.name[latest_first]  # the last to be written stays
        return found


@dataclass(frozen=True)
class Steps:
    """Steps, and what is in them.

    Attributes:
        times_ns: int64[S, 2], begin and end of every step on the host.
        step: Of every call, into the steps, or ``NONE``.
        phase: Of every call, the number of its innermost range's name, or ``NONE``.
        notes: How they were found.
        warnings: What is wrong with them.
    """

    times_ns: Column
    step: Column
    phase: Column
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def choose_ranges(
    step: str, ranges: Ranges, names: Mapping[str, int], thread: Column, time_ns: Column
) -> tuple[NDArray[np.bool_], str]:
    """Which ranges are the steps: those that fit ``step``, or else that engines call so.

    Args:
        step: The name asked for.
        ranges: All ranges.
        names: Numbers of names.
        thread: Of every moment at which work was launched.
        time_ns: The moments.

    Returns:
        Whether a range is a step, and what all of them fit.
    """
    asked = np.isin(ranges.name, fitting(names, step))
    if np.any(asked):
        return asked, step
    for usual in USUAL:
        is_step = _outermost(ranges, np.isin(ranges.name, fitting(names, usual)))
        if np.any(is_step) and np.any(_lie_in(ranges, is_step, thread, time_ns)[0] != NONE):
            return is_step, usual
    return asked, step


def find_steps(
    step: str,
    ranges: Ranges,
    is_step: NDArray[np.bool_],
    fit: str,
    names: Sequence[str],
    launches: Launches,
) -> Steps:
    """The steps of work on GPUs.

    They are the marked ranges that ``choose_ranges`` found. Without any a step is what a process
    launches between long pauses; or a launch of a graph, where nothing else is launched. If that
    gives none there are none, and all work is reported together.
    """
    if np.any(is_step):
        return _marked(step, fit, ranges, is_step, launches)
    cuts, reason = _repeating(launches)
    no_phase = constant(len(launches.called), NONE)
    return Steps(
        *_times(launches.called, cuts), no_phase, [note_instead(step, reason, ranges, names)]
    )


def note_instead(step: str, instead: str, ranges: Ranges, names: Sequence[str]) -> str:
    """What stands for the steps that nobody marked, and which ranges might be them."""
    found = _suggest(ranges, names)
    more = f"; ranges that repeat, for --step: {', '.join(found)}" if found else ""
    return f"no range is named {step!r}: {instead}{more}"


def note_usual(step: str, fit: str) -> list[str]:
    """That other ranges are the steps than those asked for."""
    return [] if fit == step else [f"no range is named {step!r}: the steps are those of {fit!r}"]


def _marked(
    step: str, fit: str, ranges: Ranges, is_step: NDArray[np.bool_], launches: Launches
) -> Steps:
    called, call, spent = launches.called, launches.call, launches.spent_ns
    in_step, phase, adopted = _lie_in(ranges, is_step, called.thread, called.start_ns)
    times_ns = np.stack([ranges.start_ns, ranges.closed_ns], axis=1)[is_step]
    inside = pick(in_step, call) != NONE
    notes, warnings = note_usual(step, fit), list[str]()
    others = inside & (pick(adopted.astype(np.int64), call) == 1)
    if np.any(others):
        share = spent[others].sum() / max(1, spent[inside].sum())
        note = f"{share * 100:.1f} % of the time of work in steps was launched by other threads"
        notes.append(f"{note}, of the same process and inside of the steps' times")
    if len(call) and not np.any(inside):
        note = f"no work was launched inside of ranges named {fit!r}, by their processes"
        warnings.append(f"{note}: name others with --step.")
    return Steps(times_ns, in_step, phase, notes, warnings)


def _lie_in(
    ranges: Ranges, is_step: NDArray[np.bool_], thread: Column, time_ns: Column
) -> tuple[Column, Column, NDArray[np.bool_]]:
    """The step and the phase of moments on threads, and whether another thread marked the step.

    A moment on a thread without a step is in the one that its process is in, as the backward
    pass does, which torch launches from a thread of its own; where two are open it is in none.
    """
    step, phase = enclosing(ranges, is_step, thread, time_ns)
    adopted = np.zeros(len(step), dtype=np.bool_)
    process, owner = process_of(thread), process_of(ranges.thread[is_step])
    begin, end = ranges.start_ns[is_step], ranges.closed_ns[is_step]
    for one in np.unique(owner):
        mine = np.flatnonzero(owner == one)
        mine = mine[np.argsort(begin[mine], kind="stable")]
        free = np.flatnonzero((process == one) & (step == NONE))
        begun = np.searchsorted(begin[mine], time_ns[free], side="right")
        ended = np.searchsorted(np.sort(end[mine]), time_ns[free], side="right")
        last = mine[np.maximum(begun - 1, 0)]
        inside = (begun - ended == 1) & (time_ns[free] < end[last])
        step[free[inside]], adopted[free[inside]] = last[inside], True
    return step, phase, adopted


def _outermost(ranges: Ranges, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Those of the ranges that are in no other of them on their thread."""
    kept = np.zeros(len(ranges), dtype=np.bool_)
    rows, closed = np.flatnonzero(chosen), ranges.closed_ns
    until: dict[int, int] = {}
    for row in rows[np.lexsort((-closed[rows], ranges.start_ns[rows]))].tolist():
        thread = int(ranges.thread[row])
        if ranges.start_ns[row] >= until.get(thread, int(ranges.start_ns[row])):
            kept[row], until[thread] = True, int(closed[row])
    return kept


def _repeating(launches: Launches) -> tuple[list[Column], str]:
    """The calls of every step, and what a step is; no step where nothing repeats."""
    made = launches.made
    process, first = process_of(launches.called.thread[made]), launches.first_names()
    cuts: list[Column] = []
    only_graphs = bool(len(made)) and bool(np.all(launches.of_graph[made]))
    if only_graphs and len(np.unique(first[made])) == 1:
        return list(made[:, None]), "every launch of a graph is one"
    for one in np.unique(process):
        mine = made[process == one]
        mine = mine[np.argsort(launches.called.start_ns[mine], kind="stable")]
        cuts += _between_pauses(launches.called.start_ns[mine], first[mine], mine)
    if cuts:
        return cuts, "a step is what the host launches between long pauses"
    if only_graphs:
        return list(made[:, None]), "every launch of a graph is one"
    return [], NO_STEPS


def _between_pauses(begin_ns: Column, first: Column, rows: Column) -> list[Column]:
    """Rows between pauses that are clearly longer than others, if what follows them is alike.

    A pause is from begin to begin: copies that wait for the GPU wait inside of their call.
    """
    pauses = np.diff(begin_ns)
    by_length = np.argsort(-pauses, kind="stable")
    lengths = np.maximum(pauses[by_length], 1)
    ratios = lengths[:-1] / lengths[1:]
    for count in (1 + np.argsort(-ratios, kind="stable")).tolist():
        if ratios[count - 1] < _LONG:
            break
        at = np.sort(by_length[:count]) + 1
        if _are_alike(np.split(first, at)):
            return np.split(rows, at)
    return []


def _are_alike(parts: Sequence[Column]) -> bool:
    """Whether most begin with the same work; two have to be the same in all."""
    if len(parts) == 2:
        return np.array_equal(parts[0], parts[1])
    ((_, most),) = Counter(int(part[0]) for part in parts).most_common(1)
    return most >= _ALIKE * len(parts)


def _times(called: Ranges, cuts: Iterable[Column]) -> tuple[Column, Column]:
    """Begin and end of every step, and the step of every call."""
    step, times = constant(len(called), NONE), []
    for number, rows in enumerate(cuts):
        step[rows] = number
        times.append((called.start_ns[rows].min(), called.closed_ns[rows].max()))
    return np.array(times, dtype=np.int64).reshape(-1, 2), step


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
