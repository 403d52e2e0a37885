"""The requests that decode, as arrays; advances them by as many steps as nothing else happens."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate

import numpy as np

from dsv4kv.clock.steps import Steps
from dsv4kv.model.schema import TableGroup
from dsv4kv.replay.clock import CostModel, VirtualClock, Work
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


_COLUMNS = 6
_MOST_WINDOWS = 64  # more would be drawn in vain: something else happens before

WorkOf = Callable[[int], Work]
"""Work up to the end of so many steps."""


class Decoders:
    """Requests past their prompts.

    Attributes:
        members: The requests; a column of the arrays each.
        drafted: Draft tokens proposed so far.
        rolled_back: Of which rejected.
        block_tokens: Tokens of a block.
    """

    def __init__(self, cost: CostModel, group: TableGroup, drafts: Drafts) -> None:
        self.members: list[Served] = []
        self.drafted = self.rolled_back = 0
        self._cost, self._group, self._drafts = cost, group, drafts
        self._columns = np.zeros((_COLUMNS, 0), dtype=np.int64)
        self._lacking: dict[int, Ints] = {}  # by steps, until anything changes
        self.block_tokens = group.ratio * group.entries_per_block

    def __len__(self) -> int:
        return len(self.members)

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
    def window(self) -> int:
        """Most tokens of a request in a step: one and its drafts."""
        return self._drafts.window

    @property
    def tokens_per_step(self) -> int:
        """Tokens of the budget that one step takes."""
        if self._drafts.window == 1:
            return len(self)
        return int(np.minimum(self.left, self._drafts.window).sum())

    def add(self, served: Served) -> None:
        """Let a request decode."""
        left = served.output_tokens - served.generated
        column = [served.position, left, served.blocks, served.number, 0, served.prompt_tokens]
        self.members.append(served)
        self._columns = np.append(self._columns, np.array(column)[:, None], axis=1)
        self._lacking.clear()

    def remove(self, places: Sequence[int]) -> list[Served]:
        """Take requests out and write their state back."""
        gone = []
        for place in places:
            served = self.members[place]
            served.position, left, served.blocks = self._columns[:3, place].tolist()
            served.generated = served.output_tokens - left
            served.reached = max(served.reached, served.position)
            gone.append(served)
        for place in sorted(places, reverse=True):
            del self.members[place]
        stay = np.ones(self._columns.shape[1], dtype=bool)
        stay[places] = False
        self._columns = self._columns[:, stay]
        self._lacking.clear()
        return gone

    def remove_done(self) -> list[Served]:
        """Take those out that have nothing left."""
        if self.left.all():
            return []
        return self.remove(np.flatnonzero(self.left == 0).tolist())

    def most_lacking(self, steps: int = 1) -> int:
        """At least as many blocks as ``lacking`` finds altogether, without looking closely."""
        return len(self) * (1 + steps * self._drafts.window // self.block_tokens)

    def lacking(self, steps: int = 1) -> Ints:
        """int64[B]: blocks that each needs before it can take so many steps."""
        if steps not in self._lacking:
            self._lacking[steps] = self._find_lacking(steps)
        return self._lacking[steps]

    def _find_lacking(self, steps: int) -> Ints:
        if self._drafts.window > 1:
            before, taken, _ = self._windows(steps)
            ends = before[-1] + taken[-1]
        else:
            ends = self.position + steps
        group = self._group
        needed = (ends // group.ratio + (group.entries_per_block - 1)) // group.entries_per_block
        lacking: Ints = np.maximum(needed - self.blocks, 0)
        return lacking

    def lacks(self, served: Served) -> int:
        """Blocks that a request outside needs before it can take a step."""
        end = min(served.position + self._drafts.window, served.total_tokens)
        return self._group.blocks_for(end) - served.blocks

    def plan(
        self, available: int, clock: VirtualClock, until_s: float, longest: int | None = None
    ) -> tuple[int, Work]:
        """Steps to take before anything can happen, at least 1, and their work.

        They end with the first that ends at ``until_s`` or later, with the first that may end a
        request, or before blocks run out; ``longest`` bounds them.
        """
        most = -(-int(self.left.min()) // self._drafts.window)
        if longest is not None:
            most = min(most, longest)
        if self._drafts.window > 1:
            most = min(most, _MOST_WINDOWS)
            work_of: WorkOf = self._window_works(most).__getitem__
        else:
            work_of = partial(self._cost.decode, self.position)
        steps, work = _first_late(work_of, most, clock, until_s)
        if (fewer := self._supplied(steps, available)) < steps:
            steps, work = fewer, work_of(fewer)
        return steps, work

    def quiet_steps(self, most: int, blocks: int) -> int:
        """Steps until the first that may end a request, or that lacks blocks if there are so many.

        At least 1, at most ``most``. Verification steps take different numbers of tokens, so of
        those it is one.
        """
        if not len(self):
            return most
        if self._drafts.window > 1:
            return 1
        return self._supplied(min(most, int(self.left.min())), blocks)

    def _supplied(self, high: int, available: int) -> int:
        """The most steps up to ``high`` for which blocks can be had; at least 1."""
        if not self.most_lacking(high) > available < int(self.lacking(high).sum()):
            return high
        low = 1
        while high - low > 1:
            middle = (low + high) // 2
            if int(self.lacking(middle).sum()) <= available:
                low = middle
            else:
                high = middle
        return low

    def work(self, steps: int) -> Work:
        """The work of steps, their weights and times not shared with prompt chunks."""
        if not len(self):
            return Work()
        if self._drafts.window > 1:
            return self._window_works(steps)[steps]
        return self._cost.decode(self.position, steps, timed=False)

    def steps(self, steps: int) -> Steps:
        """The same, as the times of steps see it."""
        if not len(self):
            return Steps()
        if self._drafts.window > 1:
            before, taken, _ = self._windows(steps)
            return self._cost.speculated(before, taken)
        return self._cost.decoded(self.position, steps)

    def advance(self, steps: int) -> int:
        """Take steps; returns the blocks that were needed for them."""
        lacking = self.lacking(steps)
        self.blocks[:] += lacking
        moved: int | Ints = steps
        if self._drafts.window > 1:
            _, taken, kept = self._windows(steps)
            self.drafted += int(taken.sum()) - taken.size
            self.rolled_back += int((taken - kept).sum())
            moved = kept.sum(axis=0)
        self.position[:] += moved
        self.left[:] -= moved
        self._columns[4] += steps
        self._lacking.clear()
        return int(lacking.sum())

    def _column(self, number: int) -> Ints:
        column: Ints = self._columns[number]
        return column

    def _window_works(self, steps: int) -> list[Work]:
        """Work up to the end of so many verification steps, from none on."""
        before, taken, _ = self._windows(steps)
        return list(accumulate(self._cost.speculate(before, taken), initial=Work()))

    def _windows(self, steps: int) -> tuple[Ints, Ints, Ints]:
        """int64[steps, B]: tokens before every step, taken by it, and kept of those."""
        kept = self._drafts.kept(self._columns[3], self._columns[4], steps)
        done = np.vstack([np.zeros_like(self.left), kept.cumsum(axis=0)[:-1]])
        left = self.left - done
        taken = np.minimum(left, self._drafts.window)
        return self.position + done, taken, np.minimum(kept, left)


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
