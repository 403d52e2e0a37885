"""vLLM's cache as its scheduler drives it: requests take blocks step by step, none are promised.

In every step those that run come first, in the order of their admission: each gives back what is
out of its windows, and then takes what its next tokens need. Where that cannot be had, the last
one is preempted. A request is admitted where its whole prompt has room at that moment.
Source: vLLM 0.33, ``v1/core/kv_cache_manager.py``: ``allocate_slots``.

What a decoding request holds follows from its position. So steps of all of them are sums over
arrays, apart from those of requests that still hold windows of their prompts that stay cached.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from math import lcm
from typing import Any

import numpy as np

from dsv4kv.engines.cache import Pool
from dsv4kv.engines.vllm.cache import VllmCache
from dsv4kv.engines.vllm.groups import GroupPool, Running
from dsv4kv.engines.vllm.tables import TailGroup, number_ways
from dsv4kv.prefix.paths import Ints

_NEVER, _FRESH = 1 << 60, -1
_MOST_STEPS = 512  # that are looked at one by one


class Held:
    """Blocks that decoding requests hold, shared ones included, by how many tokens they have.

    Attributes:
        swing: The most by which those of a step ever become fewer.
    """

    def __init__(self, pool: GroupPool, window: int) -> None:
        """``window``: tokens of a step, one and its drafts."""
        groups = [group for group in pool.groups if not group.ring]
        sizes = [pool.size, *(group.block_tokens for group in groups)]
        period = lcm(*sizes)
        self._period = period * (1 + max((group.seen for group in groups), default=0) // period)
        self._growth = self._period // pool.size
        tokens = np.arange(2 * self._period)
        rings = len(pool.groups) - len(groups)

        def blocks(behind: int, seen_from: int) -> Ints:
            held: Ints = np.add.reduce([-(-(tokens + behind) // size) for size in sizes])
            for group in groups:
                held -= np.maximum(tokens + seen_from - group.seen, 0) // group.block_tokens
            return held + rings

        self._between, self._in_step = blocks(0, -1), blocks(window, 0)
        self._taken = self._in_step - self._between
        new: Ints = np.add.reduce(
            [-(-(tokens + window) // size) - -(-tokens // size) for size in sizes]
        )
        self._new: list[int] = new[: self._period].tolist()
        self._most: Ints = np.maximum.accumulate(self._in_step)
        self.swing = int((self._most - self._in_step).max())

    def between(self, tokens: Ints) -> Ints:
        """int64 of the same shape: after a step and before the next."""
        return self._at(self._between, tokens)

    def in_step(self, tokens: Ints) -> Ints:
        """int64 of the same shape: in a step, before which a request has so many tokens."""
        return self._at(self._in_step, tokens)

    def taken(self, tokens: Ints) -> Ints:
        """int64 of the same shape: what a step adds, less what goes out of the windows."""
        found: Ints = self._taken[np.minimum(tokens, tokens % self._period + self._period)]
        return found

    def most(self, tokens: int) -> int:
        """In any step of a request that ends with so many tokens."""
        return int(self._at(self._most, np.array(tokens - 1))) if tokens else 0

    def new(self, tokens: int) -> int:
        """Blocks that such a step adds."""
        return self._new[tokens % self._period]

    def _at(self, table: Ints, tokens: Ints) -> Ints:
        periods = np.maximum(tokens // self._period - 1, 0)
        found: Ints = table[tokens - periods * self._period] + periods * self._growth
        return found


class SteppedVllmCache(VllmCache):
    """See the module. Requests that decode are given as numbers and positions, in order."""

    def __init__(self, pool: GroupPool, *args: Any, window: int, **chosen: Any) -> None:
        """As ``VllmCache``; ``window``: tokens of a decode step, one and its drafts."""
        super().__init__(pool, *args, **chosen)
        self._held, self._window = Held(pool, window), window
        self._decoding: set[int] = set()
        # where each request gives back more that stays cached: at the first step for those that
        # decode from the next one on
        self._due: Ints = np.full(len(self._ways), _NEVER)
        self._given = 0  # leading requests that have blocks for the next step
        self._slid = -1  # the next of them, where it has given back what it could
        self._ready = False  # whether all have
        self._short = _NEVER  # blocks that the next to be admitted lacks

    @property
    def available(self) -> int:
        """Blocks that can be had: free, or to be evicted."""
        return self._pool.queue.uncached + self._pool.queue.idle

    def admits(self, request: int, tokens: int, step_tokens: int) -> bool:
        """Whether a prompt has room, and its first chunk, of so many tokens at most."""
        pool, resumed = self._pool, self._find(request, tokens).resumed
        at = resumed * pool.size
        end = min(tokens, at + step_tokens)
        needed = max(
            pool.admitted_blocks(tokens, self._chunk, resumed),
            pool.blocks_between(at, end) + pool.recomputed_blocks(resumed),
        ) + pool.idle_hit(self._ways[request], resumed)
        self._short = needed - self.available
        return self._short <= 0

    def _most_blocks(self, tokens: int) -> int:
        """Blocks that must be there for a request to be admitted, and to come to its end."""
        return max(self._pool.admitted_blocks(tokens, self._chunk), self._held.most(tokens))

    def lacks(self, request: int, position: int) -> int:
        """Blocks that a prompt lacks to be computed up to a position."""
        running, pool = self._running[request], self._pool
        if position <= running.position:
            return 0
        needed = pool.blocks_between(running.position, position)
        if needed > self.available:
            pool.slide(running)
        return max(0, needed - self.available)

    def roomy(
        self, request: int, position: int, chunk_tokens: int, decoding: Ints, lacking: int
    ) -> bool:
        """Whether none are lacking for chunks up to there, however windows come and go.

        Args:
            request: The prompt.
            position: Where the last chunk ends.
            chunk_tokens: Of each chunk.
            decoding: Those that decode meanwhile.
            lacking: Blocks of context that they need.
        """
        begin = self._running[request].position
        others = lacking + self._most_swing(decoding)
        return self._pool.most_new(begin, position, chunk_tokens) + others <= self.available

    def decode(self, request: int) -> None:
        """The prompt is computed and more tokens follow: in the next step, in its turn."""
        self._due[request] = _FRESH

    def reserve(self, numbers: Ints, positions: Ints) -> bool:
        """Give all that decode blocks for the next step; False where one, and so on, lacks them.

        To be called again when somebody has ended.
        """
        if self._ready or not len(numbers):
            return True
        if not self._given:
            self.freed += 1
            self._short = _NEVER
        held, place = self._held, self._given
        taken = held.taken(positions[place:])
        marks = place + np.flatnonzero(self._due[numbers[place:]] <= positions[place:])
        for mark in [*marks.tolist(), len(numbers)]:
            done = self._pool.queue.flow(taken[self._given - place : mark - place])
            self._given += done
            if self._given < mark:
                return False
            if mark < len(numbers):
                at = int(positions[mark])
                number, apart = int(numbers[mark]), int(taken[mark - place])
                if not self._take_apart(number, at, held.new(at), apart):
                    return False
                self._given += 1
        self._given, self._ready = 0, True
        return True

    def _take_apart(self, number: int, position: int, needed: int, taken: int) -> bool:
        """The step of a request that gives back more than follows from its position.

        Args:
            number: The request.
            position: Tokens that it has.
            needed: Blocks that the step adds.
            taken: These, less those that go out of its windows, if it is one of those that follow.
        """
        pool, running = self._pool, self._running[number]
        queue, fresh = pool.queue, bool(self._due[number] == _FRESH)
        if self._slid != number:
            freed = pool.slide(running, position)
            if not fresh:
                queue.uncached += needed - taken - freed
            self._slid = number
        if needed > queue.uncached + queue.idle:
            return False
        queue.take(needed)
        self._slid = -1
        if fresh:
            self._decoding.add(number)
        self._expect_release(number, running)
        return True

    def _expect_release(self, number: int, running: Running) -> None:
        """Remember where a request gives back more that stays cached."""
        due = self._pool.next_release(running)
        self._due[number] = _NEVER if due is None else due

    def steps(self, numbers: Ints, positions: Ints, lacking: int, befores: Any, most: int) -> int:
        """How many steps may be taken at once, the one that is reserved included.

        Args:
            numbers: Those that decode.
            positions: Tokens of each.
            lacking: Blocks of context that they need for so many steps.
            befores: Gives int64[steps, B]: tokens before each of so many steps.
            most: How many are wanted.
        """
        if most <= 1:
            return most
        swing = self._most_swing(numbers)
        if self._short <= swing:
            return 1
        if lacking + swing <= self.available:
            return most
        most, kept = min(most, _MOST_STEPS), self._kept(numbers)
        held = self._held.in_step(befores(most))
        ends = (held[1:] - held[:-1]).ravel().cumsum().reshape(len(held) - 1, -1).max(axis=1)
        short = np.flatnonzero(ends + kept > self.available)
        return int(short[0]) + 1 if len(short) else most

    def _most_swing(self, numbers: Ints) -> int:
        """At least as many blocks of windows as those that decode ever have less, or more."""
        return self._held.swing * len(numbers) + self._kept(numbers)

    def _kept(self, numbers: Ints) -> int:
        """Blocks of windows of their prompts that are held by those of which some stay cached."""
        keep = numbers[self._due[numbers] < _NEVER].tolist()
        return sum(self._pool.tail_blocks(self._running[number]) for number in keep)

    def advance(
        self,
        numbers: Ints,
        befores: Ints,
        positions: Ints,
        prompt: tuple[int, Sequence[int]] | None = None,
    ) -> None:
        """Steps are taken: all that decode have come from ``befores[0]`` to ``positions``.

        The blocks of the first step have been reserved. With ``prompt`` the chunks of a request
        are computed, one in every further step, after those that decode; its ends are given. One
        end more is that of a chunk in the first step.
        """
        held, queue = self._held, self._pool.queue
        self._ready = False
        if len(befores) == self._window == 1:
            return
        begin, end = held.in_step(befores[[0, -1]])
        if prompt:
            self._pool.cache(self._running[prompt[0]], prompt[1][-1])
        apart = self._give_up(numbers, befores, prompt) if len(befores) > 1 else []
        grown, further = int((end - begin).sum()), [blocks for *_, blocks in apart]
        most = grown + held.swing * len(numbers) + sum(max(0, blocks) for blocks in further)
        if most <= queue.uncached:
            queue.uncached -= grown + sum(further)
        else:
            queue.flow(self._in_turn(befores, apart))
        if self._window > 1:
            queue.uncached -= int((held.between(positions) - end).sum())

    def _give_up(
        self, numbers: Ints, befores: Ints, prompt: tuple[int, Sequence[int]] | None
    ) -> list[tuple[int, int, int]]:
        """Give back what stays cached behind windows, in the order in which it comes to that.

        Arguments as ``advance`` has them. Returns the step, 0 for the second one, who, by
        place, the prompt last, and blocks: those that would be free if they did not stay cached,
        and all that the prompt takes.
        """
        pool, apart = self._pool, list[tuple[int, int, int]]()
        due: list[tuple[int, int, int]] = []  # step and place, and the request's number

        def expect(place: int, number: int) -> None:
            at = self._due[number]
            if at <= befores[-1, place]:
                step = max(1, int(befores[:, place].searchsorted(at)))
                heappush(due, (step - 1, place, number))

        for place in np.flatnonzero(self._due[numbers] <= befores[-1]).tolist():
            expect(place, int(numbers[place]))
        if prompt:
            first = len(befores) - 1 - len(prompt[1])
            for step in range(first, len(befores) - 1):
                heappush(due, (step, len(numbers), prompt[0]))
        while due:
            step, place, number = heappop(due)
            running = self._running[number]
            if prompt and number == prompt[0]:
                blocks = pool.go_on(running, prompt[1][step - first])
            else:
                blocks = pool.give_up(running, int(befores[step + 1, place]))
                self._expect_release(number, running)
                expect(place, number)
            apart.append((step, place, blocks))
        return apart

    def _in_turn(self, befores: Ints, apart: list[tuple[int, int, int]]) -> Ints:
        """int64[times]: blocks that are taken, one after the other; as ``_give_up`` says."""
        blocks, count = self._held.in_step(befores), befores.shape[1]
        taken = np.zeros((len(befores) - 1, 2, count + 1), np.int64)
        taken[:, 1, :count] = blocks[1:] - blocks[:-1]
        if self._window > 1:  # what was for drafts comes back after every step
            taken[:, 0, :count] = self._held.between(befores[1:]) - blocks[:-1]
            taken[:, 1] -= taken[:, 0]
        begun = [further for step, _, further in apart if step < 0]
        for step, place, further in apart[len(begun) :]:
            taken[step, 1, place] += further
        return np.concatenate([begun, taken.ravel()]) if begun else taken.ravel()

    def end(self, request: int, decoded_blocks: int, position: int = 0) -> int:
        """Give everything back; returns the blocks that are cached."""
        self._due[request] = _NEVER
        if request in self._decoding:
            self._decoding.discard(request)
            running, pool = self._running[request], self._pool
            given = self._ready or self._slid == request
            held = int((self._held.in_step if given else self._held.between)(np.array(position)))
            if self._slid == request:  # it has given back what it could, and has nothing new
                held -= self._held.new(position)
            pool.queue.uncached += held - pool.held_blocks(running)
        if self._slid == request:
            self._slid = -1
        return super().end(request, 0, position)

    def take(self, blocks: int) -> None:
        """Nothing: blocks of decoded tokens were taken step by step."""


def open_vllm(
    pool: Pool,
    groups: tuple[TailGroup, ...],
    retention_tokens: int | None,
    replayed_tokens: int = 0,
) -> VllmCache:
    """An empty cache of context, and of groups of windows and states if there are any."""
    speculation, size = pool.speculation, pool.block_tokens
    ways, nodes = number_ways(pool.table, size, groups, speculation.key_tokens, pool.numbered)
    blocks = GroupPool(
        pool.blocks,
        nodes,
        size,
        groups,
        drops=speculation.drops,
        replayed_tokens=replayed_tokens,
    )
    known: dict[str, Any] = {
        "retention_tokens": retention_tokens,
        "chunk_tokens": pool.chunk_tokens,
        "speculation": speculation,
    }
    if pool.step_tokens and groups:
        return SteppedVllmCache(blocks, ways, window=pool.step_tokens, **known)
    return VllmCache(blocks, ways, **known)
