"""Reads what ``nsys export --type=sqlite`` wrote.

Tables are made as they are needed and their columns differ between versions, so both are looked
for, and no version is asked.
"""

from pathlib import Path

import numpy as np

from dsv4kv.measure.profilers.joining import find, pick
from dsv4kv.measure.profilers.nsys_ranges import read_ranges
from dsv4kv.measure.profilers.nsys_work import (
    CORRELATION_MASK,
    TABLES,
    Launched,
    launch_key,
    read_work,
)
from dsv4kv.measure.profilers.ranges import STEP, Ranges, enclosing
from dsv4kv.measure.profilers.sqlite_columns import Database, open_database
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

_WORTH_TELLING = 2  # severity of a diagnostic: 1 is information


def read_nsys(path: Path, step: str = STEP) -> Trace:
    """Read an export; ranges named ``step`` are the steps, or else every launch of a graph.

    Raises:
        ProfileError: It cannot be read.
    """
    with open_database(path) as database:
        return _read(database, step)


def _read(database: Database, step: str) -> Trace:
    names = Names()
    launched, shapes = read_work(database, names)
    called, keys = _read_calls(database, launched)
    call = find(keys, launched.launch)
    ranges = read_ranges(database, names, step)
    is_step = ranges.name == names.known.get(step, NONE)
    notes: list[str] = []
    if np.any(is_step):
        steps_ns = np.stack([ranges.start_ns, ranges.closed_ns], axis=1)[is_step]
        in_step, phase = enclosing(ranges, is_step, called.thread, called.start_ns)
    else:
        steps_ns, in_step = _graph_launches(called, call, launched)
        phase = constant(len(called), NONE)
        instead = "every launch of a graph is one" if len(steps_ns) else "there are no steps"
        notes.append(f"no range is named {step!r}: {instead}")
    made = np.unique(call[call != NONE])
    return Trace(
        tool="nsys",
        names=names.listed(),
        work=_work(launched, pick(in_step, call), pick(phase, call)),
        shapes=shapes,
        steps_ns=steps_ns,
        calls=Calls(called.start_ns[made], called.end_ns[made], in_step[made]),
        devices=_read_devices(database),
        version=_read_version(database),
        warnings=[*_read_diagnostics(database), *_judge(launched)],
        notes=notes,
    )


def _read_calls(database: Database, launched: Launched) -> tuple[Ranges, Column]:
    """Calls of the host, as ranges without names, and the keys that work finds them by."""
    thread, start, end, correlation = database.read(
        f"{TABLES}RUNTIME", ("globalTid", "start", "end", "correlationId")
    )
    keys = launch_key(thread, correlation)
    if not np.any(launched.launch > CORRELATION_MASK):
        keys &= CORRELATION_MASK  # an old export: work does not name its process
    return Ranges(thread, start, end, constant(len(thread), NONE)), keys


def _graph_launches(called: Ranges, call: Column, launched: Launched) -> tuple[Column, Column]:
    """Every launch of a graph as a step: its begin and end, and the step of every call."""
    of_graph = (launched.node > 0) | (launched.kind == GRAPH)
    made = np.unique(call[of_graph & (call != NONE)])
    in_step = constant(len(called), NONE)
    in_step[made] = np.arange(len(made))
    return np.stack([called.start_ns[made], called.end_ns[made]], axis=1), in_step


def _work(launched: Launched, step: Column, phase: Column) -> Work:
    return Work(
        name=launched.name,
        kind=launched.kind,
        start_ns=launched.start_ns,
        end_ns=launched.end_ns,
        self_ns=launched.end_ns - launched.start_ns,
        device=launched.device,
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
    told = [(int(str(severity)), str(text).strip()) for severity, text in rows]
    told = sorted((one for one in told if one[0] >= _WORTH_TELLING), key=lambda one: -one[0])
    return [f"nsys: {text}" for _, text in dict.fromkeys(told)]


def _judge(launched: Launched) -> list[str]:
    graphs = np.count_nonzero(launched.kind == GRAPH)
    if graphs:
        told = f"{graphs} launches of graphs were traced as a whole, their kernels are not in the"
        return [f"{told} file: profile with --cuda-graph-trace=node."]
    if not np.any(launched.kind == KERNEL):
        return ["the file has no GPU kernels: was the profiler on while the steps ran?"]
    return []


def _read_devices(database: Database) -> dict[int, str]:
    rows = database.rows("TARGET_INFO_GPU", ("id", "name"))
    return {int(str(number)): str(name) for number, name in rows}


def _read_version(database: Database) -> str | None:
    rows = database.rows("META_DATA_EXPORT", ("name", "value"))
    found = [value for name, value in rows if name == "EXPORT_SCHEMA_VERSION"]
    return f"export schema {found[0]}" if found else None
