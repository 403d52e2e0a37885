"""Step: what memory gives, and how near to it gathers and inserts come."""

from collections.abc import Callable, Iterator
from functools import partial

from dsv4kv.bench.device import measure_peaks
from visit import workloads
from visit.desk import Desk
from visit.place import Place
from visit.plan import QUESTIONS
from visit.stopwatch import Measured, Stopwatch
from visit.workloads import Work

_PEAK_BYTES = 1 << 30
_PEAKS = {"copy": "copy_own", "torch_copy": "copy_torch", "read": "read", "write": "write"}


def run(desk: Desk) -> None:
    """Answer the questions of ``questions.SPEEDS``."""
    with desk.place() as place:
        watch = Stopwatch(desk, place)
        best_tbps = _answer_peaks(place, watch)
        watch.answer("empty_node", Measured(watch.timer.time_floors(), 1, 0), _microseconds)
        for name, make in _works(place):
            found = watch.time(make(), name)
            watch.answer(name, found, _per_entry(found) if "gather" in name else _microseconds)
            if f"{name}_share" in QUESTIONS:
                watch.answer(f"{name}_share", found, _share(found, best_tbps))


def _answer_peaks(place: Place, watch: Stopwatch) -> float:
    """Returns TB/s of the faster copy."""
    found = {}
    for peak in measure_peaks(place.device, place.size(_PEAK_BYTES, 1 << 16), watch.timer):
        found[_PEAKS[peak.name]] = Measured(peak.samples_ns, 1, peak.bytes)
    for name, one in found.items():
        watch.answer(name, one, _tbps(one))
    return max(found["copy_own"].tbps, found["copy_torch"].tbps)


def _works(place: Place) -> Iterator[tuple[str, Callable[[], Work]]]:
    """What is timed, by the question it answers; made when its turn comes."""
    some, many = place.size(131_072, 64), place.size(1 << 20, 96)
    yield "gather_131072", lambda: workloads.gather(place, some)
    yield "gather_ordered", lambda: workloads.gather(place, some, scattered=False)
    yield "gather_u1", lambda: workloads.gather(place, some, unroll=1)
    yield "gather_u2", lambda: workloads.gather(place, some, unroll=2)
    yield "gather_u4", lambda: workloads.gather(place, some, unroll=4)
    yield "gather_1m", lambda: workloads.gather(place, many)
    for requests, chosen in ((64, 1024), (64, 512), (8, 1024)):
        sizes = place.size(requests, 2), place.size(chosen, 32)
        yield f"topk_{requests}x{chosen}", partial(workloads.topk, place, *sizes)
    yield "insert_131072", lambda: workloads.insert(place, some)


def _per_entry(found: Measured) -> Callable[[float], float]:
    return lambda ns: ns / found.entries


def _microseconds(ns: float) -> float:
    return ns / 1e3


def _tbps(found: Measured) -> Callable[[float], float]:
    return lambda ns: found.bytes / ns / 1e3


def _share(found: Measured, best_tbps: float) -> Callable[[float], float]:
    return lambda ns: 100 * found.bytes / ns / 1e3 / best_tbps
