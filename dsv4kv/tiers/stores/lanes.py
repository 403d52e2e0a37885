"""Threads that move whole files, past the page cache where the file system lets them."""

import errno
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from ctypes import addressof, c_char
from threading import local
from typing import TypeVar

import numpy as np

from dsv4kv.tiers.stores.contract import Bytes

ALIGNED = 4096
"""Addresses, offsets and lengths of ``O_DIRECT`` are multiples of it on every usual disk."""
THREADS = 8
_O_DIRECT = getattr(os, "O_DIRECT", 0)  # Linux's
_NONE = memoryview(b"")
MovedT = TypeVar("MovedT")


def aligned(size: int) -> Bytes:
    """uint8[size] of new memory that starts at a page: files are read into it without a copy."""
    return np.frombuffer(mmap.mmap(-1, max(1, size)), np.uint8, size)


def aligned_rows(count: int, size: int) -> Bytes:
    """uint8[count, size] of new memory whose rows start at a page each."""
    stride = round_up(max(1, size))
    return aligned(count * stride).reshape(count, stride)[:, :size]


def round_up(size: int) -> int:
    """The next multiple of ``ALIGNED``."""
    return -(-size // ALIGNED) * ALIGNED


class Lanes:
    """A pool of threads with a buffer each.

    Attributes:
        direct: Files are moved by ``O_DIRECT``; False once the file system has refused it.
    """

    def __init__(self, threads: int = THREADS) -> None:
        """Threads start when they are needed."""
        self.direct = bool(_O_DIRECT)
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "lane")
        self._own = local()

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown()

    def each(self, do: Callable[[int], object], count: int) -> None:
        """Do something for 0, 1, … ``count`` - 1 by all threads.

        After an error in one of them, which is raised, or an interruption nothing goes on.
        """
        left = iter(range(count))  # its steps are atomic

        def lane() -> None:
            try:
                for number in left:
                    do(number)
            finally:
                for _ in left:
                    pass

        if count == 1 or self._threads == 1:
            return lane()
        lanes: list[Future[None]] = []
        try:
            lanes.extend(self._pool.submit(lane) for _ in range(min(count, self._threads)))
            wait(lanes)
        finally:
            for _ in left:
                pass
            wait(lanes)  # whoever gets the memory back has it alone
        for each in lanes:
            each.result()
        return None

    def read(self, path: str, into: Bytes, more: int) -> memoryview | None:
        """Fill ``into`` with the beginning of a file; None if the file is shorter.

        Returns up to ``more`` of the bytes that follow, to be used before the thread's next file.

        Raises:
            OSError: There is no such file, or it cannot be read.
        """
        size = len(into)

        def move(direct: int) -> memoryview | None:
            split, staged = self._split(into, round_up(size + more), direct)
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | direct)
            try:
                if not direct:
                    _forget(file)
                got = _all(os.preadv, file, [into.data[:split], staged])
            finally:
                os.close(file)
            into.data[split:] = staged[: size - split]
            return staged[size - split : min(got, size + more) - split] if got >= size else None

        return self._past_the_cache(move)

    def write(self, path: str, data: Bytes, more: bytes, *, durable: bool) -> None:
        """Make a file of ``data`` and what follows, which end at a multiple of ``ALIGNED``.

        Args:
            path: Where; replaced if it is there.
            data: What the file begins with.
            more: How it goes on.
            durable: The disk has it when this returns.

        Raises:
            OSError: The disk is full, or the file cannot be written.
        """
        size = len(data) + len(more)

        def move(direct: int) -> None:
            split, staged = self._split(data, size, direct)
            rest = len(data) - split
            staged[:rest], staged[rest:] = data.data[split:], more
            flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | direct
            file = os.open(path, flags, 0o666)
            try:
                if _all(os.pwritev, file, [data.data[:split], staged]) < size:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
                if durable:
                    os.fsync(file)
            finally:
                os.close(file)

        self._past_the_cache(move)

    def _past_the_cache(self, move: Callable[[int], MovedT]) -> MovedT:
        if self.direct:
            try:
                return move(_O_DIRECT)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self.direct = False
        return move(0)

    def _split(self, data: Bytes, size: int, direct: int) -> tuple[int, memoryview]:
        """How much of ``data`` the disk can reach itself, and a buffer for the rest of a file.

        The buffer and what is done with it are ``memoryview``: for a few KiB numpy takes longer
        than the disk, and lets other threads in at every copy.
        """
        split = len(data)
        if direct:
            split = 0 if _address(data) % ALIGNED else split // ALIGNED * ALIGNED
        buffer: memoryview = getattr(self._own, "buffer", _NONE)
        if len(buffer) < size - split:
            buffer = self._own.buffer = aligned(1 << (size - split - 1).bit_length()).data
        return split, buffer[: size - split]


def _address(data: Bytes) -> int:
    """Where it begins; numpy's own answer takes four times as long."""
    if data.flags.writeable and len(data):
        return addressof(c_char.from_buffer(data.data))
    return int(data.__array_interface__["data"][0])


def _all(
    move: Callable[[int, Sequence[memoryview], int], int], file: int, parts: Sequence[memoryview]
) -> int:
    """Move memory from or to the beginning of a file; how many bytes went."""
    done, size = 0, sum(map(len, parts))
    while done < size:
        moved = move(file, [part for part in parts if part], done)
        done += moved
        if not moved or moved % ALIGNED:  # the end of the file, past which O_DIRECT refuses
            break
        if done < size:
            parts = list(_after(parts, moved))
    return done


def _after(parts: Sequence[memoryview], moved: int) -> Iterator[memoryview]:
    for part in parts:
        yield part[moved:]
        moved = max(0, moved - len(part))


def _forget(file: int) -> None:
    """Let what the page cache has of a file go, so that it comes from the disk."""
    os.fdatasync(file)  # unwritten pages stay
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
