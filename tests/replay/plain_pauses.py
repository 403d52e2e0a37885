"""Who is paused, resumed and evicted, told plainly beside a scheduler."""

from dsv4kv.core.served import Served
from dsv4kv.replay.build import Replay
from tests.replay.scenes import everyone


class PlainPauses:
    """Says who will be paused before every decision, and compares."""

    def __init__(self, replay: Replay) -> None:
        """Watch a replay that has not begun."""
        self.scheduler, self.group = replay.scheduler, replay.memory.group
        self.window = replay.scheduler._drafts.window
        self.may_keep = int(replay.memory.num_blocks * replay.config.scheduler.paused_share)
        pauses = self.scheduler._preemption
        really = pauses.settle

        def settle() -> None:
            expected = self.expected()
            really()
            assert [served.number for served in self.scheduler.paused] == expected

        pauses.settle = settle  # type: ignore[method-assign]

    def expected(self) -> list[int]:
        """The requests that will be paused."""
        scheduler = self.scheduler
        available = scheduler.cache.available
        running = sorted(scheduler.decoding, key=lambda served: served.number)
        paused, going = list(scheduler.paused), list(running)
        # the youngest that lack blocks are paused, until the others can go on
        for served in reversed(running):
            if sum(map(self.lacks, going)) > available and self.lacks(served):
                going.remove(served)
                paused.append(served)
        paused.sort(key=lambda served: served.number)
        needed = sum(map(self.lacks, going))
        # the fewest of the youngest start again for whom the others keep to what they may
        for staying in range(len(paused), 0, -1):
            kept, gone = paused[:staying], paused[staying:]
            able = self.able(kept, available + self.released(gone) - needed)
            if sum(map(self.private, kept[able:])) <= self.may_keep:
                return [served.number for served in kept[able:]]  # and the oldest go on
        return []

    def lacks(self, served: Served) -> int:
        """Blocks a request needs for its next step."""
        end = min(served.position + self.window, served.total_tokens)
        return max(0, self.group.blocks_for(end) - served.blocks)

    def private(self, served: Served) -> int:
        """Blocks that nobody else can have."""
        return served.blocks - served.committed * self.scheduler.cache.per_shared

    def released(self, gone: list[Served]) -> int:
        """Blocks that can be had once these hold nothing: shared ones only if nobody else does."""
        used = {
            key
            for served in everyone(self.scheduler)
            if served not in gone
            for key in served.keys[: served.committed]
        }
        theirs = {key for served in gone for key in served.keys[: served.committed]}
        return sum(map(self.private, gone)) + len(theirs - used) * self.scheduler.cache.per_shared

    def able(self, paused: list[Served], left: int) -> int:
        """How many of the oldest can go on with so many blocks."""
        for count, served in enumerate(paused):
            left -= self.lacks(served)
            if left < 0:
                return count
        return len(paused)
