"""What memory and disk can do with objects of a size, and nothing else: limits of the tables.

Each is measured repeatedly, interleaved with what it is the limit of: so both meet the same
moments of a busy machine.
"""

import mmap
import os
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from time import perf_counter_ns

import numpy as np

from dsv4kv.tiers.store import Bytes

_ALIGNED = 4096
_FILL = 0x5A  # untouched zero pages share one physical page and copy too fast
_LEAST_BYTES = 1 << 26  # copied at least: less would stay in the processor's caches


def time_copies(count: int, size: int) -> Generator[tuple[int, int], None, None]:
    """Nanoseconds to copy ``count`` objects of ``size`` bytes to memory, and from it: the same."""
    times = max(1, -(-_LEAST_BYTES // (count * size)))
    source = np.full((times, count, size), _FILL, dtype=np.uint8)
    target = np.ones_like(source)
    for place in cycle(range(times)):
        start_ns = perf_counter_ns()
        for number in range(count):
            target[place, number] = source[place, number]
        taken_ns = perf_counter_ns() - start_ns
        yield taken_ns, taken_ns


def time_disk(
    folder: Path, count: int, size: int, threads: int
) -> Generator[tuple[int, int], None, None]:
    """Nanoseconds to write, and to read, as many pieces of one new file by as many threads.

    Past the page cache where the file system lets them. The disk finds room for each piece, as it
    must for objects; no piece has a name, and nothing is checked.
    """
    whole = -(-size // _ALIGNED) * _ALIGNED
    buffers, path = [_buffer(whole) for _ in range(threads)], folder / "raw"
    with ThreadPoolExecutor(threads) as pool:

        def everywhere(file: int, move: Callable[[int, Bytes, int], None]) -> int:
            def lane(number: int) -> None:
                for place in range(number, count, threads):
                    move(file, buffers[number], place * whole)

            start_ns = perf_counter_ns()
            list(pool.map(lane, range(threads)))
            return perf_counter_ns() - start_ns

        while True:
            file = _open(path)
            try:
                yield everywhere(file, _write), everywhere(file, _read)
            finally:
                os.close(file)
                path.unlink()


def _buffer(size: int) -> Bytes:
    buffer = np.frombuffer(mmap.mmap(-1, size), np.uint8)
    buffer[:] = _FILL
    return buffer


def _open(path: Path) -> int:
    flags = os.O_CREAT | os.O_RDWR
    try:
        return os.open(path, flags | getattr(os, "O_DIRECT", 0), 0o600)
    except OSError:
        return os.open(path, flags, 0o600)


def _write(file: int, data: Bytes, at: int) -> None:
    os.pwrite(file, data.data, at)


def _read(file: int, into: Bytes, at: int) -> None:
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file, at, len(into), os.POSIX_FADV_DONTNEED)
    os.preadv(file, [into.data], at)
