"""What happens when requests that decode need more blocks than there are.

vLLM preempts the last admitted request until the others have their blocks, SGLang retracts those
with the least output, and the toolkit's own rule pauses the youngest, which keep their blocks.
"""

from itertools import accumulate, takewhile
from typing import TYPE_CHECKING

from dsv4kv.core.served import Served, insert_by_age

if TYPE_CHECKING:
    from dsv4kv.core.scheduler import Scheduler


class Preemption:
    """Makes room for the next step."""

    def __init__(self, scheduler: "Scheduler") -> None:
        self.preempted = False  # by an engine's rule, which then admits none in that step
        self._scheduler = scheduler

    def settle(self) -> None:
        """Before a step: see to it that all that decode have the blocks for it."""

    def make_room(self) -> None:
        """No request runs: the oldest paused one must be able to resume next."""

    def promised(self, served: Served, begun: list[Served]) -> int:
        """Blocks that must be left when a request begins; ``begun`` do not decode yet."""
        return 0

    def stepped(self, steps: int) -> None:
        """Steps without prompts were taken."""

    def idle(self) -> None:
        """No request runs."""

    def goes_on(self, served: Served, position: int) -> bool:
        """Whether a prompt has blocks up to a position; else it was preempted."""
        return True


class Pauses(Preemption):
    """Pauses the youngest requests when blocks run out."""

    def __init__(self, scheduler: "Scheduler", most_blocks: int) -> None:
        """``most_blocks``: what paused requests may keep for themselves."""
        super().__init__(scheduler)
        self._most_blocks, self._paused = most_blocks, scheduler.paused

    def settle(self) -> None:
        """Pause requests that lack blocks, preempt what may not keep its own, resume others."""
        scheduler = self._scheduler
        lacking = scheduler.lacking()
        missing = sum(lacking.values()) - scheduler.cache.available
        if missing > 0:
            for served in sorted(lacking, key=lambda each: -each.number):
                if missing <= 0:
                    break
                missing -= lacking[served]
                scheduler.stop_decoding(served)
                served.pauses += 1
                insert_by_age(self._paused, served)
        while self._paused and self._staying_blocks() > self._most_blocks:
            self._start_again()
        able = self._able()
        for served in self._paused[:able]:
            scheduler.start_decoding(served)
        del self._paused[:able]

    def make_room(self) -> None:
        if self._scheduler.lacks(self._paused[0]) > self._scheduler.cache.available:
            assert len(self._paused) > 1, "a request does not fit although it is alone"
            self._start_again()

    def promised(self, served: Served, begun: list[Served]) -> int:
        return sum(self._scheduler.lacking().values())

    def _staying_blocks(self) -> int:
        """Blocks that those hold for themselves that could not resume now."""
        shared, staying = self._scheduler.cache.per_shared, self._paused[self._able() :]
        return sum([each.blocks - each.committed * shared for each in staying])

    def _start_again(self) -> None:
        served = self._paused.pop()
        self._scheduler.start_again(served)
        insert_by_age(self._scheduler.waiting, served)

    def _able(self) -> int:
        """How many can resume next to those that run: the oldest, none overtakes another."""
        if not self._paused:
            return 0
        scheduler = self._scheduler
        left = scheduler.cache.available - sum(scheduler.lacking().values())
        needed = accumulate(map(scheduler.lacks, self._paused))
        return sum(1 for _ in takewhile(lambda blocks: blocks <= left, needed))


FIRST_RATIO, LEAST_RATIO, DECAY_STEPS = 0.7, 0.7 * 0.14, 600
_CLIPPED_TOKENS, _RETRACT_STEPS = 4096, 20


class Retraction(Preemption):
    """SGLang's: retracts requests with the least output, and admits by what others may generate.

    ``new_token_ratio``, the share of the remaining output that admission reserves, starts at 0.7,
    falls with every decode step, and is what was generated so far after a retraction.  What a
    request may generate is taken to be what it does.
    Source: SGLang 0.5.15 and 0.5.23, ``new_token_ratio_tracker.py``, ``schedule_policy.py``
    (``PrefillAdder.add_one_req``), ``schedule_batch.py`` (``_get_decode_retraction_order``).
    """

    def __init__(self, scheduler: "Scheduler") -> None:
        super().__init__(scheduler)
        self.ratio = FIRST_RATIO

    def settle(self) -> None:
        """Retract until the others have blocks; all, where a prompt in chunks has theirs."""
        scheduler, self.preempted = self._scheduler, False
        lacking = scheduler.lacking()
        needed = sum(lacking.values())
        if needed <= scheduler.cache.available:
            return
        keeps = sorted(
            scheduler.decoding,
            key=lambda each: (each.output_tokens - each.left, -each.input_tokens),
            reverse=True,
        )
        while needed > scheduler.cache.available:
            served = keeps.pop()
            needed -= lacking.pop(served, 0)
            scheduler.stop(served)
            scheduler.waiting.append(served)
            self.preempted = True
        if self.preempted:
            most = sum([each.output_tokens for each in scheduler.decoding])
            done = most - sum([each.left for each in scheduler.decoding])
            estimate = (done + _RETRACT_STEPS * len(scheduler.decoding)) / (most + 1)
            self.ratio = min(1.0, estimate)

    def promised(self, served: Served, begun: list[Served]) -> int:
        """Blocks that must be left when a request begins, in addition to its prompt's.

        What those that run may still generate, by the ratio; all that it may itself, and those
        that began with it, with a page each.  Alone it needs no more than its prompt (the engine
        would let a request wait for ever that leaves no page).
        """
        decoding = self._scheduler.decoding
        if not (decoding or begun):
            return 0
        size = self._scheduler.block_tokens
        left = sum([min(each.left, _CLIPPED_TOKENS) for each in decoding])
        own = [max(each.output_tokens - each.generated, 0) for each in (served, *begun)]
        kept = float(left) * self.ratio
        kept += sum([min(tokens, _CLIPPED_TOKENS) + size for tokens in own])
        prompt = served.prompt_tokens
        return int((prompt + kept) // size) + 1 - -(-prompt // size)

    def stepped(self, steps: int) -> None:
        decay = (FIRST_RATIO - LEAST_RATIO) / DECAY_STEPS
        while steps and self.ratio != LEAST_RATIO:
            self.ratio = max(self.ratio - decay, LEAST_RATIO)
            steps -= 1

    def idle(self) -> None:
        self.ratio = FIRST_RATIO


class LastAdmitted(Preemption):
    """vLLM's: requests take blocks one after the other, and the last admitted gives way.

    Source: vLLM 0.33, ``v1/core/sched/scheduler.py``: ``schedule`` gives blocks to what runs in
    order of admission and, first come, first served, preempts ``running[-1]`` until they suffice.
    """

    def settle(self) -> None:
        self.preempted = False
        decoding, size, place = self._scheduler.decoding, self._scheduler.block_tokens, 0
        cache = self._scheduler.cache
        while place < len(decoding):
            served = decoding[place]
            if served.position >= served.due:
                due = cache.reserve(served.number, served.position)
                if due < 0:
                    running = decoding[:place]
                    place -= self._preempt() in running
                    continue
                served.due = due
                served.blocks = -(-(served.position + 1) // size)
            place += 1

    def goes_on(self, served: Served, position: int) -> bool:
        while self._scheduler.cache.lacks(served.number, position):
            if self._preempt() is served:
                return False
        return True

    def _preempt(self) -> Served:
        scheduler = self._scheduler
        running = [*scheduler.decoding, *scheduler.prefilling]
        last = max(running, key=lambda served: served.place)
        scheduler.stop(last)
        scheduler.waiting.appendleft(last)
        self.preempted = True
        return last
