"""The serving loop in virtual time: admit, prefill in chunks, decode, pause, resume, release.

A turn is a step with prompt chunks in it, or as many steps as pass until something can happen: a
request comes or may end, a prompt is nearly computed, or blocks run out. Prompt chunks share a
step with decoding requests; SGLang's have steps of their own. Older requests go first everywhere.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from dsv4kv.clock.steps import Steps
from dsv4kv.engines.rules import find_rule
from dsv4kv.model.schema import TableGroup
from dsv4kv.replay.clock import CostModel, Span, VirtualClock, Work
from dsv4kv.replay.contract import Ledger, Prompts
from dsv4kv.replay.decoders import Aside, Decoders, Stepping
from dsv4kv.replay.preemption import Batch, Chunks, open_preemption
from dsv4kv.replay.requests import NEVER, Served, Source, insert_by_age

Promised = Callable[[Served, Sequence[Served]], int]
"""Blocks that must be left when a request begins where those have begun and do not decode yet."""


class Admission:
    """The queue; one that waits for a prefix lets others pass.

    Attributes:
        waiting: Requests in it, the next one first.
        deferrals: Requests that ever waited for another one's prefix.
    """

    def __init__(
        self, ledger: Ledger, prompts: Prompts, group: TableGroup, *, defer: bool
    ) -> None:
        self.waiting: list[Served] = []
        self.deferrals = 0
        self._ledger, self._prompts, self._group, self._defer = ledger, prompts, group, defer
        self._stuck_at = -1  # ledger.freed when a request last had to wait for blocks

    def add(self, served: Served) -> None:
        """Queue a request after all others."""
        self.waiting.append(served)

    def take(
        self, budgets: Mapping[int, int], prefilling: Sequence[Served], promised: Promised
    ) -> Served | None:
        """Take the oldest request of some ranks out that can begin; None if none can.

        ``budgets``: prompt tokens that the next step has left for each.
        Where the oldest that could lacks blocks, nobody overtakes it, and it is not looked at
        again before blocks have come back.
        """
        if self._stuck_at == self._ledger.freed:
            return None
        for place, served in enumerate(self.waiting):
            if served.rank not in budgets or self._still_blocked(served, prefilling):
                continue
            found = self._prompts.look_up(served)
            if self._defers(served, found, prefilling):
                continue
            promise = promised(served, prefilling)
            if self._fits(served, found, promise, budgets[served.rank]):
                return self.waiting.pop(place)
            self._stuck_at = self._ledger.freed
            return None
        return None

    def _still_blocked(self, served: Served, prefilling: Sequence[Served]) -> bool:
        """Whether the prefix a request waits for is still being computed."""
        other = served.blocked_by
        if other is None:
            return False
        if other in prefilling and other.committed <= served.found:
            return True
        served.blocked_by = None
        return False

    def _defers(self, served: Served, found: int, prefilling: Sequence[Served]) -> bool:
        """Whether another request is computing the block this one needs next."""
        if not self._defer or not self._prompts.misses(served, found):
            return False
        key = served.keys[found]
        for other in prefilling:
            if len(other.keys) > found >= other.committed and other.keys[found] == key:
                self.deferrals += not served.deferred
                served.deferred, served.blocked_by, served.found = True, other, found
                return True
        return False

    def _fits(self, served: Served, found: int, promised: int, step_tokens: int) -> bool:
        """Whether everything a whole prompt needs can be had."""
        needed = self._group.blocks_for(served.prompt_tokens)
        return self._prompts.fits(served, found, needed, promised, step_tokens)


@dataclass(frozen=True)
class Limits:
    """What a scheduler keeps to.

    Attributes:
        step_tokens: Token budget of a step.
        max_requests: Requests that hold a slot.
        rule: ``prefix.rule``: by whose rule requests are admitted and preempted.
        paused_blocks: Blocks that paused requests may keep, by the toolkit's own.
        max_context_tokens: Longest request.
        defer: Let a request wait while another computes its prefix.
        longest_stretch: Most steps of a turn; None as many as nothing happens in.
        chunkwise: Whether a step computes one chunk of a prompt: what is computed is written to
            a tier when its step ends.
        ranks: Replicas that step together, each with requests and prompt chunks of its own.
        alone: Whether steps with prompt chunks leave out what decodes there.
        delay: Whether prompts wait for one on every rank, ``LONGEST_DELAY`` steps at most.
    """

    step_tokens: int
    max_requests: int
    rule: str
    paused_blocks: int
    max_context_tokens: int
    defer: bool
    longest_stretch: int | None = None
    chunkwise: bool = False
    ranks: int = 1
    alone: bool = False
    delay: bool = False

    @property
    def chunk_tokens(self) -> int:
        """Prompt tokens of a step on one rank."""
        return self.step_tokens // self.ranks

    @property
    def finds_scheduled(self) -> bool:
        """Whether a request finds what others compute in the very step that it is admitted to."""
        return find_rule(self.rule).caches_scheduled and not self.delay

    @property
    def slots(self) -> int:
        """Requests that one rank runs at most."""
        return max(1, self.max_requests // self.ranks)


LONGEST_DELAY = 30
"""Steps for which prompts wait; SGLang 0.5.23, ``prefill_delayer_max_delay_passes``."""


class Observer(Protocol):
    """Is notified of what happens."""

    def reject(self, served: Served, reason: str) -> None:
        """A request can never be served."""

    def finish(self, served: Served) -> None:
        """A request has all its tokens."""

    def stepped(self, scheduler: "Scheduler") -> None:
        """One step or several have been taken; requests that have ended are still there."""


class _Plan(NamedTuple):
    """Decode steps, when the next request comes, and when they end."""

    steps: int
    work: Work
    next_s: float
    end_s: float


class Scheduler:
    """Serves all requests.

    Attributes:
        clock: Virtual time.
        decoders: Requests past their prompts.
        prefilling: Requests with prompt tokens to compute, oldest first.
        loading: Requests that a tier brings something back for, in no order.
        ledger: The blocks.
        prompts: What is reused.
        computed_tokens: Prompt tokens computed, those computed again included.
        again_tokens: Of which had been computed before by a request that was preempted.
    """

    def __init__(
        self,
        arrivals: Source,
        limits: Limits,
        group: TableGroup,
        ledger: Ledger,
        prompts: Prompts,
        cost: CostModel,
        decoders: Decoders,
        clock: VirtualClock,
        observer: Observer,
    ) -> None:
        self.clock, self.decoders, self.ledger, self.prompts = clock, decoders, ledger, prompts
        self.prefilling: list[Served] = []
        self.loading: list[Served] = []
        self.computed_tokens = self.again_tokens = 0
        self._arrivals, self._limits, self._group = arrivals, limits, group
        self._finds_scheduled = limits.finds_scheduled
        self._cost, self._observer = cost, observer
        self._admission = Admission(ledger, prompts, group, defer=limits.defer)
        batch = Batch(ledger, decoders, self.prefilling, self.waiting, self._start_again)
        self._preemption = open_preemption(limits.rule, batch, limits.paused_blocks)
        self._admitted = self._received = 0
        self._held = [0] * limits.ranks  # slots of every rank
        self._plan: _Plan | None = None  # decode steps that were put off
        self._delayed_steps = 0

    @property
    def paused(self) -> list[Served]:
        """Requests that keep their blocks and do not run, oldest first."""
        return self._preemption.paused

    @property
    def waiting(self) -> list[Served]:
        """Requests without a slot, oldest first."""
        return self._admission.waiting

    @property
    def deferrals(self) -> int:
        """Requests that waited for another one's prefix."""
        return self._admission.deferrals

    @property
    def in_slots(self) -> int:
        """Requests that hold a slot."""
        computing = len(self.decoders.members) + len(self.prefilling)
        return computing + len(self.loading) + len(self._preemption.paused)

    def run(self) -> None:
        """Serve every request to its end."""
        while self.turn():
            pass

    def turn(self, until_s: float = NEVER) -> bool:
        """Do what comes next; False when nothing is left.

        Also where it is to wait, or to decode and nothing else, beyond ``until_s``: then it is put
        off, as somebody may come before. What happens is the same.
        """
        chunks = self._schedule() if self._plan is None else []
        if chunks and not self._waits_for_ranks(chunks):
            self._delayed_steps = 0
            self._prefill(chunks)
        elif not len(self.decoders):
            return self._wait(until_s)
        elif not self._decode(until_s):
            return False
        self._observer.stepped(self)
        self._finish(self.decoders.remove_done())
        return True

    def _schedule(self) -> list[tuple[Served, Span]]:
        """Find out who runs, and the prompt chunks of the next step."""
        self._receive()
        if self.loading:
            self._go_on()
        self._preemption.settle()
        chunks, budgets = list[tuple[Served, Span]](), self._budgets()
        for served in self.prefilling[:]:
            if served in self.prefilling:  # it may be preempted for another
                self._add_chunk(served, chunks, budgets)
        loading = len(self.loading)
        self._admit(chunks, budgets)
        if not chunks and len(self.loading) > loading:  # they took blocks, and decoding is next
            self._preemption.settle()
        return chunks

    @property
    def resumes_s(self) -> float:
        """When something comes of what was put off; ``NEVER`` where nothing is left."""
        return self._plan.end_s if self._plan else self._next_s

    @property
    def _longest_stretch(self) -> int | None:
        """Most steps of a turn: one where nobody was admitted only for this step.

        One where prompts wait for others, too.
        """
        waits = self._preemption.preempted or self._delayed_steps
        return 1 if waits else self._limits.longest_stretch

    def _waits_for_ranks(self, chunks: list[tuple[Served, Span]]) -> bool:
        """Whether prompts wait until every rank has one; every wait is a decode step."""
        ranks, limits = {served.rank for served, _ in chunks}, self._limits
        waits = limits.delay and len(self.decoders) > 0 and len(ranks) < limits.ranks
        if not waits or self._delayed_steps == LONGEST_DELAY:
            return False
        self._delayed_steps += 1
        return True

    @property
    def _decoded_tokens(self) -> int:
        """Tokens of the budget that decoding takes of a step with prompt chunks."""
        return 0 if self._limits.alone else self.decoders.tokens_per_step

    # ---- who runs -------------------------------------------------------------------------------

    def _receive(self) -> None:
        in_flight = len(self.waiting) + self.in_slots
        while (served := self._arrivals.take(self.clock.now_s, in_flight)) is not None:
            if reason := self._impossible(served):
                self._observer.reject(served, reason)
            else:
                served.rank = self._received % self._limits.ranks  # they take turns as they come
                self._received += 1
                self._admission.add(served)
                self.prompts.arrive(served)
                in_flight += 1

    @property
    def _next_s(self) -> float:
        """When the next request comes or can go on."""
        return min([self._arrivals.next_s, *(served.ready_s for served in self.loading)])

    def _go_on(self) -> None:
        """Compute the prompts of requests for which all has come back."""
        for served in [each for each in self.loading if each.ready_s <= self.clock.now_s]:
            self.loading.remove(served)
            insert_by_age(self.prefilling, served)

    def _impossible(self, served: Served) -> str:
        """Why a request can never be served; empty if it can."""
        if served.total_tokens > self._limits.max_context_tokens:
            return "longer than the longest context"
        if self._group.blocks_for(served.total_tokens) > self.ledger.total:
            return "longer than all blocks together"
        return self.prompts.refuses(served)

    def _start_again(self, served: Served) -> None:
        self._let_go(served)
        served.evictions += 1
        served.position = 0
        served.prompt_tokens = served.input_tokens + served.generated

    def _admit(self, chunks: list[tuple[Served, Span]], budgets: list[int]) -> None:
        """Give slots to waiting requests, unless others need the blocks.

        Every rank has slots and a step's tokens of its own: one that is full lets those that came
        to it wait, whatever is free on others.
        """
        if self.paused or self._preemption.preempted:
            return
        while True:
            held = enumerate(self._held)
            slots = self._limits.slots
            left = {rank: budgets[rank] for rank, n in held if n < slots and budgets[rank] > 0}
            if not left:
                return
            begun = [*self.prefilling, *self.loading]
            chosen = self._admission.take(left, begun, self._preemption.promised)
            if chosen is None:
                return
            self._start(chosen)
            if chosen.ready_s <= self.clock.now_s:
                self._add_chunk(chosen, chunks, budgets)
            else:
                budgets[chosen.rank] -= chosen.prompt_tokens - chosen.position

    def _add_chunk(
        self, served: Served, chunks: list[tuple[Served, Span]], budgets: list[int]
    ) -> None:
        """Give a prompt what its rank has left of the step's tokens."""
        before = served.position
        take = min(budgets[served.rank], served.prompt_tokens - before)
        if take > 0 and self._preemption.goes_on(served, before + take):
            chunks.append((served, (before, before + take)))
            budgets[served.rank] -= take
            if self._finds_scheduled and any(budgets):  # else nobody comes who could find it
                self._compute(served, before + take)

    def _budgets(self) -> list[int]:
        """Prompt tokens of a step on every rank."""
        limits = self._limits
        return [limits.chunk_tokens - self._decoded_tokens // limits.ranks] * limits.ranks

    def _start(self, served: Served) -> None:
        admitted_s = served.admitted_s
        now_s = self.clock.now_s
        moved_bytes = self.prompts.begin(served)
        if admitted_s is None:
            served.position = max(served.position, served.sent_tokens)
        wanted = max(self._group.blocks_for(served.prompt_tokens), served.blocks)
        self.ledger.take(wanted - served.blocks)
        served.blocks = wanted
        self._copy(moved_bytes)
        served.admitted_s = now_s if admitted_s is None else admitted_s
        served.place = self._admitted
        self._admitted += 1
        self._held[served.rank] += 1
        self.again_tokens += max(0, served.reached - served.position)
        if served.ready_s > self.clock.now_s:
            self.loading.append(served)
        else:
            insert_by_age(self.prefilling, served)

    # ---- what they do ---------------------------------------------------------------------------

    def _prefill(self, chunks: list[tuple[Served, Span]]) -> None:
        """One step of prompt chunks and whatever decodes, or several of a long prompt."""
        left_out = self._left_out(chunks)
        decoding = len(left_out) < len(self.decoders)
        aside = None
        if decoding and left_out:
            assert isinstance(self.decoders, Stepping)  # with drafts all are left out, or none
            aside = self.decoders.set_aside(left_out)
        steps = self._steps_alike(chunks, decoding=decoding)
        chunks, further = self._put_together(chunks, steps)
        done, decoded = Work(), Steps()
        if decoding:
            done, decoded = self.decoders.work(steps), self.decoders.steps(steps)
        ranks = [served.rank for served, _ in chunks]
        work = self._cost.mixed(done, decoded, [span for _, span in chunks], steps, ranks)
        if decoding:
            self._advance(steps, aside, further)
        for served, (before, after) in chunks:
            size = (after - before) // steps
            ends = range(max(before, served.position) + size, after + 1, size)
            if not ends:
                continue
            if self.prompts.at_once:
                self._compute(served, after, ends[:-1])
            else:
                for end in ends:
                    self._compute(served, end)
        self.clock.work(work)
        self._end_prompts([s for s, (_, after) in chunks if after == s.prompt_tokens])

    def _put_together(
        self, chunks: list[tuple[Served, Span]], steps: int
    ) -> tuple[list[tuple[Served, Span]], Chunks | None]:
        """All chunks of so many steps like the first, and where those end that are not computed.

        Of one step they are computed before anybody decodes, where that is when others find them.
        """
        if steps > 1:
            ((served, (before, after)),) = chunks
            size, end = after - before, before + steps * (after - before)
            ends = range(max(before, served.position) + size, end + 1, size)
            return [(served, (before, end))], Chunks(served, ends)
        if self._finds_scheduled:
            for served, (_, after) in chunks:
                if served.position < after:
                    self._compute(served, after)
        return chunks, None

    def _left_out(self, chunks: list[tuple[Served, Span]]) -> list[int]:
        """Places of the decoding requests that a step with these chunks leaves out.

        Where prompts are computed alone, ranks without one decode in the same step; with drafts
        they wait (SGLang 0.5.15, ``scheduler.py``: ``get_next_batch_to_run``).
        """
        if not self._limits.alone:
            return []
        members = enumerate(self.decoders.members)
        if self._limits.ranks == 1 or self.decoders.window > 1:
            return [place for place, _ in members]
        busy = {served.rank for served, _ in chunks}
        return [place for place, served in members if served.rank in busy]

    def _steps_alike(self, chunks: list[tuple[Served, Span]], *, decoding: bool) -> int:
        """Steps in which one prompt has every token that does not decode and nothing happens.

        More is left of it than a step computes, so nobody is admitted. Blocks are free, so
        nothing is evicted between two chunks; none come back, so nobody goes on. (Where requests
        do not wait for each other's prefixes, a chunk may give blocks back: that is one step.)
        """
        limits = self._limits
        apart = limits.defer or self._finds_scheduled
        if len(chunks) > 1 or not apart or limits.chunkwise or limits.delay:
            return 1
        served, (before, after) = chunks[0]
        most = max(1, (served.prompt_tokens - before - 1) // (after - before))
        most = min(most, self._longest_stretch or most)
        if decoding:
            most = self.decoders.quiet_steps(most, self.prompts.spare)
        return most if most == 1 else self._preemption.quiet(served, (before, after), most)

    def _compute(self, served: Served, position: int, earlier: Sequence[int] = ()) -> None:
        """A prompt chunk that ends at a position; others before it ended ``earlier``."""
        self.computed_tokens += position - served.position
        served.position = position
        served.reached = max(served.reached, position)
        self._copy(self.prompts.commit(served, earlier))

    def _end_prompts(self, answered: list[Served]) -> None:
        """A prompt's end gives the first token."""
        for served in answered:
            self.prefilling.remove(served)
            if served.first_token_s is None:
                served.first_token_s = self.clock.now_s
            served.generated += served.output_tokens > 0
            if served.generated < served.output_tokens:
                self.decoders.add(served)
                self.prompts.answered(served)
            else:
                self._finish([served])

    def _decode(self, until_s: float) -> bool:
        """As many decode steps as nothing happens in; False where they would end after that."""
        plan, next_s = self._plan, self._next_s
        if plan is None or plan.next_s != next_s:
            steps, work = self.decoders.plan(
                self.ledger.available,
                self.clock,
                next_s,
                self._preemption.longest(self._longest_stretch),
            )
            plan = _Plan(steps, work, next_s, self.clock.after(work))
        if next_s > until_s < plan.end_s:
            self._plan = plan
            return False
        self._plan = None
        self._advance(plan.steps)
        self.clock.work(plan.work)
        self._preemption.stepped(plan.steps)
        return True

    def _advance(
        self, steps: int, aside: Aside | None = None, prompt: Chunks | None = None
    ) -> None:
        """Decode so many steps, but for those that were left out; with chunks of a prompt."""
        self._preemption.advance(steps, prompt)
        if aside:
            assert isinstance(self.decoders, Stepping)
            self.decoders.put_back(aside)
        self.prompts.decoded(self.decoders)

    def _wait(self, until_s: float) -> bool:
        """Nobody runs: let a paused request go on next, or wait for the next that can."""
        if self.paused and not self.loading:
            self._preemption.make_room()
            return True
        assert self.loading or not self.waiting, "a request waits although none is running"
        self._preemption.stepped(0)
        if self._next_s == NEVER or self._next_s > until_s:
            return False
        self.clock.wait_until(self._next_s)
        return True

    def _finish(self, ended: list[Served]) -> None:
        for served in ended:
            served.finished_s = self.clock.now_s
            self._let_go(served)
            self._observer.finish(served)

    def _let_go(self, served: Served) -> None:
        self._held[served.rank] -= 1
        self.prompts.end(served)

    def _copy(self, moved_bytes: int) -> None:
        """Move windows and states to or from where they are kept."""
        if moved_bytes:
            self.clock.work(Work(copy_bytes=moved_bytes))
