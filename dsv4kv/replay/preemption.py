"""What an engine keeps for requests that run, and what it does when decoding lacks blocks.

It takes them back from requests that run. The toolkit's own rule, under which requests may wait
with their blocks, is ``Pauses``.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import NamedTuple, Protocol

import numpy as np

from dsv4kv.engines.vllm.stepwise import SteppedVllmCache
from dsv4kv.replay.clock import Span
from dsv4kv.replay.contract import Ledger
from dsv4kv.replay.decoders import Decoders
from dsv4kv.replay.requests import Served, insert_by_age


@dataclass(frozen=True)
class Batch:
    """Who runs, who waits, and what for.

    Attributes:
        ledger: The blocks.
        decoders: Who needs more of them.
        prefilling: Requests with prompt tokens to compute; their blocks are theirs.
        waiting: Requests without a slot, the next one first.
        let_go: Takes everything from a request, which will be recomputed.
    """

    ledger: Ledger
    decoders: Decoders
    prefilling: list[Served]
    waiting: list[Served]
    let_go: Callable[[Served], None]

    def lacking(self) -> dict[Served, int]:
        """Blocks that each decoding request needs before it can take a step."""
        decoders = self.decoders
        return dict(zip(decoders.members, decoders.lacking().tolist(), strict=True))

    def next_blocks(self) -> int:
        """Blocks that all of them need together before the next step."""
        return self.decoders.all_lacking()

    def stop(self, served: Served) -> None:
        """Take a request out of those that run, and everything from it."""
        if served in self.prefilling:
            self.prefilling.remove(served)
        else:
            self.decoders.remove([self.decoders.members.index(served)])
        self.let_go(served)


class Chunks(NamedTuple):
    """Chunks of a prompt, one in every step but the first of some.

    Attributes:
        served: Whose.
        ends: Where each ends, in tokens.
    """

    served: Served
    ends: Sequence[int]


class Pauses:
    """Stops younger requests where the blocks do not suffice for all.

    Attributes:
        paused: Requests that keep their blocks and do not run, oldest first.
    """

    preempted = False

    def __init__(self, batch: Batch, most_blocks: int) -> None:
        """``most_blocks``: what paused requests may keep for themselves."""
        self.paused: list[Served] = []
        self._batch, self._most_blocks = batch, most_blocks
        self._ledger, self._decoders = batch.ledger, batch.decoders

    def settle(self) -> None:
        """Before a step: pause requests that blocks do not suffice for, resume others."""
        self._pause()
        self._evict()
        self._resume()

    def make_room(self) -> None:
        """Nobody runs: the oldest paused request must be able to resume next."""
        if self._decoders.lacks(self.paused[0]) > self._ledger.available:
            assert len(self.paused) > 1, "a request does not fit although it is alone"
            self._start_again()

    def promised(self, served: Served, begun: Sequence[Served]) -> int:
        """What decodes needs for the next step."""
        del served, begun
        return self._batch.next_blocks()

    def stepped(self, steps: int) -> None:
        """Nothing is expected."""

    def longest(self, most: int | None) -> int | None:
        """As many as are wanted: the blocks say how many."""
        return most

    def goes_on(self, served: Served, position: int) -> bool:
        """It has its blocks."""
        return True

    def quiet(self, served: Served, chunk: Span, most: int) -> int:
        """All: it has its blocks."""
        return most

    def advance(self, steps: int, prompt: Chunks | None = None) -> None:
        """Take steps."""
        self._ledger.take(self._decoders.advance(steps))

    def _pause(self) -> None:
        """Pause requests that cannot cross a block boundary, youngest first."""
        decoders, available = self._decoders, self._ledger.available
        if decoders.most_lacking() <= available:
            return
        lacking = decoders.lacking()
        missing = int(lacking.sum()) - available
        if missing <= 0:
            return
        places = sorted(
            lacking.nonzero()[0].tolist(), key=lambda place: -decoders.members[place].number
        )
        chosen = []
        for place in places:
            if missing <= 0:
                break
            missing -= int(lacking[place])
            chosen.append(place)
        for served in decoders.remove(chosen):
            served.pauses += 1
            insert_by_age(self.paused, served)

    def _evict(self) -> None:
        """Preempt the youngest, to be recomputed later; no more of them than necessary.

        What they give back lets the oldest go on; those that still cannot keep to what they may.
        """
        while self.paused and self._staying_blocks() > self._most_blocks:
            self._start_again()

    def _staying_blocks(self) -> int:
        """Blocks that those hold for themselves who could not go on now."""
        return sum(map(self._private, self.paused[self._able() :]))

    def _start_again(self) -> None:
        """Take everything from the youngest; it waits at the place of its age."""
        served = self.paused.pop()
        self._batch.let_go(served)
        insert_by_age(self._batch.waiting, served)

    def _private(self, served: Served) -> int:
        """Blocks that a request holds for itself."""
        return served.blocks - served.committed * self._ledger.per_shared

    def _resume(self) -> None:
        """Let requests go on."""
        able = self._able()
        for served in self.paused[:able]:
            self._decoders.add(served)
        del self.paused[:able]

    def _able(self) -> int:
        """How many can resume next to those that run: the oldest, none overtakes another."""
        if not self.paused:
            return 0
        left = self._ledger.available - self._decoders.all_lacking()
        needed = accumulate(map(self._decoders.lacks, self.paused))
        return sum(1 for _ in takewhile(lambda blocks: blocks <= left, needed))


class Preemption(Protocol):
    """Makes room for the next step.

    Attributes:
        paused: Requests that keep their blocks and do not run, oldest first.
        preempted: Whether the last time somebody was sent back to wait by an engine's rule, which
            admits nobody in that step.
    """

    paused: list[Served]
    preempted: bool

    def settle(self) -> None:
        """Before a step: see to it that all that decode have the blocks for it."""

    def make_room(self) -> None:
        """Nobody runs: the oldest paused request must be able to resume next."""

    def promised(self, served: Served, begun: Sequence[Served]) -> int:
        """Blocks that must be left when a request begins; ``begun`` do not decode yet."""

    def stepped(self, steps: int) -> None:
        """So many decode steps were taken; 0 says that nobody runs."""

    def longest(self, most: int | None) -> int | None:
        """Of so many steps those that may be taken at once; None for as many as there are."""

    def goes_on(self, served: Served, position: int) -> bool:
        """Whether a prompt has blocks up to a position; else it was preempted."""

    def quiet(self, served: Served, chunk: Span, most: int) -> int:
        """How many chunks like this one surely have theirs, of ``most``, one in every step."""

    def advance(self, steps: int, prompt: Chunks | None = None) -> None:
        """Let all that decode take steps, and the blocks for them; with chunks of a prompt."""


FIRST_RATIO, LEAST_RATIO, DECAY_STEPS = 0.7, 0.7 * 0.14, 600
_CLIPPED_TOKENS, _RETRACT_STEPS = 4096, 20


class NewTokenRatio:
    """How much of the output that requests may still generate SGLang keeps room for.

    It starts at 0.7, falls with every decode step, and is what was generated so far after a
    retraction. What a request may generate is taken to be what it does.
    Source: SGLang 0.5.15 and 0.5.23, ``new_token_ratio_tracker.py``.

    Attributes:
        value: The ratio.
    """

    def __init__(self) -> None:
        self.value = FIRST_RATIO

    def stepped(self, steps: int) -> None:
        """Fall by so many decode steps; start again where nobody runs."""
        if not steps:
            self.value = FIRST_RATIO
        decay = (FIRST_RATIO - LEAST_RATIO) / DECAY_STEPS
        self.value = max(self.value - steps * decay, LEAST_RATIO)

    def retracted(self, decoders: Decoders) -> None:
        """Requests were retracted; these are left."""
        most = sum(served.output_tokens for served in decoders.members)
        done = most - int(decoders.left.sum())
        estimate = (done + _RETRACT_STEPS * len(decoders.members)) / (most + 1)
        self.value = min(1.0, estimate)

    def promised(self, batch: Batch, served: Served, begun: Sequence[Served]) -> int:
        """Blocks that must be left when a request begins, in addition to those of its prompt.

        What those that run may still generate, by the ratio; all that it may itself, and those
        that began with it, with a page each. Alone it needs no more than its prompt (the engine
        would let a request wait for ever that leaves no page).
        Source: SGLang 0.5.15, ``schedule_policy.py``: ``PrefillAdder.add_one_req``.
        """
        decoders = batch.decoders
        if not (len(decoders) or begun):
            return 0
        size = decoders.block_tokens
        kept = float(np.minimum(decoders.left, _CLIPPED_TOKENS).sum()) * self.value
        kept += sum(_may_generate(each) + size for each in (served, *begun))
        prompt = served.prompt_tokens
        return int((prompt + kept) // size) + 1 - -(-prompt // size)


def _may_generate(served: Served) -> int:
    return min(max(served.output_tokens - served.generated, 0), _CLIPPED_TOKENS)


class EngineRule(NamedTuple):
    """How an engine preempts.

    Attributes:
        keeps: Whom it may preempt, those first that it keeps longest.
        put_back: Where in the queue the preempted wait.
        expects: Whether room is kept for what requests may still generate.
    """

    keeps: Callable[[Batch], list[Served]]
    put_back: Callable[[list[Served], Served], None]
    expects: bool = False


def by_admission(batch: Batch) -> list[Served]:
    """All that run, the last admitted last.

    Source: vLLM 0.33, ``v1/core/sched/scheduler.py``: ``schedule`` gives blocks to what runs in
    order of admission and, first come, first served, preempts ``running[-1]`` until they suffice.
    """
    return sorted([*batch.decoders.members, *batch.prefilling], key=lambda served: served.place)


def by_output(batch: Batch) -> list[Served]:
    """What decodes, the fewest output tokens last; of as many the longest prompt.

    Source: SGLang 0.5.23, ``managers/schedule_batch.py``: ``_get_decode_retraction_order``. The
    last one is kept there. Here a prompt that is computed in chunks may have its blocks; then it
    goes, too.
    """
    members = batch.decoders.members
    left = dict(zip(members, batch.decoders.left.tolist(), strict=True))

    def lengths(served: Served) -> tuple[int, int]:
        return served.output_tokens - left[served], -served.input_tokens

    return sorted(members, key=lengths, reverse=True)


ENGINES: Mapping[str, EngineRule] = {
    "vllm": EngineRule(by_admission, lambda queue, served: queue.insert(0, served)),
    "sglang": EngineRule(by_output, lambda queue, served: queue.append(served), expects=True),
}
"""Rules of the engines, by what their names in ``prefix.rule`` begin with."""


class EnginePreemption:
    """Frees one request after the other until the blocks suffice; see ``Preemption``."""

    def __init__(self, batch: Batch, rule: EngineRule) -> None:
        self.paused: list[Served] = []  # nobody waits with blocks
        self.preempted = False
        self._batch, self._rule = batch, rule
        self._ratio = NewTokenRatio() if rule.expects else None

    def settle(self) -> None:
        """Preempt until the others have their blocks."""
        batch, self.preempted = self._batch, False
        if batch.decoders.most_lacking() <= batch.ledger.available:
            return
        lacking, keeps = batch.lacking(), self._rule.keeps(batch)
        while sum(lacking.values()) > batch.ledger.available:
            served = keeps.pop()
            lacking.pop(served, None)
            self._stop(served)
        if self.preempted and self._ratio:
            self._ratio.retracted(batch.decoders)

    def make_room(self) -> None:
        """Nobody waits with blocks."""

    def promised(self, served: Served, begun: Sequence[Served]) -> int:
        """What decodes needs for the next step, or what the engine expects of it."""
        if self._ratio:
            return self._ratio.promised(self._batch, served, begun)
        return self._batch.next_blocks()

    def stepped(self, steps: int) -> None:
        """Expect less the more steps were taken."""
        if self._ratio:
            self._ratio.stepped(steps)

    def longest(self, most: int | None) -> int | None:
        """As many as are wanted: the blocks say how many."""
        return most

    def goes_on(self, served: Served, position: int) -> bool:
        """It has its blocks."""
        return True

    def quiet(self, served: Served, chunk: Span, most: int) -> int:
        """All: it has its blocks."""
        return most

    def advance(self, steps: int, prompt: Chunks | None = None) -> None:
        """Take steps."""
        self._batch.ledger.take(self._batch.decoders.advance(steps))

    def _stop(self, served: Served) -> None:
        """Preempt one."""
        self._batch.stop(served)
        self._rule.put_back(self._batch.waiting, served)
        self.preempted = True


class SteppedPreemption(EnginePreemption):
    """Blocks are taken request by request, in every step; the last to be admitted gives way."""

    def __init__(self, batch: Batch, rule: EngineRule, cache: SteppedVllmCache) -> None:
        super().__init__(batch, rule)
        self._cache = cache

    def settle(self) -> None:
        """Give those that decode blocks for the next step."""
        decoders, self.preempted = self._batch.decoders, False
        while not self._cache.reserve(decoders.numbers, decoders.position):
            self._stop(self._rule.keeps(self._batch)[-1])

    def promised(self, served: Served, begun: Sequence[Served]) -> int:
        """Nothing: those that run have theirs."""
        return 0

    def longest(self, most: int | None) -> int | None:
        """Steps for which blocks suffice, and in which nobody can be admitted."""
        decoders = self._batch.decoders
        if not len(decoders):
            return most
        wanted = decoders.steps_to_an_end()
        wanted = wanted if most is None else min(most, wanted)
        lacking = decoders.most_lacking(wanted)
        numbers, positions = decoders.numbers, decoders.position
        return self._cache.steps(numbers, positions, lacking, decoders.befores, wanted)

    def goes_on(self, served: Served, position: int) -> bool:
        """Whether a prompt has blocks up to a position; else it was preempted."""
        while self._cache.lacks(served.number, position):
            last = self._rule.keeps(self._batch)[-1]
            self._stop(last)
            if last is served:
                return False
        return True

    def quiet(self, served: Served, chunk: Span, most: int) -> int:
        """How many chunks like this one surely have theirs, of ``most``, one in every step."""
        decoders, (before, after) = self._batch.decoders, chunk
        size, numbers = after - before, decoders.numbers

        def short(steps: int) -> bool:
            end, lacking = before + steps * size, decoders.most_lacking(steps)
            return not self._cache.roomy(served.number, end, size, numbers, lacking)

        return max(1, bisect_left(range(1, most + 1), True, key=short)) if short(most) else most

    def advance(self, steps: int, prompt: Chunks | None = None) -> None:
        """Take steps, the blocks of the first of which were given."""
        decoders = self._batch.decoders
        befores = decoders.befores(steps)
        decoders.advance(steps)
        chunks = (prompt.served.number, prompt.ends) if prompt else None
        self._cache.advance(decoders.numbers, befores, decoders.position, chunks)


def open_preemption(rule: str, batch: Batch, most_blocks: int) -> Preemption:
    """The rule that goes with a ``prefix.rule``.

    Args:
        rule: ``prefix.rule``.
        batch: Whose blocks they are.
        most_blocks: Blocks that paused requests may keep, by the toolkit's own rule.
    """
    engine = next((each for name, each in ENGINES.items() if rule.startswith(name)), None)
    if engine and isinstance(batch.ledger, SteppedVllmCache):
        return SteppedPreemption(batch, engine, batch.ledger)
    return EnginePreemption(batch, engine) if engine else Pauses(batch, most_blocks)
