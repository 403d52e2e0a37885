"""Requests of a trace: block ids as runs of consecutive ids, and sessions."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self, overload

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a serving trace."""

    arrival_s: float  # arrival in seconds from the start of the trace
    input_tokens: int  # prompt length in tokens, at least 1
    output_tokens: int  # generated length in tokens, at least 0
    # One id per ``hash_block_tokens`` tokens of the prompt (the last may stand for a partial
    # block), equal ids meaning equal tokens *and* equal history; empty where the trace has none. A
    # tuple or an array, or ``IdRuns`` where ids come in long runs
    prefix_hashes: Sequence[int] = ()
    hash_block_tokens: int = 0  # tokens one id stands for; 0 where the trace has none
    # Number of the conversation it is a turn of; None where the trace does not say
    session: int | None = field(default=None, compare=False)
    # How long its answer took when it was recorded; None where not known
    answer_s: float | None = field(default=None, compare=False)

    @property
    def total_tokens(self) -> int:
        """Prompt and output together, in tokens."""
        return self.input_tokens + self.output_tokens


class IdRuns(Sequence[int]):
    """Whole numbers in the memory of their runs of consecutive ones; equal to any equal sequence.

    ``starts``, int64[runs], are first numbers, ``counts`` how many there are, at least 1.
    """

    __slots__ = ("_known_ends", "counts", "starts")

    def __init__(self, starts: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        """Take over the arrays."""
        self.starts = starts
        self.counts = counts
        self._known_ends: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Self:
        """Find the runs of a list of 64-bit numbers; raises ``OverflowError`` for larger ones."""
        values = np.array(array("q", numbers))  # a list takes numpy five times as long
        breaks = np.flatnonzero(values[1:] != values[:-1] + 1) + 1
        edges = np.concatenate([[0], breaks, [len(values)]]) if len(values) else breaks
        first = edges[:-1]
        return cls(values[first], edges[1:] - first)

    def first(self, count: int) -> "IdRuns":
        """The first ``count`` numbers; there must be as many."""
        whole = int(self._ends.searchsorted(count))
        counts = self.counts[: whole + 1].copy()
        if whole < len(counts):
            counts[whole] -= self._ends[whole] - count
        kept = counts > 0
        return IdRuns(self.starts[: whole + 1][kept], counts[kept])

    def moved(self, offset: int) -> "IdRuns":
        """All numbers plus ``offset``."""
        return IdRuns(self.starts + offset, self.counts)

    def array(self) -> NDArray[np.int64]:
        """All numbers, int64."""
        shift = self.starts - (self._ends - self.counts)
        return np.repeat(shift, self.counts) + np.arange(len(self))

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
        if isinstance(index, slice):
            return tuple(self.array()[index].tolist())
        place = range(len(self))[index]
        run = int(self._ends.searchsorted(place, side="right"))
        return int(self.starts[run]) + place - int(self._ends[run] - self.counts[run])

    def __iter__(self) -> Iterator[int]:
        return iter(self.array().tolist())

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, Sequence) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"IdRuns({len(self):,} ids in {len(self.starts):,} runs)"


def as_runs(ids: Sequence[int]) -> IdRuns:
    """Ids as runs, if they are not yet; unsigned ones wrap around."""
    return ids if isinstance(ids, IdRuns) else IdRuns.of(signed(ids))


def list_runs(ids: Sequence[int]) -> tuple[list[int], list[int]]:
    """First id and length of every run."""
    runs = as_runs(ids)
    return runs.starts.tolist(), runs.counts.tolist()


def signed(ids: Sequence[int]) -> "array[int]":
    """64-bit ids; unsigned ones wrap around, which keeps them apart."""
    try:
        return array("q", ids)
    except OverflowError:
        return array("q", [(number + 2**63) % 2**64 - 2**63 for number in ids])


class Sessions:
    """Finds the session of every request, given in order.

    A request belongs to the session whose last turn its prompt extends: it begins with all full
    blocks of that turn, and is longer. Of several it is the longest. A request that extends none,
    or a turn without a full block, begins a session of its own.
    """

    def __init__(self) -> None:
        # Number and last turn of every session, by the last of that turn's full blocks.
        self._last: dict[int, tuple[int, Request]] = {}
        self._count = 0

    def place(self, request: Request) -> tuple[int, Request | None]:
        """The session's number, in the order in which they begin, and its turn before this one."""
        ids = tuple(request.prefix_hashes)
        end = next((block for block in reversed(ids) if block in self._last), None)
        if end is not None and _extends(self._last[end][1], request):
            session, before = self._last.pop(end)
        else:
            session, before = self._count, None
            self._count += 1
        if full := _full_blocks(request):
            self._last[ids[full - 1]] = session, request
        return session, before


def _full_blocks(request: Request) -> int:
    size = request.hash_block_tokens
    return min(request.input_tokens // size, len(request.prefix_hashes)) if size else 0


def _extends(before: Request, request: Request) -> bool:
    prompts = (as_runs(each.prefix_hashes) for each in (before, request))
    one, other = (prompt.first(min(_full_blocks(before), len(prompt))) for prompt in prompts)
    return request.input_tokens > before.input_tokens and np.array_equal(
        one.array(), other.array()
    )
