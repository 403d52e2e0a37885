"""Reads Chrome traces of ``torch.profiler`` (Kineto), of GPUs and of CPUs.

They are read event by event: as objects, a million events take gigabytes.
"""

import io
import json
import re
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from dsv4kv.errors import ProfileError
from dsv4kv.files import explain, open_regular, unpack, whole_text
from dsv4kv.processes import without_collector
from dsv4kv.profile import trace as tr

Event = dict[str, Any]

_CHUNK = 1 << 18
_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
_LONGEST = 1 << 24  # characters before the first event, or of one
_BETWEEN = re.compile(r"[\s,]*")
_CLOSED = "\n  }"  # an event's end in torch's own layout, in which strings have no line ends
_NO_JSON = re.compile(r"(:\s*)-?(?:inf|nan)\b(?=\s*[,}\]])")  # as C++ writes it
_MOST_BROKEN = 10_000  # events


class ChromeFile:
    """Iterates over a trace's events; ``around`` is the other text. Raises ``ProfileError``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.around = ""
        self.broken = 0

    def __iter__(self) -> Iterator[Event]:
        try:
            raw = open_regular(self.path)
        except OSError as error:
            raise ProfileError(
                f"{self.path} cannot be read ({error.strerror}): name a Chrome trace, .json or "
                ".json.gz."
            ) from None
        with raw, io.TextIOWrapper(unpack(raw), encoding="utf-8-sig", errors="replace") as file:
            try:
                yield from self._events(file, self._skip_head(file))
            except (RecursionError, ValueError) as error:
                raise ProfileError(f"{self.path} has {explain(error)}.") from None
            except (OSError, EOFError, zlib.error) as error:
                raise ProfileError(f"{self.path} is damaged or cut short ({error}).") from None

    def _skip_head(self, file: TextIO) -> str:
        text = ""
        while chunk := file.read(_CHUNK):
            text += chunk
            if text.lstrip().startswith("["):  # a list of events alone is a trace, too
                return text.lstrip()[1:]
            if found := _EVENTS.search(text):
                self.around = text[: found.start()]
                return text[found.end() :]
            if len(text) > _LONGEST:
                break
        raise ProfileError(
            f"{self.path} has no traceEvents: it is no Chrome trace, which torch.profiler "
            "writes with export_chrome_trace."
        )

    def _events(self, file: TextIO, text: str) -> Iterator[Event]:
        decode, at = json.JSONDecoder(strict=False).raw_decode, 0
        while True:
            between = _BETWEEN.match(text, at)
            assert between is not None  # it fits nothing, too
            at = between.end()
            if at > _CHUNK:  # a decoder that fails counts the lines before its place
                text, at = text[at:], 0
            if text.startswith("]", at):
                self.around += text[at:] + file.read(_CHUNK)
                return
            try:
                event, at = decode(text, at)
            except json.JSONDecodeError:
                end = _end_of_event(text, at)
                if end < 0:
                    text, at = self._more(file, text[at:]), 0
                    continue
                try:
                    event = json.loads(_NO_JSON.sub(r"\1NaN", text[at:end]), strict=False)
                except json.JSONDecodeError:
                    self.broken, event = self.broken + 1, None
                    if self.broken > _MOST_BROKEN:
                        raise ProfileError(
                            f"{self.path} has over {_MOST_BROKEN:,} events that are no JSON: it "
                            "is damaged, or no Chrome trace."
                        ) from None
                at = end
            if isinstance(event, dict):
                yield event

    def _more(self, file: TextIO, text: str) -> str:
        mended = _NO_JSON.sub(r"\1NaN", text)
        if mended != text:
            return mended
        # an event is decoded anew with what follows: as much as there is, so that it is rarely
        chunk = file.read(max(_CHUNK, len(text)))
        if not chunk or len(text) > _LONGEST:
            raise ProfileError(
                f"{self.path} has an event that does not end: it is damaged or cut short."
            )
        return text + chunk


def _end_of_event(text: str, at: int) -> int:
    """End of an event in torch's own layout; -1 in another layout, or without an end."""
    end = text.find(_CLOSED, at) if text.startswith("{\n", at) else -1
    return end + len(_CLOSED) if end > 0 and text.count('"ph"', at, end) == 1 else -1


_LIMIT = 1 << 63


class Numbers:
    """Rows of integers, kept as columns; what is no such number is ``NONE``."""

    def __init__(self, width: int) -> None:
        self._width, self._flat = width, array("q")

    def __len__(self) -> int:
        return len(self._flat) // self._width

    def add(self, *row: Any) -> None:
        """Add a row of ``width`` values."""
        try:
            self._flat.extend(array("q", row))  # nearly always
        except (TypeError, OverflowError):
            self._flat.extend(map(whole_number, row))

    def done(self) -> list[tr.Column]:
        """int64[rows] for each column."""
        rows = np.array(self._flat, dtype=np.int64).reshape(-1, self._width)
        return list(np.ascontiguousarray(rows.T))


def whole_number(value: object) -> int:
    """The value as an int64, ``NONE`` where it is none."""
    try:
        number = int(value) if isinstance(value, int | float) else tr.NONE
    except (ValueError, OverflowError):  # not a number, or infinite
        return tr.NONE
    return number if -_LIMIT <= number < _LIMIT else tr.NONE


_ON_GPU = {"kernel": tr.KERNEL, "gpu_memcpy": tr.MEMCPY, "gpu_memset": tr.MEMSET}
_CALLS = ("cuda_runtime", "cuda_driver")
_ON_CPU = {"cpu_op": tr.OP, "user_annotation": tr.RANGE}
_GRAPH_LAUNCH = "GraphLaunch"
_NS = 1000  # a microsecond
_LATEST = 2**61 / _NS  # in µs, so that differences fit an int64; today is 2^60.6
_GPU_COLUMNS = 7  # name, kind, begin, end, device, correlation, bytes
_CALL_COLUMNS = 5  # thread, begin, end, correlation, whether it launches a graph
_HOST_COLUMNS = 5  # name, kind, begin, end, thread


class Events:
    """Work of the GPU, calls of the host, and what the host did, in columns."""

    def __init__(self) -> None:
        self.names = tr.Names()  # of kernels, operations and ranges
        self.gpu, self.calls = Numbers(_GPU_COLUMNS), Numbers(_CALL_COLUMNS)
        self.host = Numbers(_HOST_COLUMNS)
        self.timeless = 0  # events left out, as they do not say when or how long
        self._threads: dict[tuple[object, object], int] = {}
        self._processes: dict[object, int] = {}
        self._ranks: dict[str, int] = {}
        self._zero: float | None = None

    def take(self, event: Event) -> None:
        """Sort one event in; most are none of these and are skipped."""
        category = event.get("cat")
        if event.get("ph") != "X" or not isinstance(category, str):
            return
        arguments = event.get("args")
        get = (arguments if isinstance(arguments, dict) else {}).get
        try:
            if category in _ON_GPU:
                self.gpu.add(
                    self.names.number(str(event.get("name", ""))),
                    _ON_GPU[category],
                    *self._times(event),
                    get("device", 0),
                    self._key(event, get("correlation", tr.NONE)),
                    get("bytes", tr.NONE),  # kernels have none, and NONE is settled faster
                )
            elif category in _ON_CPU:
                name = self.names.number(str(event.get("name", "")))
                times = self._times(event)
                self.host.add(name, _ON_CPU[category], *times, self._thread(event))
            elif category in _CALLS:
                correlation = self._key(event, get("correlation"))
                of_graph = _GRAPH_LAUNCH in str(event.get("name"))
                self.calls.add(self._thread(event), *self._times(event), correlation, of_graph)
        except (KeyError, TypeError, ValueError, OverflowError):
            self.timeless += 1

    def _key(self, event: Event, correlation: object) -> object:
        # SGLang puts the traces of all ranks, each of which counts anew, into one file and their
        # names before the pids: ``[TP01] 4711``. A trace of one process has numbers there.
        pid = event.get("pid")
        if not isinstance(pid, str):
            return correlation
        number = whole_number(correlation)
        rank = self._ranks.setdefault(pid.rpartition(" ")[0], len(self._ranks))
        return tr.NONE if number == tr.NONE else rank << tr.CORRELATION_BITS | number

    def _times(self, event: Event) -> tuple[int, int]:
        start, length = float(event["ts"]), float(event["dur"])
        if not (abs(start) < _LATEST and length < _LATEST):  # nor is it so for what is no number
            raise OverflowError
        if self._zero is None:  # times since the first event: a double keeps every digit
            self._zero = start
        begin = round((start - self._zero) * _NS)
        return begin, begin + max(0, round(length * _NS))

    def _thread(self, event: Event) -> int:
        pid, tid = event.get("pid"), event.get("tid")
        process = self._processes.setdefault(pid, len(self._processes))
        thread = self._threads.setdefault((pid, tid), len(self._threads))
        return process << tr.THREAD_BITS | thread


def self_times(thread: tr.Column, start_ns: tr.Column, end_ns: tr.Column) -> tr.Column:
    """Durations less the operations directly inside, on the same thread."""
    left = (end_ns - start_ns).tolist()
    outer: list[tuple[int, int, int]] = []  # open rows, with thread and end
    order = np.lexsort((-end_ns, start_ns, thread))
    columns = (order, thread[order], start_ns[order], end_ns[order])
    for row, on, start, end in zip(*(column.tolist() for column in columns), strict=True):
        while outer and (outer[-1][1] != on or outer[-1][2] <= start):
            outer.pop()
        if outer:
            left[outer[-1][0]] -= min(end, outer[-1][2]) - start
        outer.append((row, on, end))
    return np.array(left, dtype=np.int64)


_DEVICES = re.compile(r'"deviceProperties"\s*:\s*\[')
_CPU = "no GPU kernels: operations of the CPU, by the time they take themselves"


def read_kineto(path: Path, step: str = tr.STEP) -> tr.Trace:
    """Read a Chrome trace; ranges (``record_function``) that fit ``step`` are the steps.

    A GPU's work is reported if there is any, by those steps or else by what repeats; otherwise the
    operations of the CPU, by their self time. Raises ``ProfileError``.
    """
    file, events = ChromeFile(path), Events()
    with without_collector():
        for event in file:
            events.take(event)
    if not len(events.gpu) + len(events.host):
        raise ProfileError(
            f"{path} has no kernel and no operation with a time: it is no trace of "
            "torch.profiler, or the profiler was off while the steps ran."
        )
    name, kind, start, end, thread = host = events.host.done()
    marked = kind == tr.RANGE
    ranges = tr.Ranges(thread[marked], start[marked], end[marked], name[marked])
    if len(events.gpu):
        launches = _read_launches(events)
        devices = _read_devices(file.around)
        trace = tr.trace_launches("kineto", step, ranges, events.names, launches, devices=devices)
    else:
        trace = _read_cpu(events.names, host, ranges, step)
    left_out = {
        "are no JSON, as with quotes in their names": file.broken,
        "have no start time or no duration": events.timeless,
    }
    dropped = [f"omitted: {count:,} events that {why}" for why, count in left_out.items() if count]
    return replace(trace, warnings=[*trace.warnings, *dropped])


def _read_launches(events: Events) -> tr.Launches:
    thread, begin, finish, key, of_graph = events.calls.done()
    name, kind, start, end, device, correlation, size = events.gpu.done()
    work = tr.make_work(name, kind, start, end, device=np.maximum(device, 0), bytes=size)
    called = tr.Ranges(thread, begin, finish, tr.constant(len(thread), tr.NONE))
    return tr.Launches(called, of_graph > 0, tr.find(key, correlation), work)


def _read_cpu(names: tr.Names, host: list[tr.Column], ranges: tr.Ranges, step: str) -> tr.Trace:
    _, kind, start, end, thread = host
    is_step, notes = tr.choose_ranges(step, ranges, names.known, thread, start)
    if not np.any(is_step):
        notes = [tr.note_instead(step, tr.NO_STEPS, ranges, names.listed())]
    self_ns = self_times(thread, start, end)
    kept = np.ones(len(self_ns), dtype=np.bool_)
    kept[np.flatnonzero(kind == tr.RANGE)[is_step]] = False  # steps themselves are no work
    in_step, phase = tr.enclosing(ranges, is_step, thread[kept], start[kept])
    place = {"step": in_step, "phase": phase}
    work = tr.make_work(*(column[kept] for column in host[:4]), self_ns=self_ns[kept], **place)
    return tr.Trace(
        tool="kineto",
        names=names.listed(),
        work=work,
        steps_ns=np.stack([ranges.start_ns, ranges.end_ns], axis=1)[is_step],
        warnings=[] if step == tr.STEP else notes,
        notes=[_CPU, *(notes if step == tr.STEP else [])],
    )


def _read_devices(around: str) -> dict[int, str]:
    found = _DEVICES.search(around)
    if found is None:
        return {}
    try:
        listed, _ = json.JSONDecoder(strict=False).raw_decode(around, found.end() - 1)
        return {whole_number(one.get("id")): whole_text(str(one.get("name"))) for one in listed}
    except (AttributeError, ValueError, RecursionError):  # the kernels can be listed without
        return {}
