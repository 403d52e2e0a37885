"""The requests that decode; advances them by as many steps as nothing else happens."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from dsv4kv.clock.steps import Steps
from dsv4kv.model.schema import TableGroup
from dsv4kv.replay.clock import CostModel, VirtualClock, Work, decoding
from dsv4kv.replay.costs import Ints
from dsv4kv.replay.requests import Served

_DRAWS = 2**14
_STRIDE = 7919  # a prime: requests begin at different places of the draws


class Drafts:
    """Kept tokens of every verification step of every request.

    Attributes:
        window: Tokens of a step: one and its drafts.
    """

    def __init__(self, draft_tokens: int, acceptance: float, seed: int) -> None:
        """A draft is accepted with probability ``acceptance`` if all before it were."""
        self.window = 1 + draft_tokens
        draws = np.random.default_rng(seed).random((_DRAWS, draft_tokens))
        accepted = np.logical_and.accumulate(draws < acceptance, axis=1).sum(axis=1)
        self._kept = 1 + accepted.astype(np.int64)

    def kept(self, numbers: Ints, steps_done: Ints, steps: int) -> Ints:
        """int64[steps, B]: tokens that stay of the next steps of requests, by their numbers."""
        first = numbers * _STRIDE + steps_done
        kept: Ints = self._kept[(first + np.arange(steps)[:, None]) % _DRAWS]
        return kept


WorkOf = Callable[[int], Work]
"""Work up to the end of so many steps."""


class Decoders(ABC):
    """Requests past their prompts.

    Attributes:
        members: The requests, by their places.
        drafted: Draft tokens proposed so far.
        rolled_back: Of which rejected.
        window: Most tokens of a request in a step: one and its drafts.
        block_tokens: Tokens of a block.
    """

    def __init__(self, cost: CostModel, group: TableGroup, window: int) -> None:
        self.members: list[Served] = []
        self.drafted = self.rolled_back = 0
        self.window = window
        self.block_tokens = group.ratio * group.entries_per_block
        self._cost, self._group = cost, group

    def __len__(self) -> int:
        return len(self.members)

    @property
    @abstractmethod
    def numbers(self) -> Ints:
        """int64[B]: which requests they are."""

    @property
    @abstractmethod
    def position(self) -> Ints:
        """int64[B]: tokens in the cache."""

    @property
    @abstractmethod
    def left(self) -> Ints:
        """int64[B]: tokens still to be decoded."""

    @property
    @abstractmethod
    def blocks(self) -> Ints:
        """int64[B]: blocks held."""

    @property
    @abstractmethod
    def begun(self) -> Ints:
        """int64[B]: tokens that were in the cache when they began to decode."""

    @property
    @abstractmethod
    def tokens_per_step(self) -> int:
        """Tokens of the budget that one step takes."""

    @abstractmethod
    def add(self, served: Served) -> None:
        """Let a request decode."""

    def remove(self, places: Sequence[int]) -> list[Served]:
        """Take requests out and write their state back."""
        gone = []
        for place in places:
            served = self.members[place]
            served.position, left, served.blocks = self._state(place)
            served.generated = served.output_tokens - left
            served.reached = max(served.reached, served.position)
            gone.append(served)
        falling = sorted(places, reverse=True)
        self._drop(falling)
        for place in falling:
            del self.members[place]
        return gone

    @abstractmethod
    def remove_done(self) -> list[Served]:
        """Take those out that have nothing left."""

    def most_lacking(self, steps: int = 1) -> int:
        """At least as many blocks as all lack together, without looking closely."""
        return len(self) * (1 + steps * self.window // self.block_tokens)

    @abstractmethod
    def lacking(self, steps: int = 1) -> Ints:
        """int64[B]: blocks that each needs before it can take so many steps."""

    @abstractmethod
    def all_lacking(self, steps: int = 1) -> int:
        """Blocks that all of them need for that together."""

    def lacks(self, served: Served) -> int:
        """Blocks that a request outside needs before it can take a step."""
        end = min(served.position + self.window, served.total_tokens)
        return self._group.blocks_for(end) - served.blocks

    def plan(
        self, available: int, clock: VirtualClock, until_s: float, longest: int | None = None
    ) -> tuple[int, Work]:
        """Steps to take before anything can happen, at least 1, and their work.

        They end with the first that ends at ``until_s`` or later, with the first that may end a
        request, or before blocks run out; ``longest`` bounds them.
        """
        most = self.steps_to_an_end()
        if longest is not None:
            most = min(most, longest)
        most, work_of = self._works(most)
        steps, work = _first_late(work_of, most, clock, until_s)
        if (fewer := self._supplied(steps, available)) < steps:
            steps, work = fewer, work_of(fewer)
        return steps, work

    @abstractmethod
    def quiet_steps(self, most: int, blocks: int) -> int:
        """Steps until the first that may end a request, or that lacks blocks if there are so many.

        At least 1, at most ``most``. Verification steps take different numbers of tokens, so of
        those it is one.
        """

    @abstractmethod
    def work(self, steps: int) -> Work:
        """The work of steps, their weights and times not shared with prompt chunks."""

    @abstractmethod
    def steps(self, steps: int) -> Steps:
        """The same, as the times of steps see it."""

    @abstractmethod
    def befores(self, steps: int) -> Ints:
        """int64[steps, B]: tokens of each before every step."""

    @abstractmethod
    def advance(self, steps: int) -> int:
        """Take steps; returns the blocks that were needed for them."""

    @abstractmethod
    def _state(self, place: int) -> tuple[int, int, int]:
        """Position, tokens left and blocks of one."""

    @abstractmethod
    def _drop(self, places: Sequence[int]) -> None:
        """Forget some, the last first."""

    @abstractmethod
    def steps_to_an_end(self) -> int:
        """Steps until the first that may end a request."""

    @abstractmethod
    def _works(self, most: int) -> tuple[int, WorkOf]:
        """How many steps of those can be looked at, and their work."""

    def _supplied(self, high: int, available: int) -> int:
        """The most steps up to ``high`` for which blocks can be had; at least 1."""
        if not self.most_lacking(high) > available < self.all_lacking(high):
            return high
        low = 1
        while high - low > 1:
            middle = (low + high) // 2
            if self.all_lacking(middle) <= available:
                low = middle
            else:
                high = middle
        return low

    def _needed(self, ends: Ints) -> Ints:
        """int64[B]: blocks for so many tokens of each."""
        group = self._group
        return (ends // group.ratio + (group.entries_per_block - 1)) // group.entries_per_block


_NEVER = 1 << 62


class Aside(NamedTuple):
    """Requests that sit out some steps.

    Attributes:
        members: The requests.
        columns: int64[5, B]: what is known of each.
        due: The steps for which they lack a block.
        reached: See ``CostModel.reached``.
        taken: Steps taken when they were set aside.
    """

    members: list[Served]
    columns: Ints
    due: list[int]
    reached: Ints
    taken: int


class Stepping(Decoders):
    """Requests that all take one token in every step.

    A step changes nothing of them but the number of steps taken, so they are known by what they
    were, or will be, when none or enough had been.
    """

    def __init__(self, cost: CostModel, group: TableGroup) -> None:
        super().__init__(cost, group, window=1)
        self._taken = 0
        # rows: position, had it been here before the first step; steps taken when it has nothing
        # left; blocks and tokens with which it began; its number
        self._columns = np.zeros((5, 64), np.int64)
        self._first_end = _NEVER
        self._due: dict[int, int] = {}  # how many need their next block for which step
        self._tokens = 0  # of all positions, had they been here before the first step
        self._reached = {0: cost.reached(np.zeros(0, np.int64))}  # by steps taken

    @property
    def numbers(self) -> Ints:
        """int64[B]: which requests they are."""
        return self._row(4)

    @property
    def position(self) -> Ints:
        """int64[B]: tokens in the cache."""
        return self._row(0) + self._taken

    @property
    def left(self) -> Ints:
        """int64[B]: tokens still to be decoded."""
        return self._row(1) - self._taken

    @property
    def blocks(self) -> Ints:
        """int64[B]: blocks held."""
        return np.maximum(self._row(2), self._needed(self.position))

    @property
    def begun(self) -> Ints:
        """int64[B]: tokens that were in the cache when they began to decode."""
        return self._row(3)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of the budget that one step takes."""
        return len(self.members)

    def add(self, served: Served) -> None:
        """Let a request decode."""
        start = served.position - self._taken
        end = self._taken + served.output_tokens - served.generated
        if len(self.members) == self._columns.shape[1]:
            self._columns = np.concatenate([self._columns, np.zeros_like(self._columns)], axis=1)
        column = start, end, served.blocks, served.prompt_tokens, served.number
        self._columns[:, len(self.members)] = column
        self.members.append(served)
        self._first_end = min(self._first_end, end)
        due = self._next_block(start, served.blocks)
        self._due[due] = self._due.get(due, 0) + 1
        self._change(start, 1)

    def remove_done(self) -> list[Served]:
        """Take those out that have nothing left."""
        if self._taken < self._first_end:
            return []
        return self.remove(np.flatnonzero(self._row(1) == self._taken).tolist())

    def lacking(self, steps: int = 1) -> Ints:
        """int64[B]: blocks that each needs before it can take so many steps."""
        lacking: Ints = np.maximum(self._needed(self.position + steps) - self.blocks, 0)
        return lacking

    def all_lacking(self, steps: int = 1) -> int:
        """Blocks that all of them need for that together."""
        last, size = self._taken + steps, self.block_tokens
        return sum(count * (1 + (last - due) // size) for due, count in self._due_by(last))

    def quiet_steps(self, most: int, blocks: int) -> int:
        """See ``Decoders``."""
        if not self.members:
            return most
        return self._supplied(min(most, self.steps_to_an_end()), blocks)

    def work(self, steps: int) -> Work:
        """The work of steps, their weights and times not shared with prompt chunks."""
        return self._work(steps, None) if self.members else Work()

    def steps(self, steps: int) -> Steps:
        """The same, as the times of steps see it."""
        rows = len(self.members)
        return decoding(rows, self._tokens + rows * self._taken, steps) if rows else Steps()

    def advance(self, steps: int) -> int:
        """Take steps; returns the blocks that were needed for them."""
        last, size, lacking = self._taken + steps, self.block_tokens, 0
        for due, count in self._due_by(last):
            blocks = 1 + (last - due) // size
            lacking += count * blocks
            del self._due[due]
            following = due + blocks * size
            self._due[following] = self._due.get(following, 0) + count
        self._reached = {last: self._reach(last)}
        self._taken = last
        return lacking

    def befores(self, steps: int) -> Ints:
        """int64[steps, B]: tokens of each before every step."""
        found: Ints = self.position + np.arange(steps)[:, None]
        return found

    def set_aside(self, places: Sequence[int]) -> Aside:
        """Let some sit out the steps that follow, until they are put back."""
        columns = self._columns[:, : len(self.members)]
        out = np.zeros(columns.shape[1], dtype=bool)
        out[places] = True
        gone, stay = columns[:, out], columns[:, ~out]
        aside = Aside(
            [self.members[place] for place in places],
            gone,
            [self._next_block(start, held) for start, _, held, *_ in gone.T.tolist()],
            self._cost.reached(gone[0] + self._taken),
            self._taken,
        )
        self.members[:] = [
            m for m, is_out in zip(self.members, out.tolist(), strict=True) if not is_out
        ]
        self._columns[:, : stay.shape[1]] = stay
        for due in aside.due:
            self._due[due] -= 1
            if not self._due[due]:
                del self._due[due]
        self._tokens -= int(gone[0].sum())
        self._reached = {self._taken: self._reached[self._taken] - aside.reached}
        self._first_end = int(stay[1].min(initial=_NEVER))
        return aside

    def put_back(self, aside: Aside) -> None:
        """Let those that were set aside go on where they were."""
        missed, first, last = self._taken - aside.taken, len(self), len(self) + len(aside.due)
        columns = aside.columns + missed * np.array([[-1], [1], [0], [0], [0]])
        self._columns[:, first:last] = columns
        self.members += aside.members
        for due in aside.due:
            self._due[due + missed] = self._due.get(due + missed, 0) + 1
        self._tokens += int(columns[0].sum())
        self._reached = {self._taken: self._reached[self._taken] + aside.reached}
        self._first_end = min(self._first_end, int(columns[1].min()))

    def _row(self, number: int) -> Ints:
        row: Ints = self._columns[number, : len(self.members)]
        return row

    def _next_block(self, start: int, held: int) -> int:
        """The step for which a request lacks a block, where it has so many."""
        size = self.block_tokens
        first = held * size + self._group.ratio - start
        return (
            first if first > self._taken else first + -(-(self._taken + 1 - first) // size) * size
        )

    def _due_by(self, last: int) -> list[tuple[int, int]]:
        """When blocks will be lacking for the first time up to a step, and by how many."""
        due, first = self._due, self._taken + 1
        if last - first < len(due):
            return [(step, due[step]) for step in range(first, last + 1) if step in due]
        return [(step, count) for step, count in due.items() if step <= last]

    def _reach(self, taken: int) -> Ints:
        """See ``CostModel.reached``: when so many steps are taken."""
        if taken not in self._reached:
            self._reached[taken] = self._cost.reached(self._row(0) + taken)
        return self._reached[taken]

    def _work(self, steps: int, timed: Steps | None) -> Work:
        before, after = self._reach(self._taken), self._reach(self._taken + steps)
        return self._cost.decode(before, after, len(self.members), steps, timed)

    def _change(self, start: int, sign: int) -> None:
        """A request has come or gone."""
        self._tokens += sign * start
        one = self._cost.reached_by(start + self._taken)
        self._reached = {self._taken: self._reached[self._taken] + sign * one}

    def _state(self, place: int) -> tuple[int, int, int]:
        start, end, held, *_ = self._columns[:, place].tolist()
        position = start + self._taken
        return position, end - self._taken, max(held, self._group.blocks_for(position))

    def _drop(self, places: Sequence[int]) -> None:
        count = len(self.members)
        for place in places:
            start, _, held, *_ = self._columns[:, place].tolist()
            due = self._next_block(start, held)
            self._due[due] -= 1
            if not self._due[due]:
                del self._due[due]
            self._change(start, -1)
            count -= 1
            self._columns[:, place:count] = self._columns[:, place + 1 : count + 1]
        self._first_end = int(self._columns[1, :count].min(initial=_NEVER))

    def steps_to_an_end(self) -> int:
        """Steps until the first that may end a request."""
        return self._first_end - self._taken

    def _works(self, most: int) -> tuple[int, WorkOf]:
        return most, lambda steps: self._work(steps, self.steps(steps))


_COLUMNS = 6
_MOST_WINDOWS = 64  # more would be drawn in vain: something else happens before


class Drafting(Decoders):
    """Requests that verify a token and its drafts in every step; a column of the arrays each."""

    def __init__(self, cost: CostModel, group: TableGroup, drafts: Drafts) -> None:
        super().__init__(cost, group, drafts.window)
        self._drafts = drafts
        self._columns = np.zeros((_COLUMNS, 0), dtype=np.int64)
        self._lacking: dict[int, Ints] = {}  # by steps, until anything changes

    @property
    def numbers(self) -> Ints:
        """int64[B]: which requests they are."""
        return self._column(3)

    @property
    def position(self) -> Ints:
        """int64[B]: tokens in the cache."""
        return self._column(0)

    @property
    def left(self) -> Ints:
        """int64[B]: tokens still to be decoded."""
        return self._column(1)

    @property
    def blocks(self) -> Ints:
        """int64[B]: blocks held."""
        return self._column(2)

    @property
    def begun(self) -> Ints:
        """int64[B]: tokens that were in the cache when they began to decode."""
        return self._column(5)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of the budget that one step takes."""
        return int(np.minimum(self.left, self.window).sum())

    def add(self, served: Served) -> None:
        """Let a request decode."""
        left = served.output_tokens - served.generated
        column = [served.position, left, served.blocks, served.number, 0, served.prompt_tokens]
        self.members.append(served)
        self._columns = np.append(self._columns, np.array(column)[:, None], axis=1)
        self._lacking.clear()

    def remove_done(self) -> list[Served]:
        """Take those out that have nothing left."""
        if self.left.all():
            return []
        return self.remove(np.flatnonzero(self.left == 0).tolist())

    def lacking(self, steps: int = 1) -> Ints:
        """int64[B]: blocks that each needs before it can take so many steps."""
        if steps not in self._lacking:
            before, taken, _ = self._windows(steps)
            needed = self._needed(before[-1] + taken[-1])
            self._lacking[steps] = np.maximum(needed - self.blocks, 0)
        return self._lacking[steps]

    def all_lacking(self, steps: int = 1) -> int:
        """Blocks that all of them need for that together."""
        return int(self.lacking(steps).sum())

    def quiet_steps(self, most: int, blocks: int) -> int:
        """See ``Decoders``."""
        return 1 if self.members else most

    def work(self, steps: int) -> Work:
        """The work of steps, their weights and times not shared with prompt chunks."""
        return self._window_works(steps)[steps] if self.members else Work()

    def steps(self, steps: int) -> Steps:
        """The same, as the times of steps see it."""
        if not self.members:
            return Steps()
        before, taken, _ = self._windows(steps)
        return self._cost.speculated(before, taken)

    def advance(self, steps: int) -> int:
        """Take steps; returns the blocks that were needed for them."""
        lacking = self.lacking(steps)
        self.blocks[:] += lacking
        _, taken, kept = self._windows(steps)
        self.drafted += int(taken.sum()) - taken.size
        self.rolled_back += int((taken - kept).sum())
        moved = kept.sum(axis=0)
        self.position[:] += moved
        self.left[:] -= moved
        self._columns[4] += steps
        self._lacking.clear()
        return int(lacking.sum())

    def befores(self, steps: int) -> Ints:
        """int64[steps, B]: tokens of each before every step."""
        return self._windows(steps)[0]

    def _column(self, number: int) -> Ints:
        column: Ints = self._columns[number]
        return column

    def _state(self, place: int) -> tuple[int, int, int]:
        position, left, blocks = self._columns[:3, place].tolist()
        return position, left, blocks

    def _drop(self, places: Sequence[int]) -> None:
        stay = np.ones(self._columns.shape[1], dtype=bool)
        stay[places] = False
        self._columns = self._columns[:, stay]
        self._lacking.clear()

    def steps_to_an_end(self) -> int:
        """Steps until the first that may end a request."""
        return -(-int(self.left.min()) // self.window)

    def _works(self, most: int) -> tuple[int, WorkOf]:
        most = min(most, _MOST_WINDOWS)
        return most, self._window_works(most).__getitem__

    def _window_works(self, steps: int) -> list[Work]:
        """Work up to the end of so many verification steps, from none on."""
        before, taken, _ = self._windows(steps)
        return list(accumulate(self._cost.speculate(before, taken), initial=Work()))

    def _windows(self, steps: int) -> tuple[Ints, Ints, Ints]:
        """int64[steps, B]: tokens before every step, taken by it, and kept of those."""
        kept = self._drafts.kept(self.numbers, self._columns[4], steps)
        done = np.vstack([np.zeros_like(self.left), kept.cumsum(axis=0)[:-1]])
        left = self.left - done
        taken = np.minimum(left, self.window)
        return self.position + done, taken, np.minimum(kept, left)


def open_decoders(cost: CostModel, group: TableGroup, drafts: Drafts) -> Decoders:
    """Nobody yet."""
    return Drafting(cost, group, drafts) if drafts.window > 1 else Stepping(cost, group)


def _first_late(
    work_of: WorkOf, most: int, clock: VirtualClock, until_s: float
) -> tuple[int, Work]:
    """Steps until the first that ends at ``until_s`` or later, at most ``most``, and their work.

    Steps take about the same time, so the line between two known ends leads close to it.
    """
    low, low_s, high, work = 0, clock.now_s, most, work_of(most)
    high_s = clock.after(work)
    while high - low > 1 and low_s < until_s <= high_s:
        guess = low + round((high - low) * (until_s - low_s) / (high_s - low_s))
        guess = min(max(guess, low + 1), high - 1)
        guessed = work_of(guess)
        guess_s = clock.after(guessed)
        if guess_s < until_s:
            low, low_s = guess, guess_s
        else:
            high, high_s, work = guess, guess_s, guessed
    return high, work
