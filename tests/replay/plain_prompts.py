"""What requests find of their prompts, told plainly beside a replay, call by call.

Blocks are those of a plain index, checkpoints a list with the one used longest ago first.
"""

from dsv4kv.core.prompts import IdealCache, IdealPrompts
from dsv4kv.core.served import Served
from dsv4kv.replay.build import Replay
from tests.core.plain_index import PlainIndex


class PlainPrompts:
    """Does all that a replay's prompts and ledger do, and compares what comes of it."""

    def __init__(self, replay: Replay) -> None:
        """Watch a replay that has not begun."""
        prompts, ledger = replay.scheduler.prompts, replay.scheduler.cache
        assert isinstance(prompts, IdealPrompts)
        assert isinstance(ledger, IdealCache)
        self.prompts, self.ledger, self.memory = prompts, ledger, replay.memory
        self.scheduler, self.defers = replay.scheduler, replay.config.prefix.defer
        self.strategy, self.size = replay.memory.strategy, replay.parts.shared_tokens
        self.index = PlainIndex(replay.config.prefix.policy)
        self.reuses = prompts._tree is not None
        self.private = self.written = self.restored = 0
        self.checkpoints: list[int] = []
        self.marks: dict[int, list[int]] = {}
        self._really = ledger.get_new_blocks, prompts.begin, prompts.commit, prompts.end
        for owner, names in ((ledger, ("get_new_blocks",)), (prompts, ("begin", "commit", "end"))):
            for name in names:
                setattr(owner, name, getattr(self, name))

    @property
    def free(self) -> int:
        return self.ledger.total - self.private - len(self.index.held()) * self.ledger.per_shared

    def get_new_blocks(self, count: int) -> None:
        while self.free < count:
            for key in self.index.evict(1):
                self.checkpoints = [other for other in self.checkpoints if other != key]
        self.private += count
        self._really[0](count)

    def begin(self, served: Served, needed: int) -> int:
        size, keys = self.size, served.keys
        chain = keys[: (served.prompt_tokens - 1) // size] if self.reuses else []
        found = self.index.match(chain)
        self.check_admission(served, len(found), len(chain))
        resumed = self.resume(found)
        self.index.pin(served.number, chain)
        whole = min(len(keys), served.prompt_tokens // size)
        self.marks[served.number] = self.places(resumed, len(found), whole)
        moved = self._really[1](served, needed)
        position = resumed * size
        if self.strategy.kind == "zero":
            position = max(0, position - self.strategy.replay_tokens)
        assert (served.found, served.committed, served.position) == (
            len(found), len(found), position,
        )  # fmt: skip
        assert served.blocks == max(needed, len(found) * self.ledger.per_shared)
        restores = self.strategy.kind != "zero" and position > 0
        self.restored += restores
        assert moved == 2 * self.memory.checkpoint_bytes * restores
        return moved

    def check_admission(self, served: Served, found: int, usable: int) -> None:
        """Nobody older could have begun, blocks suffice, and no one computes what is missing."""
        scheduler, ledger, group = self.scheduler, self.ledger, self.memory.group
        older = [other for other in scheduler.waiting if other.number < served.number]
        assert all(other.blocked_by in scheduler.prefilling for other in older)
        assert not scheduler.paused
        free = ledger.total - self.private - self.index.pinned() * ledger.per_shared
        own = sum(key in self.unpinned() for key in served.keys[:found])
        lacking = sum(scheduler.lacking().values())
        needed = group.blocks_for(served.prompt_tokens) - found * ledger.per_shared
        assert needed + lacking <= free - own * ledger.per_shared
        if self.defers and found < usable:
            missing = served.keys[found]
            busy = [other for other in scheduler.prefilling if len(other.keys) > found]
            assert not any(o.committed <= found and o.keys[found] == missing for o in busy)

    def unpinned(self) -> set[int]:
        """Blocks that are cached and nobody uses."""
        held = [key for chain in self.index.leases.values() for key in chain]
        return set(self.index.block_of) - set(held)

    def resume(self, found: list[int]) -> int:
        """Blocks behind which the request goes on."""
        if self.strategy.kind in ("full", "zero"):
            return len(found)
        kept = [place for place, key in enumerate(found, start=1) if key in self.checkpoints]
        if kept:
            self.use(found[kept[-1] - 1])
        return kept[-1] if kept else 0

    def use(self, key: int) -> None:
        self.checkpoints.remove(key)
        self.checkpoints.append(key)

    def places(self, resumed: int, found: int, whole: int) -> list[int]:
        """Blocks behind which the request leaves a checkpoint, should it come so far."""
        if not self.reuses:
            return []
        match self.strategy.kind:
            case "periodic":
                period = self.strategy.period_tokens // self.size
                return [place for place in range(resumed + 1, whole + 1) if place % period == 0]
            case "ends":
                wanted = {whole}
            case "ends+junctions":
                wanted = {whole, found}
            case _:
                wanted = set()
        return sorted(place for place in wanted if place > resumed)

    def commit(self, served: Served) -> int:
        keys, per_shared = served.keys, self.ledger.per_shared
        whole = min(served.position // self.size, len(keys)) if self.reuses else 0
        new = keys[served.committed : whole]
        moved = 0
        if new:
            self.index.insert(served.number, keys[:whole], keys[:whole])
            self.private -= len(new) * per_shared
            if self.strategy.kind == "full":
                moved = len(new) * per_shared * self.memory.beside_bytes
        marks = self.marks[served.number]
        while marks and marks[0] <= whole:
            moved += 2 * self.memory.checkpoint_bytes * self.write(keys[marks.pop(0) - 1])
        assert self._really[2](served) == moved
        return moved

    def write(self, key: int) -> bool:
        """Whether a checkpoint had to be copied."""
        if key in self.checkpoints:
            self.use(key)
            return False
        room = self.memory.num_checkpoints
        if room == 0:
            return False
        self.checkpoints = [*self.checkpoints, key] if room is None else self.fit(room, key)
        self.written += 1
        return True

    def fit(self, room: int, key: int) -> list[int]:
        return [*self.checkpoints, key][-room:]

    def end(self, served: Served) -> None:
        self.private -= served.blocks - served.committed * self.ledger.per_shared
        self.index.release(served.number)
        self._really[3](served)

    def check(self) -> None:
        """Blocks, checkpoints and what is evictable are the same."""
        ledger, index, per_shared = self.ledger, self.index, self.ledger.per_shared
        pinned = index.pinned()
        free = ledger.total - ledger.private - ledger.shared - ledger.cached
        assert (ledger.private, free) == (self.private, self.free)
        assert ledger.shared == pinned * per_shared
        assert ledger.cached == (len(index.held()) - pinned) * per_shared
        assert list(self.ledger._kept) == self.checkpoints
        assert self.ledger.written == self.written
        assert self.prompts.restored == self.restored
        if self.prompts._tree is not None:
            assert self.prompts._tree.held == len(index.held())
