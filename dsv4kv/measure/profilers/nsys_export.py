"""Reads what ``nsys export --type=sqlite`` wrote.

Tables are made as they are needed and their columns differ between versions, so both are looked
for, and no version is asked.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dsv4kv.measure.profilers.joining import find, pick
from dsv4kv.measure.profilers.nsys_devices import read_devices
from dsv4kv.measure.profilers.nsys_ranges import read_ranges
from dsv4kv.measure.profilers.nsys_work import (
    CORRELATION_MASK,
    TABLES,
    Launched,
    launch_key,
    read_work,
)
from dsv4kv.measure.profilers.ranges import STEP, Ranges
from dsv4kv.measure.profilers.sqlite_columns import Database, open_database
from dsv4kv.measure.profilers.steps import Launches, choose_ranges, find_steps
from dsv4kv.measure.profilers.trace import (
    GRAPH,
    KERNEL,
    NONE,
    Calls,
    Column,
    Names,
    Trace,
    Work,
    constant,
)
from dsv4kv.units import counted

_WORTH_TELLING = 2  # severity of a diagnostic: 1 is information
_MOST_TOLD = 8


def read_nsys(path: Path, step: str = STEP) -> Trace:
    """Read an export; ranges named ``step`` are the steps, or else what repeats.

    Raises:
        ProfileError: It cannot be read.
    """
    with open_database(path) as database:
        return _read(database, step)


def _read(database: Database, step: str) -> Trace:
    names = Names()
    launched, shapes = read_work(database, names)
    launched, unended = _with_ends(launched)
    called, keys = _read_calls(database, launched)
    launches = _launches(launched, called, find(keys, launched.launch))
    ranges = read_ranges(database, names, step)
    made = launches.made
    is_step, fit = choose_ranges(
        step, ranges, names.known, called.thread[made], called.start_ns[made]
    )
    ends = [ranges.end_ns, called.end_ns, launched.end_ns]
    ranges, is_step, cut_off = _settle_cut_off(ranges, is_step, ends)
    steps = find_steps(step, ranges, is_step, fit, names.listed(), launches)
    device, devices = read_devices(database, launched)
    return Trace(
        tool="nsys",
        names=names.listed(),
        work=_work(
            launched, device, *(pick(one, launches.call) for one in (steps.step, steps.phase))
        ),
        shapes=shapes,
        steps_ns=steps.times_ns,
        calls=Calls(called.start_ns[made], called.closed_ns[made], steps.step[made]),
        devices=devices,
        version=_read_version(database),
        warnings=[*_read_diagnostics(database), *_judge(launched), *steps.warnings],
        notes=[*steps.notes, *cut_off, *unended],
    )


def _with_ends(launched: Launched) -> tuple[Launched, list[str]]:
    """The work whose end is known, and a note of the other: a capture may cut it off."""
    ended = launched.end_ns >= launched.start_ns
    left = int(np.count_nonzero(~ended))
    if not left:
        return launched, []
    return launched.where(ended), [f"left out: {counted(left, 'piece')} of work without an end"]


def _launches(launched: Launched, called: Ranges, call: Column) -> Launches:
    of_graph = np.zeros(len(called), dtype=np.bool_)
    of_graph[call[(call != NONE) & ((launched.node > 0) | (launched.kind == GRAPH))]] = True
    spent = launched.end_ns - launched.start_ns
    return Launches(called, of_graph, call, launched.name, launched.start_ns, spent)


def _settle_cut_off(
    ranges: Ranges, is_step: NDArray[np.bool_], ends: list[Column]
) -> tuple[Ranges, NDArray[np.bool_], list[str]]:
    """Ranges without the steps that have no end, which are steps, and a note of those.

    A capture that stops inside a step cuts it off: it has no duration and not all of its work.
    Where there are no others, they last until the last of the profile's ends.
    """
    cut_off = is_step & (ranges.end_ns < ranges.start_ns)
    count = int(np.count_nonzero(cut_off))
    if not count:
        return ranges, is_step, []
    told = f"{counted(count, 'step')} without an end"
    if np.any(is_step & ~cut_off):
        return ranges.where(~cut_off), is_step[~cut_off], [f"left out: {told}"]
    last = max(int(times.max(initial=NONE)) for times in ends)
    closed = replace(ranges, end_ns=np.where(cut_off, last, ranges.end_ns))
    return closed, is_step, [f"{told}: taken to last until the end of the profile"]


def _read_calls(database: Database, launched: Launched) -> tuple[Ranges, Column]:
    """Calls of the host, as ranges without names, and the keys that work finds them by."""
    thread, start, end, correlation = database.read(
        f"{TABLES}RUNTIME", ("globalTid", "start", "end", "correlationId")
    )
    keys = launch_key(thread, correlation)
    if not np.any(launched.launch > CORRELATION_MASK):
        keys &= CORRELATION_MASK  # an old export: work does not name its process
    keys[correlation == NONE] = NONE  # or unified memory's copies, without one, would find it
    return Ranges(thread, start, end, constant(len(thread), NONE)), keys


def _work(launched: Launched, device: Column, step: Column, phase: Column) -> Work:
    return Work(
        name=launched.name,
        kind=launched.kind,
        start_ns=launched.start_ns,
        end_ns=launched.end_ns,
        self_ns=launched.end_ns - launched.start_ns,
        device=device,
        stream=launched.stream,
        shape=launched.shape,
        node=launched.node,
        step=step,
        phase=phase,
        bytes=launched.bytes,
    )


def _read_diagnostics(database: Database) -> list[str]:
    """What nsys itself complained about, worst first."""
    rows = database.rows("DIAGNOSTIC_EVENT", ("severity", "text"))
    told = [
        (severity, " ".join(str(text).split()))
        for severity, text in rows
        if isinstance(severity, int) and severity >= _WORTH_TELLING
    ]
    texts = list(dict.fromkeys(text for _, text in sorted(told, key=lambda one: -one[0])))
    left = len(texts) - _MOST_TOLD
    more = [f"nsys: and {left} more in DIAGNOSTIC_EVENT"] if left > 0 else []
    return [*(f"nsys: {text}" for text in texts[:_MOST_TOLD]), *more]


def _judge(launched: Launched) -> list[str]:
    graphs = np.count_nonzero(launched.kind == GRAPH)
    if graphs:
        told = f"{graphs} launches of graphs were traced as a whole, their kernels are not in the"
        return [f"{told} file: profile with --cuda-graph-trace=node."]
    if not np.any(launched.kind == KERNEL):
        return ["the file has no GPU kernels: was the profiler on while the steps ran?"]
    return []


def _read_version(database: Database) -> str | None:
    rows = database.rows("META_DATA_EXPORT", ("name", "value"))
    found = [value for name, value in rows if name == "EXPORT_SCHEMA_VERSION"]
    return f"export schema {found[0]}" if found else None
