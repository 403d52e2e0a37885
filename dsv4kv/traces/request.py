"""Requests of a trace: block ids as runs of consecutive ids, requests as columns, sessions.

Agentic prompts list ids 59 to 1 as runs.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Self, overload

import numpy as np
from numpy.typing import NDArray

from dsv4kv.prefix.paths import Ints, join_runs


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a serving trace.

    Attributes:
        arrival_s: Arrival in seconds from the start of the trace.
        input_tokens: Prompt length in tokens, at least 1.
        output_tokens: Generated length in tokens, at least 0.
        prefix_hashes: One id per ``hash_block_tokens`` tokens of the prompt (the last may stand
            for a partial block), equal ids meaning equal tokens *and* equal history;
            empty where the trace has none. A tuple, or ``IdRuns`` where ids come in long runs.
        hash_block_tokens: Tokens one id stands for; 0 where the trace has none.
        session: Number of the conversation it is a turn of; None where the trace does not say.
        answer_s: How long its answer took when it was recorded; None likewise. Requests are equal
            whether it is known or not.
    """

    arrival_s: float
    input_tokens: int
    output_tokens: int
    prefix_hashes: Sequence[int] = ()
    hash_block_tokens: int = 0
    session: int | None = field(default=None, compare=False)
    answer_s: float | None = field(default=None, compare=False)

    @property
    def total_tokens(self) -> int:
        """Prompt and output together, in tokens."""
        return self.input_tokens + self.output_tokens


class IdRuns(Sequence[int]):
    """A sequence of whole numbers that takes the memory of its runs; equal to any equal sequence.

    Attributes:
        starts: int64[runs]: first number of every run.
        counts: int64[runs]: numbers in it, at least 1.
    """

    __slots__ = ("_known_ends", "counts", "starts")

    def __init__(self, starts: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        """Take over the arrays."""
        self.starts = starts
        self.counts = counts
        self._known_ends: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Self:
        """Find the runs of a list.

        Raises:
            OverflowError: A number that 64 bits cannot hold.
        """
        values = np.array(numbers, np.int64)
        breaks = np.flatnonzero(values[1:] != values[:-1] + 1) + 1
        edges = np.concatenate([[0], breaks, [len(values)]]) if len(values) else breaks
        first = edges[:-1]
        return cls(values[first], edges[1:] - first)

    def first(self, count: int) -> "IdRuns":
        """The first ``count`` numbers, of at least so many."""
        whole = int(self._ends.searchsorted(count))
        counts = self.counts[: whole + 1].copy()
        if whole < len(counts):
            counts[whole] -= self._ends[whole] - count
        kept = counts > 0
        return IdRuns(self.starts[: whole + 1][kept], counts[kept])

    def moved(self, offset: int) -> "IdRuns":
        """All numbers, ``offset`` more."""
        return IdRuns(self.starts + offset, self.counts)

    def array(self) -> NDArray[np.int64]:
        """All numbers, int64."""
        steps = np.ones(len(self), dtype=np.int64)
        if steps.size:
            firsts = self._ends - self.counts
            steps[firsts[1:]] = self.starts[1:] - (self.starts + self.counts)[:-1] + 1
            steps[0] = self.starts[0]
        return steps.cumsum()

    def lie_in(self, low: int, high: int) -> bool:
        """Whether all numbers are from ``low`` to below ``high``."""
        starts, ends = self.starts, self.starts + self.counts
        return bool((starts >= low).all() and (ends <= high).all())

    @property
    def _ends(self) -> NDArray[np.int64]:
        """int64[runs]: how many numbers there are up to the end of every run."""
        if self._known_ends is None:
            self._known_ends = self.counts.cumsum()
        return self._known_ends

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...
    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        places = range(len(self))[index]
        if isinstance(places, int):
            run = int(self._ends.searchsorted(places, side="right"))
            return int(self.starts[run]) + places - int(self._ends[run] - self.counts[run])
        if places.step != 1:
            return tuple(self)[index]
        return tuple(islice(self._from(places.start), len(places)))

    def __iter__(self) -> Iterator[int]:
        return self._from(0)

    def _from(self, place: int) -> Iterator[int]:
        """Numbers from a place on; only the runs from there are looked at."""
        run = int(self._ends.searchsorted(place, side="right"))
        before = int(self._ends[run - 1]) if run else 0
        starts, counts = self.starts[run:].tolist(), self.counts[run:].tolist()
        for start, count in zip(starts, counts, strict=True):
            yield from range(start + max(0, place - before), start + count)
            before += count

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        if isinstance(other, IdRuns) and self._has_runs_of(other):
            return True
        return len(self) == len(other) and all(
            one == two for one, two in zip(self, other, strict=True)
        )

    def _has_runs_of(self, other: "IdRuns") -> bool:
        return np.array_equal(self.starts, other.starts) and np.array_equal(
            self.counts, other.counts
        )

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"IdRuns({len(self):,} ids in {len(self.starts):,} runs)"


class GrowingRuns:
    """Numbers of one list after the other, of which each mostly begins as the one before."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._counts: list[int] = []
        self._total = 0

    def cut(self, count: int) -> None:
        """Keep the first ``count`` numbers, of at least so many."""
        gone, self._total = self._total - count, count
        while gone and gone >= self._counts[-1]:
            gone -= self._counts.pop()
            self._starts.pop()
        if gone:
            self._counts[-1] -= gone

    def extend(self, numbers: Sequence[int]) -> None:
        """Append numbers, of 64 bits; a run that goes on in them stays one."""
        starts, counts = self._starts, self._counts
        following = starts[-1] + counts[-1] if starts else None
        for number in numbers:
            if number == following:
                counts[-1] += 1
            else:
                starts.append(number)
                counts.append(1)
            following = number + 1
        self._total += len(numbers)

    def lists(self) -> tuple[list[int], list[int]]:
        """First number and length of every run."""
        return self._starts, self._counts

    def runs(self) -> IdRuns:
        """The numbers as they are now."""
        return IdRuns(np.array(self._starts, np.int64), np.array(self._counts, np.int64))


def list_runs(ids: Sequence[int]) -> tuple[list[int], list[int]]:
    """First id and length of every run: without arrays, which are dear where there are few."""
    if type(ids) is IdRuns:  # isinstance asks Sequence's registry
        return ids.starts.tolist(), ids.counts.tolist()
    growing = GrowingRuns()
    growing.extend(ids)
    return growing.lists()


def as_runs(ids: Sequence[int]) -> IdRuns:
    """Ids as runs, if they are not yet; unsigned ones wrap around."""
    return ids if isinstance(ids, IdRuns) else IdRuns.of(signed(ids))


def signed(ids: Sequence[int]) -> "array[int]":
    """64-bit ids; unsigned ones wrap around, which keeps them apart."""
    try:
        return array("q", ids)
    except OverflowError:
        return array("q", [(number + 2**63) % 2**64 - 2**63 for number in ids])


class RunBuffer:
    """Ids of requests as they come."""

    def __init__(self) -> None:
        self._clear()

    def __len__(self) -> int:
        """Runs, not yet joined."""
        return len(self._start)

    def add(self, request: int, ids: Sequence[int]) -> None:
        """Add all ids of a request; requests come in order."""
        if type(ids) is IdRuns:  # isinstance asks Sequence's registry, for every request
            self._start.frombytes(ids.starts.tobytes())
            self._count.frombytes(ids.counts.tobytes())
            rows = len(ids.starts)
        else:
            self._start.extend(signed(ids))
            rows = len(ids)
            self._count.extend(_ONE * rows)
        self._request.extend(array("q", [request]) * rows)

    def extend(self, request: Ints, start: Ints, count: Ints) -> None:
        """Add runs of requests, int64[runs] each; in order."""
        self._request.frombytes(request.tobytes())
        self._start.frombytes(start.tobytes())
        self._count.frombytes(count.tobytes())

    def pop(self) -> tuple[Ints, Ints, Ints]:
        """Take out request, first id and length of every maximal run, int64[runs] each."""
        columns = (self._request, self._start, self._count)
        request, start, count = (np.frombuffer(column, np.int64) for column in columns)
        self._clear()
        return join_runs(request, start, count)

    def _clear(self) -> None:
        self._request, self._start, self._count = array("q"), array("q"), array("q")


_ONE = array("q", [1])


_BATCH_REQUESTS = 256  # few, for their prompts may be long


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests that follow each other.

    Attributes:
        arrival_s: float64[requests].
        input_tokens: int64[requests].
        output_tokens: int64[requests].
        hash_block_tokens: Tokens that one id stands for; 0 where no request has ids.
        request: int64[runs]: whose the run of ids is, from 0; in the order of the prompts.
        start: int64[runs]: its first id.
        count: int64[runs]: its length; the run is as long as can be.
    """

    arrival_s: NDArray[np.float64]
    input_tokens: Ints
    output_tokens: Ints
    hash_block_tokens: int
    request: Ints
    start: Ints
    count: Ints

    @classmethod
    def of(cls, requests: Sequence[Request]) -> Self:
        """The same requests, at least one, as columns."""
        runs = RunBuffer()
        for number, request in enumerate(requests):
            runs.add(number, request.prefix_hashes)
        return cls(
            np.array([request.arrival_s for request in requests], np.float64),
            np.array([request.input_tokens for request in requests], np.int64),
            np.array([request.output_tokens for request in requests], np.int64),
            next((size for request in requests if (size := request.hash_block_tokens)), 0),
            *runs.pop(),
        )


def batches_of(requests: Iterable[Request]) -> Iterator[Batch]:
    """The same requests as columns."""
    left = iter(requests)
    while rows := list(islice(left, _BATCH_REQUESTS)):
        yield Batch.of(rows)


class Sessions:
    """Finds the session of every request, given in order.

    A request goes on with the session whose last turn its prompt begins with: with all of that
    turn's full blocks, and more. Where there are several it is the longest of them. Where there is
    none, or the turn before has no full block, it begins a session of its own.
    """

    def __init__(self) -> None:
        # Number and last turn of every session, by the last of that turn's full blocks.
        self._last: dict[int, tuple[int, Request]] = {}
        self._count = 0

    def place(self, request: Request) -> tuple[int, Request | None]:
        """The session's number, in the order in which they begin, and its turn before this one."""
        ids = request.prefix_hashes
        end = next((block for block in reversed(ids) if block in self._last), None)
        if end is not None and _goes_on(self._last[end][1], request):
            session, before = self._last.pop(end)
        else:
            session, before = self._count, None
            self._count += 1
        if full := full_blocks(request):
            self._last[ids[full - 1]] = session, request
        return session, before


def full_blocks(request: Request) -> int:
    """Blocks of the prompt that are full and have an id."""
    size = request.hash_block_tokens
    return min(request.input_tokens // size, len(request.prefix_hashes)) if size else 0


def _goes_on(before: Request, request: Request) -> bool:
    """Whether a prompt is longer than another, whose full blocks it begins with."""
    if request.input_tokens <= before.input_tokens:
        return False
    count = full_blocks(before)
    return _first(request.prefix_hashes, count) == _first(before.prefix_hashes, count)


def _first(ids: Sequence[int], count: int) -> Sequence[int]:
    return ids.first(count) if isinstance(ids, IdRuns) else ids[:count]
