"""Who is paused, resumed and evicted, told plainly beside a scheduler."""

from collections.abc import Callable

from dsv4kv.replay.build import Replay
from dsv4kv.replay.served import Served
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
        pauses = self.scheduler._pauses
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
        """The youngest start again while the paused hold more than they may, but for one."""
        per_shared = self.scheduler.ledger.per_shared
        held = {s.number: s.blocks - s.committed * per_shared for s in self.scheduler.paused}
        while len(held) > 1 and sum(held.values()) > self.may_keep:
            del held[max(held)]
        return set(held)

    def resume(self) -> set[int]:
        """The oldest go on while their blocks and those of all that run can be had."""
        left = {s.number: s for s in self.scheduler.paused}
        needed = sum(self.decoding().values())
        for number, served in sorted(left.items()):
            needed += self.lacks(served, served.output_tokens - served.generated)
            if needed > self.scheduler.ledger.available:
                break
            del left[number]
        return set(left)
