"""Step: every operation that can be done in several ways, each against the one in use."""

from collections.abc import Callable
from functools import partial

from dsv4kv.ops.cuda.compile import architecture_of
from dsv4kv.ops.spec import VARIANTS
from visit import workloads
from visit.desk import Desk
from visit.place import Place
from visit.stopwatch import Stopwatch
from visit.workloads import Work

_TOKENS = 8192
_CLEAR = 0.01  # what a difference must exceed, besides the spread of equal runs

Make = Callable[[Place, str], Work]


def _flush(kind: str, place: Place, variant: str) -> Work:
    return workloads.flush(place, kind, place.size(_TOKENS, 256), variant=variant)


def _chunk(kind: str, place: Place, variant: str) -> Work:
    return workloads.chunk(place, kind, place.size(_TOKENS, 256), variant=variant)


def _insert(place: Place, variant: str) -> Work:
    return workloads.insert(place, place.size(131_072, 64), variant=variant)


def _topk(requests: int, place: Place, variant: str) -> Work:
    sizes = place.size(requests, 2), place.size(1024, 32)
    return workloads.topk(place, *sizes, variant=variant)


def _attend(requests: int, place: Place, variant: str) -> Work:
    sizes = place.size(requests, 2), place.size(1024, 32), place.size(128, 2)
    return workloads.attend(place, *sizes, variant=variant)


WORKS: dict[str, dict[str, Make]] = {
    "flush": {kind: partial(_flush, kind) for kind in ("csa", "hca")},
    "compress_chunk": {kind: partial(_chunk, kind) for kind in ("csa", "hca")},
    "entry_insert": {"131,072": _insert},
    "attend": {"64 × 1,024": partial(_attend, 64), "1 × 1,024": partial(_attend, 1)},
    "gather_topk": {"64 × 1,024": partial(_topk, 64), "8 × 1,024": partial(_topk, 8)},
}
"""What operations that have several variants are compared on."""


def run(desk: Desk) -> None:
    """Answer the question of ``questions.VARIANTS``; a note holds each pair's ratio."""
    behind = set()
    with desk.place() as place:
        watch = Stopwatch(desk, place)
        for operation in VARIANTS:
            used, *others = _available(place, operation)
            for subject, make in WORKS.get(operation, {}).items():
                for other in others:
                    ratio, spread = _compare(watch, partial(make, place), used, other)
                    pair = {"used": used, "other": other, "ratio": ratio, "spread": spread}
                    desk.note("variant", operation=operation, subject=subject, **pair)
                    behind |= {operation} if ratio < 1 - max(spread, _CLEAR) else set()
    left_out = sorted(set(VARIANTS) - set(WORKS))  # they have no call of their own to time
    told = {"operations": sorted(behind), "not_compared": left_out}
    desk.answer("variants_behind", len(behind), **told)


def _available(place: Place, operation: str) -> list[str]:
    """Variants that the GPU has, the one in use first; the twin has what every GPU has."""
    major, _, minor = place.facts.capability.partition(".")
    architecture = "" if place.small else architecture_of(int(major), int(minor))
    return [name for name, one in VARIANTS[operation].items() if one.runs_on(architecture)]


def _compare(
    watch: Stopwatch, make: Callable[[str], Work], used: str, other: str
) -> tuple[float, float]:
    """Time of ``other`` for one of ``used``, and the larger spread of either with itself.

    Each runs twice, as A B B A: what drifts slowly falls on both alike.
    """
    times = [watch.time(make(name), name).median_ns for name in (used, other, other, used)]
    a, b = (times[0], times[3]), (times[1], times[2])
    return sum(b) / sum(a), max(abs(x - y) / min(x, y) for x, y in (a, b))
