"""The serving loop in virtual time, one step at a time.

A step admits requests, computes prompt chunks and decodes one token of each request past its
prompt, or verifies its drafts.  Prompt chunks share a step with decoding requests; SGLang's have
steps of their own.  Older requests go first everywhere.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from dsv4kv.core.clock import Span, VirtualClock
from dsv4kv.core.outcome import Outcome
from dsv4kv.core.preemption import LastAdmitted, Pauses, Preemption, Retraction
from dsv4kv.core.prompts import Prompts
from dsv4kv.core.served import NEVER, Served, Source, insert_by_age


@dataclass(frozen=True)
class Limits:
    """What a scheduler keeps to."""

    chunk_tokens: int  # prompt tokens of a step on one rank
    slots: int  # requests that one rank runs at most
    block_tokens: int  # tokens of a block
    ratio: int  # tokens of an entry: a block is needed for complete entries alone
    # blocks that paused requests may keep; None where requests are retracted, as in SGLang
    paused_blocks: int | None
    max_context_tokens: int
    defer: bool  # let a request wait while another computes its prefix
    finds_scheduled: bool  # whether others find what is computed in the very step of admission
    ranks: int  # replicas that step together, each with requests and prompt chunks of its own
    alone: bool  # whether steps with prompt chunks leave out what decodes there
    delay: bool  # whether prompts wait for one on every rank, ``LONGEST_DELAY`` steps at most

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold every complete entry of ``tokens``."""
        return -(-(tokens // self.ratio) // (self.block_tokens // self.ratio))


LONGEST_DELAY = 30
"""Steps for which prompts wait; SGLang 0.5.23, ``prefill_delayer_max_delay_passes``."""


_ROUNDING = 1e-9
_DRAWS = 2**14
_STRIDE = 7919  # a prime: requests begin at different places of the draws


class Drafts:
    """Kept tokens of every verification step of every request."""

    def __init__(self, draft_tokens: int, acceptance: float, seed: int) -> None:
        """A draft is accepted with probability ``acceptance`` if all before it were."""
        self.window = 1 + draft_tokens  # tokens of a step: one and its drafts
        draws = np.random.default_rng(seed).random((_DRAWS, draft_tokens))
        accepted = np.logical_and.accumulate(draws < acceptance, axis=1).sum(axis=1)
        self._kept: list[int] = (1 + accepted).tolist()

    def kept(self, served: Served) -> int:
        return self._kept[(served.number * _STRIDE + served.verified) % _DRAWS]


class Scheduler:
    """Serves all requests."""

    def __init__(
        self,
        arrivals: Source,
        limits: Limits,
        prompts: Prompts,
        drafts: Drafts,
        clock: VirtualClock,
        outcome: Outcome,
    ) -> None:
        self.clock, self.prompts, self.cache, self.outcome = clock, prompts, prompts.cache, outcome
        # requests without a slot, the next one first
        self.waiting: deque[Served] = deque()  # thousands may wait
        # requests past their prompts, in the order in which these ended
        self.decoding: list[Served] = []
        self.prefilling: list[Served] = []  # requests with prompt tokens to compute, oldest first
        # requests that a tier brings something back for, in no order
        self.loading: list[Served] = []
        # requests that keep their blocks and do not run, oldest first
        self.paused: list[Served] = []
        self.deferrals = 0  # requests that ever waited for another one's prefix
        # requests ended or rejected since this was last emptied; None if nothing reads it
        self.ended: list[Served] | None = None
        self.records = True  # whether ``outcome`` is kept
        self.block_tokens = limits.block_tokens  # tokens of a block
        self.computed_tokens = 0  # prompt tokens computed, those computed again included
        self.again_tokens = 0  # computed tokens that a preempted request had computed before
        self.drafted = 0  # draft tokens proposed so far
        self.rolled_back = 0  # draft tokens rejected so far
        self.quiet_s = 0.0  # nothing but decode steps can end before; 0 where it is not known
        self._arrivals, self._limits, self._drafts = arrivals, limits, drafts
        self._finds_scheduled = limits.finds_scheduled
        self._preemption: Preemption
        if self.cache.reserves:
            self._preemption = LastAdmitted(self)
        elif limits.paused_blocks is None:
            self._preemption = Retraction(self)
        else:
            self._preemption = Pauses(self, limits.paused_blocks)
        self._stuck_at = -1  # cache.state() when a request last had to wait for blocks
        self._admitted = self._received = 0
        self.in_slots, self._held = 0, [0] * limits.ranks  # requests in slots, and of every rank
        self._delayed_steps = 0
        self._finished: list[Served] = []  # in the step under way

    @property
    def next_s(self) -> float:
        """When the next request comes or can go on; ``NEVER`` where none does."""
        return min([self._arrivals.next_s, *(served.ready_s for served in self.loading)])

    def run(self) -> None:
        while self.turn():
            pass

    def turn(self, until_s: float = NEVER) -> bool:
        """Take a step, or equal decode steps, or wait; False where nothing comes until then."""
        self.quiet_s = 0.0
        chunks = self._schedule()
        if chunks and not self._waits_for_ranks(chunks):
            self._delayed_steps = 0
            self._prefill(chunks)
        elif not self.decoding:
            return self._wait(until_s)
        else:
            self._decode(1 if chunks else self._quiet_steps(), until_s)
        if self.records:
            self.outcome.stepped(self)
        ended, self._finished = self._finished, []
        for served in ended:
            self.stop_decoding(served)
            self._finish(served)
        return True

    def _quiet_steps(self) -> int:
        """Decode steps in which no request begins, or needs or frees blocks; it may end."""
        if self._drafts.window > 1 or self.prefilling or self.paused:
            return 1
        if self._preemption.preempted:  # others may be admitted in the next step
            return 1
        steps = self.decoding[0].left
        for each in self.decoding:
            due = each.due - each.position
            steps = min(steps, due if due < each.left else each.left)
        return steps

    def _decode(self, steps: int, until_s: float) -> None:
        """Take a decode step, or up to ``steps`` until the next arrival."""
        if steps <= 1:
            self.clock.step(*self._advance(self.decoding), ())
            self._preemption.stepped(1)
            return
        rows = len(self.decoding)
        contexts = rows + sum([served.position for served in self.decoding])
        begin_s, next_s = self.clock.now_s, self.next_s
        taken = self.clock.decode(rows, contexts, steps, min(until_s, next_s))
        step_s = (self.clock.now_s - begin_s) / taken  # later ones take no less, as contexts grow
        quiet_s = self.clock.now_s + (steps - taken) * step_s * (1 - _ROUNDING)
        self.quiet_s = min(quiet_s, next_s)
        for served in self.decoding:
            served.position += taken
            served.left -= taken
            if not served.left:
                self._finished.append(served)
        self._preemption.stepped(taken)

    def _schedule(self) -> list[tuple[Served, Span]]:
        self._receive()
        for served in [each for each in self.loading if each.ready_s <= self.clock.now_s]:
            self.loading.remove(served)
            insert_by_age(self.prefilling, served)
        self._preemption.settle()
        chunks = list[tuple[Served, Span]]()
        if not self.prefilling and not self.waiting:
            return chunks
        limits, decoded = self._limits, 0
        if not limits.alone:
            decoded = len(self.decoding)
            if self._drafts.window > 1:
                decoded = sum([min(each.left, self._drafts.window) for each in self.decoding])
        budgets = [limits.chunk_tokens - decoded // limits.ranks] * limits.ranks
        for served in self.prefilling[:]:
            if served in self.prefilling:  # it may be preempted for another
                self._add_chunk(served, chunks, budgets)
        loading = len(self.loading)
        self._admit(chunks, budgets)
        if not chunks and len(self.loading) > loading:  # they took blocks, and decoding is next
            self._preemption.settle()
        if self._preemption.preempted:
            chunks = [each for each in chunks if each[0] in self.prefilling]
        return chunks

    def _waits_for_ranks(self, chunks: list[tuple[Served, Span]]) -> bool:
        """Whether prompts wait until every rank has one; every wait is a decode step."""
        ranks, limits = {served.rank for served, _ in chunks}, self._limits
        waits = limits.delay and len(self.decoding) > 0 and len(ranks) < limits.ranks
        if not waits or self._delayed_steps == LONGEST_DELAY:
            return False
        self._delayed_steps += 1
        return True

    def _receive(self) -> None:
        in_flight = len(self.waiting) + self.in_slots
        while (served := self._arrivals.take(self.clock.now_s, in_flight)) is not None:
            if served.total_tokens > self._limits.max_context_tokens:
                reason = "longer than the longest context"
            elif self._limits.blocks_for(served.total_tokens) > self.cache.total:
                reason = "longer than all blocks together"
            else:
                reason = self.cache.refuses(served.total_tokens)
            if reason:
                self.outcome.rejected[reason] += 1
                self._report(served)
            else:
                served.rank = self._received % self._limits.ranks  # they take turns as they come
                self._received += 1
                self.waiting.append(served)
                self.prompts.arrive(served)
                in_flight += 1

    def start_again(self, served: Served) -> None:
        """Take everything from a request, which will be recomputed."""
        self._let_go(served)
        served.evictions += 1
        served.position = 0
        served.prompt_tokens = served.input_tokens + served.generated

    def _admit(self, chunks: list[tuple[Served, Span]], budgets: list[int]) -> None:
        """Give a rank's slots and tokens to those that wait for it, unless others need blocks."""
        if self.paused or self._preemption.preempted:
            return
        while True:
            slots, left = self._limits.slots, budgets[:]
            for rank, held in enumerate(self._held):
                if held >= slots or left[rank] < 0:
                    left[rank] = 0
            if not any(left) or not self.waiting:
                return
            chosen = self._take(left)
            if chosen is None:
                return
            self._start(chosen)
            if chosen.ready_s <= self.clock.now_s:
                self._add_chunk(chosen, chunks, budgets)
            else:
                budgets[chosen.rank] -= chosen.prompt_tokens - chosen.position

    def _take(self, budgets: list[int]) -> Served | None:
        """Take the oldest request that can begin out of those that wait; None if none can.

        ``budgets``: prompt tokens that the next step has left for each rank; 0 where no request
        can begin.  Where the oldest that could lacks blocks, no other overtakes it, and it is not
        looked at again before blocks have come back.  One that waits for a prefix lets others
        pass.
        """
        if self._stuck_at == self.cache.state():
            return None
        begun, prompts = [*self.prefilling, *self.loading], self.prompts
        for place, served in enumerate(self.waiting):
            if not budgets[served.rank] or _is_blocked(served, begun):
                continue
            found = prompts.look_up(served)
            if self._limits.defer and self._defers(served, found, begun):
                continue
            promised = self._preemption.promised(served, begun)
            needed = self._limits.blocks_for(served.prompt_tokens)
            if prompts.fits(served, found, needed, promised, budgets[served.rank]):
                del self.waiting[place]
                return served
            self._stuck_at = self.cache.state()
            return None
        return None

    def _defers(self, served: Served, found: int, begun: list[Served]) -> bool:
        """Whether another request is computing the block this one needs next."""
        if found >= self.prompts.usable(served):
            return False
        key = served.keys[found]
        for other in begun:
            if len(other.keys) > found >= other.committed and other.keys[found] == key:
                self.deferrals += not served.deferred
                served.deferred, served.blocked_by, served.found = True, other, found
                return True
        return False

    def _add_chunk(
        self, served: Served, chunks: list[tuple[Served, Span]], budgets: list[int]
    ) -> None:
        before = served.position
        take = min(budgets[served.rank], served.prompt_tokens - before)
        if take > 0 and self._preemption.goes_on(served, before + take):
            chunks.append((served, (before, before + take)))
            budgets[served.rank] -= take
            if self._finds_scheduled and any(budgets):  # else no other request could find it
                self._compute(served, before + take)

    def _start(self, served: Served) -> None:
        admitted_s = served.admitted_s
        now_s = self.clock.now_s
        needed = self._limits.blocks_for(served.prompt_tokens)
        moved_bytes = self.prompts.begin(served, needed)
        if admitted_s is None:
            served.position = max(served.position, served.sent_tokens)
        self.clock.copy(moved_bytes)
        served.admitted_s = now_s if admitted_s is None else admitted_s
        served.place = self._admitted
        self._admitted += 1
        self._held[served.rank] += 1
        self.in_slots += 1
        self.again_tokens += max(0, served.reached - served.position)
        if served.ready_s > self.clock.now_s:
            self.loading.append(served)
        else:
            insert_by_age(self.prefilling, served)

    def lacks(self, served: Served) -> int:
        end = min(served.position + self._drafts.window, served.total_tokens)
        return max(0, self._limits.blocks_for(end) - served.blocks)

    def lacking(self) -> dict[Served, int]:
        """Blocks that requests which decode need before the next step; those that need some."""
        due = [each for each in self.decoding if each.position >= each.due]
        return {served: needed for served in due if (needed := self.lacks(served))}

    def start_decoding(self, served: Served) -> None:
        served.left = served.output_tokens - served.generated
        served.begun, served.verified = served.position, 0
        served.due = served.windows = 0
        self.decoding.append(served)

    def stop_decoding(self, served: Served) -> None:
        self.decoding.remove(served)
        served.generated = served.output_tokens - served.left
        served.reached = max(served.reached, served.position)

    def stop(self, served: Served) -> None:
        if served in self.prefilling:
            self.prefilling.remove(served)
        else:
            self.stop_decoding(served)
        self.start_again(served)

    def _prefill(self, chunks: list[tuple[Served, Span]]) -> None:
        decoding = self._decoding_beside(chunks)
        if self._finds_scheduled:  # others find them before the step is over
            self._compute_all(chunks)
            decoded = self._advance(decoding)
        else:
            decoded = self._advance(decoding)
            self._compute_all(chunks)
        self.clock.step(*decoded, chunks)
        for served, (_, after) in chunks:
            if after == served.prompt_tokens:
                self._end_prompt(served)

    def _decoding_beside(self, chunks: list[tuple[Served, Span]]) -> list[Served]:
        """Requests that decode in a step with these chunks.

        Where prompts are computed alone, ranks without one decode in the same step; with drafts
        they wait (SGLang 0.5.15, ``scheduler.py``: ``get_next_batch_to_run``).
        """
        if not self._limits.alone:
            return self.decoding
        if self._limits.ranks == 1 or self._drafts.window > 1:
            return []
        busy = {served.rank for served, _ in chunks}
        return [served for served in self.decoding if served.rank not in busy]

    def _compute_all(self, chunks: list[tuple[Served, Span]]) -> None:
        for served, (_, after) in chunks:
            if served.position < after:
                self._compute(served, after)

    def _compute(self, served: Served, position: int) -> None:
        self.computed_tokens += position - served.position
        served.position = position
        served.reached = max(served.reached, position)
        self.clock.copy(self.prompts.commit(served))

    def _end_prompt(self, served: Served) -> None:
        self.prefilling.remove(served)
        if served.first_token_s is None:
            served.first_token_s = self.clock.now_s
        served.generated += served.output_tokens > 0
        if served.generated < served.output_tokens:
            self.start_decoding(served)
            self.cache.decode(served.number)
        else:
            self._finish(served)

    def _advance(self, decoding: list[Served]) -> tuple[int, int, int]:
        due = list[Served]()
        if not self.cache.reserves:
            due = [served for served in decoding if served.position >= served.due]
        if due:
            lacking = [(served, self.lacks(served)) for served in due]
            self.cache.get_new_blocks(sum([blocks for _, blocks in lacking]))
            for served, blocks in lacking:
                served.blocks += blocks
        if self._drafts.window > 1:
            tokens, contexts = self._verify(decoding)
        else:
            tokens, contexts = len(decoding), 0
            for served in decoding:
                served.position += 1
                served.left -= 1
                contexts += served.position
                if not served.left:
                    self._finished.append(served)
        if self._drafts.window > 1:  # something happens in every step
            self.cache.decoded(decoding)
        elif due:
            self.cache.decoded(due)
            for served in due:
                needs = served.blocks * self.block_tokens + self._limits.ratio - 1
                served.due = self.cache.next_event(served, needs)
        return len(decoding), tokens, contexts

    def _verify(self, decoding: list[Served]) -> tuple[int, int]:
        """Let requests verify their drafts; returns the tokens, and what these see."""
        befores = [served.position for served in decoding]
        taken = [min(served.left, self._drafts.window) for served in decoding]
        for served, tokens in zip(decoding, taken, strict=True):
            kept = min(self._drafts.kept(served), served.left)
            served.position += kept
            served.left -= kept
            served.verified += 1
            self.drafted += tokens - 1
            self.rolled_back += tokens - kept
            if not served.left:
                self._finished.append(served)
        pairs = zip(befores, taken, strict=True)
        return sum(taken), sum([(before + tokens) * tokens for before, tokens in pairs])

    def _wait(self, until_s: float) -> bool:
        """No request runs: let a paused one resume next, or wait for the next that can."""
        if self.paused and not self.loading:
            self._preemption.make_room()
            return True
        assert self.loading or not self.waiting, "a request waits although none is running"
        self._preemption.idle()
        next_s = self.next_s
        if next_s == NEVER or next_s > until_s:
            return False
        self.clock.wait_until(next_s)
        return True

    def _finish(self, served: Served) -> None:
        served.finished_s = self.clock.now_s
        self._let_go(served)
        served.forget_keys()
        if self.records:
            self.outcome.finish(served)
        self._report(served)

    def _report(self, served: Served) -> None:
        served.ended_s = self.clock.now_s
        if self.ended is not None:
            self.ended.append(served)

    def _let_go(self, served: Served) -> None:
        self._held[served.rank] -= 1
        self.in_slots -= 1
        self.prompts.end(served)


def _is_blocked(served: Served, begun: list[Served]) -> bool:
    """Whether the prefix a request waits for is still being computed."""
    other = served.blocked_by
    if other is not None and other in begun and other.committed <= served.found:
        return True
    served.blocked_by = None
    return False
