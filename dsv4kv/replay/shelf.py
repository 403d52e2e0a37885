"""What a tier holds: blocks of context and the tails behind them, children evicted before parents.

A tail is the windows and states with which a request goes on behind a block. It goes with its
block, and may go before it.
"""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

from dsv4kv.core.policies import Policy, Run

NEVER = float("inf")


def tail_of(block: int) -> Hashable:
    """The key of the tail behind a block."""
    return "tail", block


class Room:
    """Bytes, and the policy by which they are made free.

    Attributes:
        capacity_bytes: Of it.
        used_bytes: That objects take.
        policy: What is evicted first.
    """

    def __init__(self, capacity_bytes: int, policy: Policy) -> None:
        """An empty one."""
        self.capacity_bytes, self.used_bytes, self.policy = capacity_bytes, 0, policy
        self.key_of: dict[Run, Hashable] = {}


@dataclass(slots=True)
class _Item:
    room: Room
    size_bytes: int
    parent: int | None
    ready_s: float
    run: Run


class Shelf:
    """Objects by key: a block's own, or ``tail_of`` it.

    Attributes:
        evicted: Objects that made room for others so far.
    """

    def __init__(self) -> None:
        """An empty one."""
        self.evicted = 0
        self._items: dict[Hashable, _Item] = {}
        self._children: Counter[Hashable] = Counter()  # blocks behind blocks

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def ready_s(self, key: Hashable) -> float:
        """When an object can be read: once it is written; ``NEVER`` where it is not there."""
        item = self._items.get(key)
        return item.ready_s if item else NEVER

    def use(self, key: Hashable) -> None:
        """Use an object that is there."""
        item = self._items[key]
        item.room.policy.touch(item.run)
        self._offer(key)

    def put(
        self, key: Hashable, size_bytes: int, parent: int | None, room: Room, ready_s: float
    ) -> list[Hashable] | None:
        """Write an object that is not there; ``parent`` is the block before a block.

        Returns:
            What was evicted for it; None where it does not fit, and then nothing was.
        """
        if size_bytes > room.capacity_bytes:
            return None
        gone: list[Hashable] = []
        room.policy.missed(key)
        while room.used_bytes + size_bytes > room.capacity_bytes:
            gone += self._evict(room)
        run = Run(None, [], 0, 1)
        self._items[key] = _Item(room, size_bytes, parent, ready_s, run)
        if parent is not None:
            self._children[parent] += 1
            if parent in self._items:
                self._items[parent].run.ticket = 0
        room.used_bytes += size_bytes
        room.key_of[run] = key
        room.policy.admit(run, key)
        self._offer(key)
        return gone

    def drop(self, key: Hashable) -> None:
        """Forget an object that is there, and nothing else."""
        item = self._items.pop(key)
        item.room.used_bytes -= item.size_bytes
        del item.room.key_of[item.run]
        item.run.ticket = 0
        if item.parent is not None:
            self._children[item.parent] -= 1
            if not self._children[item.parent]:
                del self._children[item.parent]
                self._offer(item.parent)

    def _offer(self, key: Hashable) -> None:
        """Let an object be evicted, unless a block is behind it."""
        item = self._items.get(key)
        if item and key not in self._children:
            item.room.policy.offer(item.run)

    def _evict(self, room: Room) -> list[Hashable]:
        run = room.policy.choose()
        key = room.key_of[run]
        room.policy.dropped(run, 1, key)
        gone = [key]
        if isinstance(key, int) and tail_of(key) in self._items:
            gone.append(tail_of(key))
        for each in gone:
            self.drop(each)
        self.evicted += len(gone)
        return gone
