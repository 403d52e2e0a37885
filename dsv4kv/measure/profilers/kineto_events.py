"""Sorts the events of a Chrome trace of ``torch.profiler`` into columns."""

from collections.abc import Callable
from typing import Any

from dsv4kv.measure.profilers.chrome_file import Event
from dsv4kv.measure.profilers.columns import Columns, whole_number
from dsv4kv.measure.profilers.joining import CORRELATION_BITS
from dsv4kv.measure.profilers.ranges import THREAD_BITS
from dsv4kv.measure.profilers.trace import (
    KERNEL,
    MEMCPY,
    MEMSET,
    NONE,
    OP,
    RANGE,
    LaunchShape,
    Names,
)

_ON_GPU = {
    "kernel": KERNEL,
    "gpu_memcpy": MEMCPY,
    "gpu_memset": MEMSET,
    "Kernel": KERNEL,  # as written before torch 1.12
    "Memcpy": MEMCPY,
    "Memset": MEMSET,
}
_CALLS = ("cuda_runtime", "cuda_driver", "Runtime")
_ON_CPU = {"cpu_op": OP, "user_annotation": RANGE, "Operator": OP}
_GRAPH_LAUNCH = "GraphLaunch"
_NS = 1000  # a microsecond
_LATEST = 2**61 / _NS  # in µs, so that differences fit an int64; today is 2^60.6
_GPU_COLUMNS = 10  # name, kind, begin, end, device, stream, correlation, bytes, shape, node
_CALL_COLUMNS = 5  # thread, begin, end, correlation, whether it launches a graph
_HOST_COLUMNS = 5  # name, kind, begin, end, thread


class Events:
    """Work of the GPU, calls of the host, and what the host did, in columns.

    Attributes:
        names: Of kernels, operations and ranges.
        gpu: Name, kind, begin, end, device, stream, correlation, bytes, shape, graph node.
        calls: Thread, begin, end, correlation, 1 where it launches a graph.
        host: Name, kind, begin, end, thread.
        shapes: Launch shapes, in the order of their numbers.
        timeless: Events left out, as they do not say when they began or how long they took.
    """

    def __init__(self) -> None:
        self.names = Names()
        self.gpu, self.calls = Columns(_GPU_COLUMNS), Columns(_CALL_COLUMNS)
        self.host = Columns(_HOST_COLUMNS)
        self.shapes: dict[LaunchShape, int] = {}
        self.timeless = 0
        self._numbers: dict[tuple[object, ...], int] = {}
        self._threads: dict[tuple[object, object], int] = {}
        self._processes: dict[object, int] = {}
        self._ranks: dict[str, int] = {}
        self._zero: float | None = None
        self._takers: dict[object, tuple[Callable[[Event, int], None], int]] = {
            **{category: (self._take_gpu, kind) for category, kind in _ON_GPU.items()},
            **{category: (self._take_host, kind) for category, kind in _ON_CPU.items()},
            **dict.fromkeys(_CALLS, (self._take_call, NONE)),
        }

    def take(self, event: Event) -> None:
        """Sort one event in; most are none of these and are left out."""
        category = event.get("cat")
        taker = self._takers.get(category) if isinstance(category, str) else None
        if taker is None or event.get("ph") != "X":
            return
        take, kind = taker
        try:
            take(event, kind)
        except (KeyError, TypeError, ValueError, OverflowError):
            self.timeless += 1

    def _take_call(self, event: Event, _kind: int) -> None:
        correlation = self._key(event, _arguments(event).get("correlation"))
        of_graph = _GRAPH_LAUNCH in str(event.get("name"))
        self.calls.add(self._thread(event), *self._times(event), correlation, of_graph)

    def _take_host(self, event: Event, kind: int) -> None:
        name = self.names.number(str(event.get("name", "")))
        self.host.add(name, kind, *self._times(event), self._thread(event))

    def _take_gpu(self, event: Event, kind: int) -> None:
        get = _arguments(event).get
        self.gpu.add(
            self.names.number(str(event.get("name", ""))),
            kind,
            *self._times(event),
            get("device", 0),
            get("stream", event.get("tid")),
            self._key(event, get("correlation", NONE)),
            get("bytes", NONE),  # kernels have none, and NONE is settled faster than None
            self._shape(get) if kind == KERNEL else NONE,
            get("graph node id", 0),
        )

    def _shape(self, get: Callable[[str], Any]) -> int:
        """Number of a launch shape: many launches have few."""
        grid, block = get("grid"), get("block")
        told = get("registers per thread"), get("shared memory")
        try:  # as they lie there: nearly always known
            return self._numbers[(*grid, *block, *told)]
        except (KeyError, TypeError):
            registers, shared = map(whole_number, told)
            shape = LaunchShape(
                grid=_triple(grid),
                block=_triple(block),
                registers=None if registers == NONE else registers,
                shared_bytes=None if shared == NONE else shared,
            )
            number = self.shapes.setdefault(shape, len(self.shapes))
        if shape.grid and shape.block:
            self._numbers[(*grid, *block, *told)] = number
        return number

    def _key(self, event: Event, correlation: object) -> object:
        """What work finds its call by: every rank counts anew.

        SGLang puts the traces of all ranks into one file and their names before the pids:
        ``[TP01] 4711``. A trace of one process has numbers there.
        """
        pid = event.get("pid")
        if not isinstance(pid, str):
            return correlation
        number = whole_number(correlation)
        rank = self._ranks.setdefault(pid.rpartition(" ")[0], len(self._ranks))
        return NONE if number == NONE else rank << CORRELATION_BITS | number

    def _times(self, event: Event) -> tuple[int, int]:
        """Begin and end in ns since the first event, so that a double keeps every digit."""
        start, length = float(event["ts"]), float(event["dur"])
        if not (abs(start) < _LATEST and length < _LATEST):  # nor is it so for what is no number
            raise OverflowError
        if self._zero is None:
            self._zero = start
        begin = round((start - self._zero) * _NS)
        return begin, begin + max(0, round(length * _NS))

    def _thread(self, event: Event) -> int:
        pid, tid = event.get("pid"), event.get("tid")
        process = self._processes.setdefault(pid, len(self._processes))
        thread = self._threads.setdefault((pid, tid), len(self._threads))
        return process << THREAD_BITS | thread


def _arguments(event: Event) -> dict[str, Any]:
    found = event.get("args")
    return found if isinstance(found, dict) else {}


def _triple(sizes: Any) -> tuple[int, int, int] | None:
    """Blocks or threads (x, y, z); None where it is not that."""
    try:
        x, y, z = sizes
        return int(x), int(y), int(z)
    except (TypeError, ValueError):
        return None
