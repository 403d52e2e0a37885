"""What memory and disk can do with objects of a size, and nothing else: limits of the tables."""

import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter_ns

import numpy as np

from dsv4kv.tiers.stores.contract import Bytes

_ALIGNED = 4096
_FILL = 0x5A  # untouched zero pages share one physical page and copy too fast
_LEAST_BYTES = 1 << 26  # copied at least: less would stay in the processor's caches


def time_copies(count: int, size: int, rounds: int) -> list[int]:
    """Nanoseconds to copy ``count`` objects of ``size`` bytes, each round, memory to memory."""
    times = max(1, -(-_LEAST_BYTES // (count * size)))
    source = np.full((times, count, size), _FILL, dtype=np.uint8)
    target = np.ones_like(source)
    samples = list[int]()
    for round_number in range(rounds):
        place = round_number % times
        start_ns = perf_counter_ns()
        for number in range(count):
            target[place, number] = source[place, number]
        samples.append(perf_counter_ns() - start_ns)
    return samples


def time_files(
    folder: Path, count: int, size: int, threads: int, rounds: int
) -> tuple[list[int], list[int]]:
    """Nanoseconds to write, and to read, as many files of a size by as many threads, each round.

    Past the page cache where the file system lets them; no names are changed, nothing is checked.
    """
    whole = -(-size // _ALIGNED) * _ALIGNED
    buffers = [_buffer(whole) for _ in range(threads)]
    paths = [str(folder / f"raw-{number}") for number in range(count)]
    written, read = list[int](), list[int]()
    with ThreadPoolExecutor(threads) as pool:

        def everywhere(move: Callable[[str, Bytes], None]) -> int:
            def lane(number: int) -> None:
                for path in paths[number::threads]:
                    move(path, buffers[number])

            start_ns = perf_counter_ns()
            list(pool.map(lane, range(threads)))
            return perf_counter_ns() - start_ns

        try:
            for _ in range(rounds):
                for path in paths:
                    Path(path).unlink(missing_ok=True)
                written.append(everywhere(_write))
                read.append(everywhere(_read))
        finally:
            for path in paths:
                Path(path).unlink(missing_ok=True)
    return written, read


def _buffer(size: int) -> Bytes:
    buffer = np.frombuffer(mmap.mmap(-1, size), np.uint8)
    buffer[:] = _FILL
    return buffer


def _open(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | getattr(os, "O_DIRECT", 0), 0o600)
    except OSError:
        return os.open(path, flags, 0o600)


def _write(path: str, data: Bytes) -> None:
    file = _open(path, os.O_CREAT | os.O_WRONLY)
    try:
        os.pwrite(file, data.data, 0)
    finally:
        os.close(file)


def _read(path: str, into: Bytes) -> None:
    file = _open(path, os.O_RDONLY)
    try:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.preadv(file, [into.data], 0)
    finally:
        os.close(file)
