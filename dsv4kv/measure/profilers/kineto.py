"""Reads Chrome traces of ``torch.profiler`` (Kineto), of GPUs and of CPUs."""

import json
import re
from array import array
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsv4kv.errors import ProfileError
from dsv4kv.measure.profilers.chrome_file import ChromeFile, Event
from dsv4kv.measure.profilers.joining import find, pick
from dsv4kv.measure.profilers.nesting import self_times
from dsv4kv.measure.profilers.ranges import STEP, Ranges, enclosing
from dsv4kv.measure.profilers.shapes import number_shapes
from dsv4kv.measure.profilers.trace import (
    KERNEL,
    MEMCPY,
    MEMSET,
    NONE,
    OP,
    RANGE,
    Calls,
    Column,
    LaunchShape,
    Names,
    Trace,
    Work,
    constant,
    no_calls,
)

_ON_GPU = {
    "kernel": KERNEL,
    "gpu_memcpy": MEMCPY,
    "gpu_memset": MEMSET,
    "Kernel": KERNEL,  # as written before torch 1.12
    "Memcpy": MEMCPY,
    "Memset": MEMSET,
}
_CALLS = {"cuda_runtime", "cuda_driver", "Runtime"}
_ON_CPU = {"cpu_op": OP, "user_annotation": RANGE, "Operator": OP}
_DEVICES = re.compile(r'"deviceProperties"\s*:\s*\[')
_NS = 1000  # a microsecond
_GPU_COLUMNS = 17  # name, kind, begin, end, device, stream, correlation, bytes, shape (8), node


class _Columns:
    """Columns that grow by rows."""

    def __init__(self, width: int) -> None:
        self._width, self._flat = width, array("q")

    def add(self, *row: Any) -> None:
        """Add a row; what is no number is ``NONE``."""
        try:
            numbers = array("q", row)  # nearly always
        except TypeError:
            numbers = array("q", map(_number, row))
        self._flat.extend(numbers)

    def done(self) -> list[Column]:
        rows = np.frombuffer(self._flat, dtype=np.int64).reshape(-1, self._width)
        return [np.ascontiguousarray(rows[:, i]) for i in range(self._width)]


class _Reader:
    """Sorts events into work of the GPU, calls of the host, and what the host did."""

    def __init__(self) -> None:
        self.names = Names()
        self.gpu = _Columns(_GPU_COLUMNS)
        self.calls = _Columns(4)  # thread, begin, end, correlation
        self.host = _Columns(5)  # name, kind, begin, end, thread
        self._threads: dict[tuple[object, object], int] = {}
        self._zero: float | None = None

    def take(self, event: Event) -> None:
        category = event.get("cat")
        if event.get("ph") != "X" or category is None:
            return
        if category in _ON_GPU:
            self._take_gpu(event, _ON_GPU[category])
        elif category in _CALLS:
            correlation = event.get("args", {}).get("correlation")
            self.calls.add(self._thread(event), *self._times(event), correlation)
        elif category in _ON_CPU:
            name = self.names.number(str(event.get("name", "")))
            self.host.add(name, _ON_CPU[category], *self._times(event), self._thread(event))

    def _take_gpu(self, event: Event, kind: int) -> None:
        args = event.get("args", {})
        grid, block = args.get("grid") or [NONE] * 3, args.get("block") or [NONE] * 3
        self.gpu.add(
            self.names.number(str(event.get("name", ""))),
            kind,
            *self._times(event),
            args.get("device", 0),
            args.get("stream", event.get("tid")),
            args.get("correlation"),
            args.get("bytes", NONE),
            *grid,
            *block,
            args.get("registers per thread", NONE),
            args.get("shared memory", NONE),
            args.get("graph node id", 0),
        )

    def _times(self, event: Event) -> tuple[int, int]:
        """Begin and end in ns since the first event, so that a double keeps every digit."""
        start = float(event["ts"])
        if self._zero is None:
            self._zero = start
        begin = round((start - self._zero) * _NS)
        return begin, begin + round(float(event.get("dur", 0)) * _NS)

    def _thread(self, event: Event) -> int:
        return self._threads.setdefault((event.get("pid"), event.get("tid")), len(self._threads))


def read_kineto(path: Path, step: str = STEP) -> Trace:
    """Read a Chrome trace; ranges (``record_function``) named ``step`` are the steps.

    Where a GPU worked its work is told, else the operations of the CPU by the time they take
    themselves.

    Raises:
        ProfileError: It cannot be read.
    """
    file, reader = ChromeFile(path), _Reader()
    try:
        for event in file:
            reader.take(event)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ProfileError(f"{path} has an event that is none of torch's ({error!r}).") from None
    name, kind, start, end, thread = reader.host.done()
    marked = kind == RANGE
    ranges = Ranges(thread[marked], start[marked], end[marked], name[marked])
    is_step = ranges.name == reader.names.known.get(step, NONE)
    notes = [] if np.any(is_step) else [f"no range is named {step!r}: no steps"]
    gpu, shapes, calls = reader.gpu.done(), list[LaunchShape](), no_calls()
    if len(gpu[0]):
        work, shapes, calls = _gpu_work(gpu, reader.calls.done(), ranges, is_step)
    else:
        notes.insert(0, "no GPU kernels: operations of the CPU, by the time they take themselves")
        work = _cpu_work([name, kind, start, end, thread], ranges, is_step)
    return Trace(
        tool="kineto",
        names=reader.names.listed(),
        work=work,
        shapes=shapes,
        steps_ns=np.stack([ranges.start_ns[is_step], ranges.end_ns[is_step]], axis=1),
        calls=calls,
        devices=_read_devices(file.head),
        notes=notes,
    )


def _gpu_work(
    gpu: list[Column], called: list[Column], ranges: Ranges, is_step: NDArray[np.bool_]
) -> tuple[Work, list[LaunchShape], Calls]:
    name, kind, start, end, device, stream, correlation, size, *shape, node = gpu
    thread, begin, finish, key = called
    in_step, phase = enclosing(ranges, is_step, thread, begin)
    call = find(key, correlation)
    launched = np.unique(call[call != NONE])
    numbers, shapes = number_shapes([*shape, constant(len(name), NONE)])
    work = Work(
        name=name,
        kind=kind,
        start_ns=start,
        end_ns=end,
        self_ns=end - start,
        device=np.maximum(device, 0),
        stream=stream,
        shape=numbers,
        node=np.maximum(node, 0),
        step=pick(in_step, call),
        phase=pick(phase, call),
        bytes=size,
    )
    return work, shapes, Calls(begin[launched], finish[launched], in_step[launched])


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
        stream=thread,
        shape=constant(rows, NONE),
        node=constant(rows, 0),
        step=in_step,
        phase=phase,
        bytes=constant(rows, NONE),
    )


def _read_devices(head: str) -> dict[int, str]:
    """Names of the GPUs, which the file lists before its events."""
    found = _DEVICES.search(head)
    if found is None:
        return {}
    listed, _ = json.JSONDecoder().raw_decode(head, found.end() - 1)
    return {_number(one.get("id")): str(one.get("name")) for one in listed}


def _number(value: object) -> int:
    return int(value) if isinstance(value, int | float) else NONE
