"""Who is paused, resumed and evicted, told plainly beside a scheduler."""

from collections.abc import Callable

from dsv4kv.replay.build import Replay
from dsv4kv.replay.requests import Served
from tests.replay.scenes import everyone


class PlainPauses:
    """Says who will be before every decision, and compares."""

    def __init__(self, replay: Replay) -> None:
        """Watch a replay that has not begun."""
        self.scheduler, self.group = replay.scheduler, replay.memory.group
        share = replay.config.scheduler.paused_share
        self.may_keep = int(replay.memory.num_blocks * share)
        for name in ("pause", "evict", "resume"):
            self.watch(f"_{name}", getattr(self, name))

    def watch(self, name: str, expect: Callable[[], set[int]]) -> None:
        """``expect`` gives the requests that are paused once the method is done."""
        pauses = self.scheduler._preemption
        really = getattr(pauses, name)

        def call() -> None:
            expected = expect() if self.something_may_happen() else set()
            really()
            paused = [served.number for served in self.scheduler.paused]
            assert paused == sorted(expected)

        setattr(pauses, name, call)

    def something_may_happen(self) -> bool:
        """Whether any is paused, or may be: a window is shorter than a block."""
        scheduler = self.scheduler
        if not scheduler.paused and len(scheduler.decoders) <= scheduler.ledger.available:
            return False
        everyone(scheduler)  # brings what they hold up to date
        return True

    def lacks(self, served: Served, left: int) -> int:
        """Blocks a request needs for its next step."""
        end = served.position + min(left, self.scheduler.decoders.window)
        return max(0, self.group.blocks_for(end) - served.blocks)

    def decoding(self) -> dict[int, int]:
        """Blocks that each needs for its next step."""
        decoders = self.scheduler.decoders
        pairs = zip(decoders.members, decoders.left.tolist(), strict=True)
        return {served.number: self.lacks(served, left) for served, left in pairs}

    def paused(self) -> set[int]:
        return {served.number for served in self.scheduler.paused}

    def pause(self) -> set[int]:
        """The youngest that lack blocks, until the others can go on."""
        lacking, available = self.decoding(), self.scheduler.ledger.available
        paused = self.paused()
        for number in sorted(lacking, reverse=True):
            if sum(lacking.values()) > available and lacking[number]:
                paused.add(number)
                lacking[number] = 0
        return paused

    def evict(self) -> set[int]:
        """The fewest of the youngest start again for whom the others keep to what they may."""
        oldest_first = self.scheduler.paused
        for staying in range(len(oldest_first), 0, -1):
            kept, gone = oldest_first[:staying], oldest_first[staying:]
            able = self.able(kept, self.scheduler.ledger.available + self.released(gone))
            if sum(map(self.private, kept[able:])) <= self.may_keep:
                return {served.number for served in kept}
        return set()

    def private(self, served: Served) -> int:
        """Blocks that nobody else can have."""
        return served.blocks - served.committed * self.scheduler.ledger.per_shared

    def released(self, gone: list[Served]) -> int:
        """Blocks that can be had once these hold nothing: shared ones only if nobody else does."""
        used = {
            key
            for served in everyone(self.scheduler)
            if served not in gone
            for key in served.keys[: served.committed].tolist()
        }
        theirs = {key for served in gone for key in served.keys[: served.committed].tolist()}
        return sum(map(self.private, gone)) + len(theirs - used) * self.scheduler.ledger.per_shared

    def able(self, paused: list[Served], available: int) -> int:
        """How many of the oldest can go on while the blocks of all that run can be had."""
        needed = sum(self.decoding().values())
        for count, served in enumerate(paused):
            needed += self.lacks(served, served.output_tokens - served.generated)
            if needed > available:
                return count
        return len(paused)

    def resume(self) -> set[int]:
        """The oldest go on."""
        able = self.able(self.scheduler.paused, self.scheduler.ledger.available)
        return {served.number for served in self.scheduler.paused[able:]}
