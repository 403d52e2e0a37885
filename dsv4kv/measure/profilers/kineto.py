"""Reads Chrome traces of ``torch.profiler`` (Kineto), of GPUs and of CPUs."""

import gc
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dsv4kv.errors import ProfileError
from dsv4kv.measure.profilers.chrome_file import ChromeFile
from dsv4kv.measure.profilers.columns import whole_number
from dsv4kv.measure.profilers.joining import find, pick
from dsv4kv.measure.profilers.kineto_events import Events
from dsv4kv.measure.profilers.nesting import self_times
from dsv4kv.measure.profilers.ranges import STEP, THREAD_BITS, Ranges, enclosing
from dsv4kv.measure.profilers.steps import (
    NO_STEPS,
    Launches,
    choose_ranges,
    find_steps,
    tell_instead,
    tell_usual,
)
from dsv4kv.measure.profilers.trace import (
    NONE,
    RANGE,
    Calls,
    Column,
    Trace,
    Work,
    constant,
)

_DEVICES = re.compile(r'"deviceProperties"\s*:\s*\[')
_CPU = "no GPU kernels: operations of the CPU, by the time they take themselves"


def read_kineto(path: Path, step: str = STEP) -> Trace:
    """Read a Chrome trace; ranges (``record_function``) that fit ``step`` are the steps.

    Where a GPU worked its work is told, by those steps or else by what repeats. Where none did,
    the operations of the CPU are told by the time they take themselves.

    Raises:
        ProfileError: It cannot be read.
    """
    file, events = ChromeFile(path), Events()
    with _without_collector():
        for event in file:
            events.take(event)
    if not len(events.gpu) + len(events.host):
        raise ProfileError(
            f"{path} has no kernel and no operation with a time: it is no trace of "
            "torch.profiler, or the profiler was off while the steps ran."
        )
    name, kind, start, end, thread = events.host.done()
    marked = kind == RANGE
    ranges = Ranges(thread[marked], start[marked], end[marked], name[marked])
    read = _read_gpu if len(events.gpu) else _read_cpu
    trace = read(file, events, ranges, step)
    left_out = {
        "are no JSON, as with quotes in their names": file.broken,
        "do not tell when they began or how long they took": events.timeless,
    }
    told = [f"left out: {count:,} events that {why}" for why, count in left_out.items() if count]
    return replace(trace, warnings=[*trace.warnings, *told])


@contextmanager
def _without_collector() -> Iterator[None]:
    """No search for cycles: a million small objects come and go, and none is in one."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _read_gpu(file: ChromeFile, events: Events, ranges: Ranges, step: str) -> Trace:
    names = events.names.listed()
    thread, begin, finish, key, of_graph = events.calls.done()
    called = Ranges(thread, begin, finish, constant(len(thread), NONE))
    name, kind, start, end, device, stream, correlation, size, shape, node = events.gpu.done()
    call = find(key, correlation)
    launches = Launches(called, of_graph > 0, call, name, start, end - start)
    made = launches.made
    is_step, fit = choose_ranges(step, ranges, events.names.known, thread[made], begin[made])
    steps = find_steps(step, ranges, is_step, fit, names, launches)
    return Trace(
        tool="kineto",
        names=names,
        work=Work(
            name=name,
            kind=kind,
            start_ns=start,
            end_ns=end,
            self_ns=end - start,
            device=np.maximum(device, 0),
            stream=stream,
            shape=shape,
            node=np.maximum(node, 0),
            step=pick(steps.step, call),
            phase=pick(steps.phase, call),
            bytes=size,
        ),
        shapes=list(events.shapes),
        steps_ns=steps.times_ns,
        calls=Calls(begin[made], finish[made], steps.step[made]),
        devices=_read_devices(file.around),
        warnings=steps.warnings,
        notes=steps.notes,
    )


def _read_cpu(_file: ChromeFile, events: Events, ranges: Ranges, step: str) -> Trace:
    names, host = events.names.listed(), events.host.done()
    is_step, fit = choose_ranges(step, ranges, events.names.known, host[4], host[2])
    told = tell_usual(step, fit)
    if not np.any(is_step):
        told = [tell_instead(step, NO_STEPS, ranges, names)]
    return Trace(
        tool="kineto",
        names=names,
        work=_cpu_work(host, ranges, is_step),
        shapes=[],
        steps_ns=np.stack([ranges.start_ns, ranges.closed_ns], axis=1)[is_step],
        notes=[_CPU, *told],
    )


def _cpu_work(host: list[Column], ranges: Ranges, is_step: NDArray[np.bool_]) -> Work:
    """Operations and marked ranges; the steps themselves are none of them."""
    self_ns = self_times(*(host[i] for i in (4, 2, 3)))
    kept = np.ones(len(self_ns), dtype=np.bool_)
    kept[np.flatnonzero(host[1] == RANGE)[is_step]] = False
    name, kind, start, end, thread = (column[kept] for column in host)
    in_step, phase = enclosing(ranges, is_step, thread, start)
    rows = len(name)
    return Work(
        name=name,
        kind=kind,
        start_ns=start,
        end_ns=end,
        self_ns=self_ns[kept],
        device=constant(rows, 0),
        stream=thread & ((1 << THREAD_BITS) - 1),
        shape=constant(rows, NONE),
        node=constant(rows, 0),
        step=in_step,
        phase=phase,
        bytes=constant(rows, NONE),
    )


def _read_devices(around: str) -> dict[int, str]:
    """Names of the GPUs, which the file lists before its events, or behind if it was merged."""
    found = _DEVICES.search(around)
    if found is None:
        return {}
    try:
        listed, _ = json.JSONDecoder(strict=False).raw_decode(around, found.end() - 1)
        return {whole_number(one.get("id")): str(one.get("name")) for one in listed}
    except (AttributeError, ValueError, RecursionError):  # the kernels can be told without
        return {}
