"""What a profiler saw, whichever it was: columns of work, and the steps it belongs to.

Steps are ranges that are marked, or else what repeats on the host. Times are integer nanoseconds
on the profiler's clock. Columns keep a million rows in memory that a million objects would not
fit in.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from dsv4kv.files import whole_text

Column = NDArray[np.int64]

KINDS: Final = ("kernel", "memcpy", "memset", "graph", "op", "range")
"""Work of a GPU; a graph traced as a whole; an operation or a marked range on a CPU."""
KERNEL, MEMCPY, MEMSET, GRAPH, OP, RANGE = range(len(KINDS))
NONE: Final = -1
"""Stands for an absent index, size or count in a column."""
STEP: Final = "step"
"""The range around a step."""
_NO_RANGE = "no range is named"
INPUTS: Final = "inputs"
"""The range around synthetic inputs: making a step's data, and counting its bytes."""


class Columns:
    """Columns of equal length."""

    start_ns: Column

    def __len__(self) -> int:
        return len(self.start_ns)

    def where(self, chosen: NDArray[np.bool_]) -> Self:
        """Some of the rows."""
        return type(self)(**{name: column[chosen] for name, column in vars(self).items()})


@dataclass(frozen=True)
class Work(Columns):
    """One row for each piece of work."""

    name: Column  # into ``Trace.names``
    kind: Column  # into ``KINDS``
    start_ns: Column
    end_ns: Column
    self_ns: Column  # time that no piece of work inside accounts for; all of it on a GPU
    device: Column  # number of the GPU; 0 on a CPU
    step: Column  # into the steps of the trace, or ``NONE``
    phase: Column  # into ``Trace.names``: the innermost range inside the step, or ``NONE``
    bytes: Column  # bytes moved, as counted by the profiler, or ``NONE``


def make_work(
    name: Column, kind: Column, start_ns: Column, end_ns: Column, **known: Column
) -> Work:
    """Work with defaults for the columns that are unknown."""
    absent, zero = constant(len(name), NONE), constant(len(name), 0)
    others = dict.fromkeys(("step", "phase", "bytes"), absent)
    others |= {"device": zero, "self_ns": end_ns - start_ns}
    return Work(name, kind, start_ns, end_ns, **others | known)


@dataclass(frozen=True)
class Calls:
    """Columns of host calls that launched work: begin, end, and the step or ``NONE``."""

    start_ns: Column
    end_ns: Column
    step: Column


def constant(rows: int, value: int) -> Column:
    """A column of one value."""
    return np.full(rows, value, dtype=np.int64)


@dataclass(frozen=True)
class Trace:
    """One profile."""

    tool: str  # ``nsys``, ``ncu`` or ``kineto``
    names: list[str]  # kernels, operations and ranges
    work: Work
    steps_ns: Column  # int64[S, 2], begin and end of every step on the host
    calls: Calls = field(default_factory=lambda: Calls(*(constant(0, 0) for _ in range(3))))
    devices: dict[int, str] = field(default_factory=dict)  # names of GPUs by number
    version: str | None = None  # version of the tool or of its file format
    warnings: list[str] = field(default_factory=list)  # what spoils the numbers, worst first
    notes: list[str] = field(default_factory=list)  # what else to know


_LONGEST = 1 << 14  # CUTLASS has names of thousands


class Names:
    """Numbers names as they come, the first ``_LONGEST`` characters of each."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def number(self, name: str) -> int:
        """The name's number; a new one for a new name."""
        name = name[:_LONGEST]
        known = self.known.get(name)
        return self.known.setdefault(whole_text(name), len(self.known)) if known is None else known

    def listed(self) -> list[str]:
        """All names by number."""
        return list(self.known)


CORRELATION_BITS = 32  # of a key; above them is what the correlation ids are unique in


def find(keys: Column, wanted: Column) -> Column:
    """Row of each wanted key among the keys, the first of equals; ``NONE`` where it is missing."""
    if not len(keys):
        return constant(len(wanted), NONE)
    order = np.argsort(keys, kind="stable")
    at = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
    found = order[at]
    return np.where((keys[found] == wanted) & (wanted != NONE), found, NONE)


def pick(column: Column, rows: Column) -> Column:
    """Values of rows; ``NONE`` for the row ``NONE``."""
    if not len(column):
        return constant(len(rows), NONE)
    return np.where(rows == NONE, NONE, column[rows])


def split_rows(rows: Column, *keys: Column) -> list[Column]:
    """Rows, cut where a key changes."""
    changed = np.any([np.diff(key[rows]) != 0 for key in keys], axis=0)
    return np.split(rows, np.flatnonzero(changed) + 1) if len(rows) else []


def rows_of_each(values: Column) -> dict[int, Column]:
    """The rows of every value, in order."""
    found = split_rows(np.argsort(values, kind="stable"), values)
    return {int(values[rows[0]]): rows for rows in found}


USUAL: Final = ("execute_*", "step[*", "[Executor] _forward_step *", "ProfilerStep#*")
"""What engines call a step: vLLM's execute_model and execute_context_…, SGLang's step[DECODE bs=8]
and TensorRT-LLM's; and torch's own schedule. The first that work was launched in is taken."""
NO_STEPS: Final = "there are no steps, and the whole capture is reported"
_SUGGESTED = 4
_NUMBER = re.compile(r"\d+")
_LONG = 3.0  # a pause between steps over the longest inside of one, at least
_ALIKE = 2 / 3  # of the steps begin with the same work, at least
THREAD_BITS = 24
"""Of a thread's number; its process is above them, as in the global ids of nsys."""
_ENDS, _BEGINS = 0, 1


@dataclass(frozen=True)
class Ranges(Columns):
    """Marked ranges."""

    thread: Column  # which thread they were marked on, and above ``THREAD_BITS`` of which process
    start_ns: Column
    end_ns: Column
    name: Column  # numbers of their names


def enclosing(
    ranges: Ranges, is_step: NDArray[np.bool_], thread: Column, time_ns: Column
) -> tuple[Column, Column]:
    """The step and the phase that moments on threads are in.

    The step is a number among the ranges that are steps, in their order, the phase the name's
    number of the innermost range that is no step; ``NONE`` each where there is none.
    """
    step, phase = constant(len(thread), NONE), constant(len(thread), NONE)
    steps_before = np.cumsum(is_step) - 1
    on_thread, nothing = rows_of_each(thread), constant(0, 0)
    for one, mine in rows_of_each(ranges.thread).items():
        here = on_thread.get(one, nothing)
        times, inner, outer = _sweep(ranges, mine, is_step)
        found = np.searchsorted(times, time_ns[here], side="right")
        inner, outer = inner[found], outer[found]
        step[here] = np.where(outer == NONE, NONE, steps_before[outer])
        named = (inner != NONE) & ~is_step[inner]
        phase[here] = np.where(named, ranges.name[inner], NONE)
    return step, phase


def _sweep(
    ranges: Ranges, mine: Column, is_step: NDArray[np.bool_]
) -> tuple[Column, Column, Column]:
    """Moments at which a thread's ranges change, and the innermost range and step from then on.

    The last two have an element more than the moments: the first is before all of them.
    """
    mine = mine[ranges.end_ns[mine] > ranges.start_ns[mine]]  # else nothing is in it
    times = np.concatenate([ranges.start_ns[mine], ranges.end_ns[mine]])
    kinds = np.repeat([_BEGINS, _ENDS], len(mine))
    # outer ranges open before inner ones that begin with them, and close after those
    latest_first = np.concatenate([-ranges.end_ns[mine], -ranges.start_ns[mine]])
    order = np.lexsort((latest_first, kinds, times))
    numbers, begins = np.tile(mine, 2)[order].tolist(), (kinds[order] == _BEGINS).tolist()
    are_steps = np.tile(is_step[mine], 2)[order].tolist()
    open_ranges: dict[int, None] = {}  # in order
    open_steps: dict[int, None] = {}
    inner, outer = [NONE], [NONE]
    for i, begins_here, is_one in zip(numbers, begins, are_steps, strict=True):
        for stack in (open_ranges, open_steps) if is_one else (open_ranges,):
            if begins_here:
                stack[i] = None
            elif next(reversed(stack)) == i:
                stack.popitem()
            else:  # ranges overlap
                del stack[i]
        inner.append(next(reversed(open_ranges), NONE))
        outer.append(next(reversed(open_steps), NONE))
    return times[order], np.array(inner, dtype=np.int64), np.array(outer, dtype=np.int64)


@dataclass(frozen=True)
class Launches:
    """What the host launched."""

    called: Ranges  # calls of the host, without names
    of_graph: NDArray[np.bool_]  # of every call, whether it launches a graph
    call: Column  # of every piece of work, the row of its call, or ``NONE``
    work: Work  # what was launched

    @property
    def made(self) -> Column:
        """Rows of the calls that launched work."""
        return np.unique(self.call[self.call != NONE])


def trace_launches(
    tool: str, step: str, ranges: Ranges, names: Names, launches: Launches, **more: Any
) -> Trace:
    """The trace of GPUs' work, in the steps that are marked or that repeat.

    Steps are the marked ranges that ``choose_ranges`` finds. Without any a step is what a process
    launches between long pauses; or a launch of a graph, where nothing else is launched. If that
    gives none there are none, and all work is reported together.

    ``more`` is of the ``Trace``: its warnings come first, its notes last.
    """
    called, made, call, work = launches.called, launches.made, launches.call, launches.work
    is_step, said = choose_ranges(
        step, ranges, names.known, called.thread[made], called.start_ns[made]
    )
    warnings: list[str] = []
    if np.any(is_step):
        in_step, phase = enclosing(ranges, is_step, called.thread, called.start_ns)
        times_ns = np.stack([ranges.start_ns, ranges.end_ns], axis=1)[is_step]
        if len(call) and np.all(pick(in_step, call) == NONE):
            note = f"no work was launched inside of ranges named {step!r}, by their threads"
            warnings.append(f"{note}: name others with --step.")
    else:
        cuts, reason = _repeating(launches)
        said = [note_instead(step, reason, ranges, names.listed())]
        in_step, phase = constant(len(called), NONE), constant(len(called), NONE)
        for number, rows in enumerate(cuts):
            in_step[rows] = number
        times = [(called.start_ns[rows].min(), called.end_ns[rows].max()) for rows in cuts]
        times_ns = np.array(times, dtype=np.int64).reshape(-1, 2)
    is_named = step != STEP  # by the user, who is warned where it is not found
    return Trace(
        tool=tool,
        names=names.listed(),
        work=replace(work, step=pick(in_step, call), phase=pick(phase, call)),
        steps_ns=times_ns,
        calls=Calls(called.start_ns[made], called.end_ns[made], in_step[made]),
        warnings=[*more.pop("warnings", []), *warnings, *said * is_named],
        notes=[*said * (not is_named), *more.pop("notes", [])],
        **more,
    )


def choose_ranges(
    step: str, ranges: Ranges, names: Mapping[str, int], thread: Column, time_ns: Column
) -> tuple[NDArray[np.bool_], list[str]]:
    """Which ranges are the steps: those that fit ``step``, or else that engines call so.

    ``thread`` and ``time_ns``: of the launches. Returns whether a range is a step, and a note if
    they are others than requested.
    """

    def fitting(pattern: str) -> NDArray[np.bool_]:
        wanted = re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
        return np.isin(ranges.name, [n for name, n in names.items() if wanted.fullmatch(name)])

    asked = fitting(step)
    if np.any(asked):
        return asked, []
    for usual in USUAL:
        is_step = _outermost(ranges, fitting(usual))
        if np.any(is_step) and np.any(enclosing(ranges, is_step, thread, time_ns)[0] != NONE):
            return is_step, [f"{_NO_RANGE} {step!r}: the steps are {usual!r}"]
    return asked, []


def note_instead(step: str, instead: str, ranges: Ranges, names: Sequence[str]) -> str:
    """A note on what stands for unmarked steps, and which ranges might be them."""
    calls, spent = Counter[str](), Counter[str]()
    counts = np.bincount(ranges.name, minlength=len(names)).tolist()
    totals = np.bincount(ranges.name, ranges.end_ns - ranges.start_ns, len(names)).tolist()
    for number in np.unique(ranges.name).tolist():
        name = _NUMBER.sub("*", names[number])
        calls[name] += counts[number]
        spent[name] += totals[number]
    often = [name for name, _ in spent.most_common() if name and calls[name] > 1]
    found = ", ".join(f"{name!r} ({calls[name]:,} times)" for name in often[:_SUGGESTED])
    more = f"; ranges that repeat, for --step: {found}" if found else ""
    return f"{_NO_RANGE} {step!r}: {instead}{more}"


def _outermost(ranges: Ranges, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether a chosen range is in no other chosen one of its thread."""
    kept = np.zeros(len(ranges), dtype=np.bool_)
    rows, begin, end = np.flatnonzero(chosen), ranges.start_ns, ranges.end_ns
    until: dict[int, int] = {}
    for row in rows[np.lexsort((-end[rows], begin[rows]))].tolist():
        thread = int(ranges.thread[row])
        if begin[row] >= until.get(thread, begin[row]):
            kept[row], until[thread] = True, end[row]
    return kept


def _repeating(launches: Launches) -> tuple[list[Column], str]:
    """The calls of every step, and what a step is; no step where nothing repeats."""
    made, work = launches.made, launches.work
    process = launches.called.thread[made] >> THREAD_BITS
    each_graph = "every launch of a graph is one"
    first = constant(len(launches.called), NONE)  # name of the first work that a call launched
    known = np.flatnonzero(launches.call != NONE)
    latest_first = known[np.argsort(-work.start_ns[known], kind="stable")]
    first[launches.call[latest_first]] = work.name[latest_first]  # the last one stays
    cuts: list[Column] = []
    only_graphs = bool(len(made)) and bool(np.all(launches.of_graph[made]))
    if only_graphs and len(np.unique(first[made])) == 1:
        return list(made[:, None]), each_graph
    for rows in rows_of_each(process).values():
        mine = made[rows]
        mine = mine[np.argsort(launches.called.start_ns[mine], kind="stable")]
        cuts += _between_pauses(launches.called.start_ns[mine], first[mine], mine)
    if cuts:
        return cuts, "a step is what the host launches between long pauses"
    return (list(made[:, None]), each_graph) if only_graphs else ([], NO_STEPS)


def _between_pauses(begin_ns: Column, first: Column, rows: Column) -> list[Column]:
    """Rows between pauses that are clearly longer than others, if what follows them is alike."""
    # a pause is from begin to begin: copies that wait for the GPU wait inside of their call
    pauses = np.diff(begin_ns)
    by_length = np.argsort(-pauses, kind="stable")
    lengths = np.maximum(pauses[by_length], 1)
    ratios = lengths[:-1] / lengths[1:]
    for count in (1 + np.argsort(-ratios, kind="stable")).tolist():
        if ratios[count - 1] < _LONG:
            break
        at = np.sort(by_length[:count]) + 1
        parts = np.split(first, at)
        alike = max(Counter(int(part[0]) for part in parts).values()) >= _ALIKE * len(parts)
        # two have to be the same in all
        if np.array_equal(parts[0], parts[1]) if len(parts) == 2 else alike:
            return np.split(rows, at)
    return []
