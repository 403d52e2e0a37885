"""What a GPU's cache and the host's pinned memory exchange, and what decode steps notice of it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Event, Thread
from time import perf_counter_ns

from dsv4kv.bench.serve.requests import Requests
from dsv4kv.measure.recorder import DeviceClock
from dsv4kv.measure.statistics import Estimate, summarize
from dsv4kv.ops.launches.copies import Way
from dsv4kv.tiers.families import Family
from dsv4kv.tiers.objects import CacheBytes, Mover
from dsv4kv.transfer.tiers_outcome import CopyRow, Direction, Overlap

_MOST_BYTES = 256 << 20  # of a family at a time
_SPAN = "decode_graph_device"
_WARM_STEPS, _STEPS = 4, 32


def measure_copies(
    cache: CacheBytes, mover: Mover, slot: int, tokens: int, rounds: int
) -> list[CopyRow]:
    """Move every family of a request there and back: gathered, page by page, and as one copy."""
    return [
        _measure_family(cache, mover, family, slot, tokens, rounds)
        for family in cache.families.values()
        if family.objects(tokens)
    ]


def _measure_family(
    cache: CacheBytes, mover: Mover, family: Family, slot: int, tokens: int, rounds: int
) -> CopyRow:
    count = min(family.objects(tokens), max(1, _MOST_BYTES // family.object_bytes))
    units = cache.units(family, slot, tokens)[:, :count]
    data, host = cache.new_objects(family, count), mover.room(count * family.object_bytes)

    def direction(gathered: Callable[[], None], way: Way) -> Direction:
        ways = gathered, partial(mover.by_pages, way, family, units, data)
        return Direction(*_in_turns([*ways, partial(mover.whole, way, host)], rounds))

    there = direction(partial(mover.take, family, units, data), "take")
    back = direction(partial(mover.put, family, units, data), "put")
    return CopyRow(family.name, count, family.object_bytes, there, back)


def _in_turns(calls: Sequence[Callable[[], None]], rounds: int) -> list[Estimate]:
    """Nanoseconds of each, which take turns in every round; the first round warms up."""
    samples: list[list[int]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, taken in zip(calls, samples, strict=True):
            start_ns = perf_counter_ns()
            call()
            taken.append(perf_counter_ns() - start_ns)
    return [summarize(taken[1:]).estimate for taken in samples]


def measure_overlap(
    cache: CacheBytes, mover: Mover, requests: Requests, clock: DeviceClock, slot: int
) -> Overlap:
    """Decode steps of one request alone, and while its largest family goes to the host.

    ``clock`` is the one that times its steps.
    """
    tokens = int(cache.manager.tokens[slot])
    family = max(cache.families.values(), key=lambda f: f.objects(tokens) * f.object_bytes)
    count = min(family.objects(tokens), max(1, _MOST_BYTES // family.object_bytes))
    units = cache.units(family, slot, tokens)[:, :count]
    move = partial(mover.take, family, units, cache.new_objects(family, count))

    def decode() -> Estimate:
        requests.decode(slot, 0, _WARM_STEPS + _STEPS)
        return summarize(clock.read_ns()[_SPAN][-_STEPS:]).estimate

    alone = decode()
    (moved_alone,) = _in_turns([move], _STEPS // 2)
    with _again_and_again(move) as taken:
        during = decode()
    moved_during = summarize(taken).estimate
    size = count * family.object_bytes
    return Overlap(tokens, family.name, size, alone, during, moved_alone, moved_during)


@contextmanager
def _again_and_again(call: Callable[[], None]) -> Iterator[list[int]]:
    """Call by a thread of its own until the block ends; yields the nanoseconds of each call."""
    taken, stop = list[int](), Event()

    def run() -> None:
        while not (stop.is_set() and taken):
            start_ns = perf_counter_ns()
            call()
            taken.append(perf_counter_ns() - start_ns)

    thread = Thread(target=run, daemon=True)
    thread.start()
    try:
        yield taken
    finally:
        stop.set()
        thread.join()
