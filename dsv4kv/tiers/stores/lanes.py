"""Threads that move whole files, past the page cache where the file system lets them."""

import errno
import mmap
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from ctypes import addressof, c_char
from functools import partial
from itertools import accumulate, pairwise
from threading import local
from typing import TypeVar

import numpy as np

from dsv4kv.tiers.stores.contract import Bytes

ALIGNED = 4096
"""Addresses, offsets and lengths of ``O_DIRECT`` are multiples of it on every usual disk."""
THREADS = 8
_O_DIRECT = getattr(os, "O_DIRECT", 0)  # Linux's
_NONE, _ZEROS = memoryview(b""), memoryview(bytes(ALIGNED))
MovedT = TypeVar("MovedT")
Stretch = tuple[Bytes, int]
"""Memory, and how many bytes of a file follow on what it takes."""
Read = Callable[[int, Sequence[Stretch]], list[memoryview | None]]
"""Reads stretches that follow on each other, the first at a multiple of ``ALIGNED``.

Returns what follows on each, to be used before the next read of the thread; None where the file
ends before.
"""


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


def open_object(path: str, flags: int) -> int:
    """A descriptor of a plain file, without waiting; whatever else is there is no object.

    Raises:
        OSError: There is no such file, or it cannot be opened.
    """
    try:
        file = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):  # a circle of links, a socket
            raise
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
    mode = os.fstat(file).st_mode
    if not stat.S_ISREG(mode):
        os.close(file)
        code = errno.EISDIR if stat.S_ISDIR(mode) else errno.ENOENT
        raise OSError(code, os.strerror(code), path)
    return file


class Lanes:
    """A pool of threads with a buffer each.

    Attributes:
        direct: Files are moved by ``O_DIRECT``; False once the file system has refused it.
        threads: How many there are.
    """

    def __init__(self, threads: int = THREADS) -> None:
        """Threads start when they are needed."""
        self.direct = bool(_O_DIRECT)
        self.threads = threads
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

        if count == 1 or self.threads == 1:
            return lane()
        lanes: list[Future[None]] = []
        try:
            lanes.extend(self._pool.submit(lane) for _ in range(min(count, self.threads)))
            wait(lanes)
        finally:
            for _ in left:
                pass
            wait(lanes)  # whoever gets the memory back has it alone
        for each in lanes:
            each.result()
        return None

    def reading(self, path: str, do: Callable[[Read], MovedT]) -> MovedT:
        """Open a file for ``do``, which is called again where ``O_DIRECT`` turns out refused.

        Raises:
            OSError: There is no such file, or it cannot be read.
        """

        def move(direct: int) -> MovedT:
            file = open_object(path, os.O_RDONLY | direct)
            try:
                if not direct:
                    _forget(file)
                return do(partial(self._read, file, direct))
            finally:
                os.close(file)

        return self._past_the_cache(move)

    def write(self, path: str, parts: Sequence[tuple[Bytes, bytes]], *, durable: bool) -> None:
        """Make a file of parts: data, zeros and a few bytes that end at a multiple of ``ALIGNED``.

        Args:
            path: Where; replaced if it is there.
            parts: Data and few bytes of each.
            durable: The disk has it when this returns.

        Raises:
            OSError: The disk is full, or the file cannot be written.
        """
        sizes = [round_up(len(data) + len(end)) for data, end in parts]

        def move(direct: int) -> None:
            pieces = list[memoryview]()
            cuts = self._split([data for data, _ in parts], sizes, direct)
            for (data, end), (split, staged) in zip(parts, cuts, strict=True):
                rest, last = len(data) - split, len(staged) - len(end)
                staged[:rest], staged[rest:last] = data.data[split:], _ZEROS[: last - rest]
                staged[last:] = end
                pieces += data.data[:split], staged
            flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | direct
            file = os.open(path, flags, 0o600)
            try:
                if _all(os.pwritev, file, 0, pieces) < sum(sizes):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
                if durable:
                    os.fsync(file)
            finally:
                os.close(file)

        self._past_the_cache(move)

    def _read(
        self, file: int, direct: int, at: int, stretches: Sequence[Stretch]
    ) -> list[memoryview | None]:
        into = [data for data, _ in stretches]
        sizes = [round_up(len(data) + more) for data, more in stretches]
        cuts = self._split(into, sizes, direct)
        pieces = [
            piece
            for data, (split, staged) in zip(into, cuts, strict=True)
            for piece in (data.data[:split], staged)
        ]
        left, after = _all(os.preadv, file, at, pieces), list[memoryview | None]()
        for (data, more), size, (split, staged) in zip(stretches, sizes, cuts, strict=True):
            rest = len(data) - split
            data.data[split:] = staged[:rest]
            end = min(left, len(data) + more) - split
            after.append(staged[rest:end] if left >= len(data) else None)
            left -= size
        return after

    def _past_the_cache(self, move: Callable[[int], MovedT]) -> MovedT:
        if self.direct:
            try:
                return move(_O_DIRECT)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self.direct = False
        return move(0)

    def _split(
        self, parts: Sequence[Bytes], sizes: Sequence[int], direct: int
    ) -> list[tuple[int, memoryview]]:
        """How much of each part the disk can reach itself, and memory for the rest of its size.

        The buffer and what is done with it are ``memoryview``: for a few KiB numpy takes longer
        than the disk, and lets other threads in at every copy.
        """
        splits = [_reached(data, direct) for data in parts]
        needed = sum(sizes) - sum(splits)
        buffer: memoryview = getattr(self._own, "buffer", _NONE)
        if len(buffer) < needed:
            buffer = self._own.buffer = aligned(1 << (needed - 1).bit_length()).data
        ends = accumulate(size - split for size, split in zip(sizes, splits, strict=True))
        starts = pairwise([0, *ends])
        return [(split, buffer[a:b]) for split, (a, b) in zip(splits, starts, strict=True)]


def _reached(data: Bytes, direct: int) -> int:
    if not direct:
        return len(data)
    return 0 if _address(data) % ALIGNED else len(data) // ALIGNED * ALIGNED


def _address(data: Bytes) -> int:
    """Where it begins; numpy's own answer takes four times as long."""
    if data.flags.writeable and len(data):
        return addressof(c_char.from_buffer(data.data))
    return int(data.__array_interface__["data"][0])


def _all(
    move: Callable[[int, Sequence[memoryview], int], int],
    file: int,
    at: int,
    parts: Sequence[memoryview],
) -> int:
    """Move memory from or to a place in a file; how many bytes went."""
    done, size = 0, sum(map(len, parts))
    while done < size:
        moved = move(file, [part for part in parts if part], at + done)
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
