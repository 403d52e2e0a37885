"""One tier: the objects that it holds, and the transfers into it and out of it.

An object is a block of context, or a tail: the windows and states with which a request resumes
behind a block. Blocks are evicted after those behind them; a tail goes with its block or before.
A transfer takes latency · ⌈operations / parallel⌉ + bytes / bandwidth; in one direction they wait
for each other.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import ceil

from dsv4kv.config.replay import TierSection
from dsv4kv.core.policies import Run, make_policy
from dsv4kv.replay.stored import Sizes, Stored

NEVER = float("inf")


def tail_of(block: int) -> Hashable:
    """The key of the tail behind a block."""
    return "tail", block


class Channel:
    """One direction of a tier, or what a replica sends prompts over."""

    def __init__(
        self, gbps: float, latency_us: float, parallel: int = 1, setup_ms: float = 0.0
    ) -> None:
        """``setup_ms`` are of every transfer."""
        self._bytes_per_s, self._setup_s = gbps * 1e9, setup_ms / 1e3
        self._latency_s, self._parallel = latency_us / 1e6, parallel
        self.moved_bytes = 0  # through it so far
        self.transfers = 0  # in which they were
        self.waited_s = 0.0  # time in which they waited for others
        self.free_s = 0.0  # when the last one ends

    def end_s(self, now_s: float, operations: int, size_bytes: int) -> float:
        """When a transfer that is asked for now would end."""
        took_s = self._setup_s + ceil(operations / self._parallel) * self._latency_s
        return max(now_s, self.free_s) + (took_s + size_bytes / self._bytes_per_s)

    def move(self, now_s: float, operations: int, size_bytes: int) -> float:
        """Ask for a transfer; returns when it ends."""
        self.waited_s += max(0.0, self.free_s - now_s)
        self.free_s = self.end_s(now_s, operations, size_bytes)
        self.moved_bytes += size_bytes
        self.transfers += 1
        return self.free_s


class _Room:
    """Bytes, and the policy by which they are made free."""

    def __init__(self, capacity_bytes: int, eviction: str) -> None:
        self.capacity_bytes, self.used_bytes = capacity_bytes, 0
        self.policy = make_policy(eviction)
        self.key_of: dict[Run, Hashable] = {}


@dataclass(slots=True)
class _Object:
    room: _Room
    size_bytes: int
    parent: int | None
    ready_s: float
    run: Run


class Tier:
    """One tier."""

    def __init__(self, name: str, section: TierSection, sizes: Sizes, stored: Stored) -> None:
        self.name, self.section, self.sizes = name, section, sizes
        each = section.latency_us, section.parallel
        self.read, self.write = (
            Channel(gbps, *each) for gbps in (section.read_gbps, section.write_gbps)
        )
        self.hit_tokens = 0  # tokens of prompts that it gave
        self.moved_blocks = 0  # objects of context that it read or wrote
        self.peak_bytes = 0
        self.lost = Counter[str]()  # tokens that it could have given, by why it did not
        self._objects = objects = stored.objects
        self._context_bytes, self._tail_bytes = objects.context_bytes, objects.tail_bytes
        self._items: dict[Hashable, _Object] = {}
        self._children: Counter[Hashable] = Counter()  # blocks behind blocks
        self._context = _Room(sizes.context_bytes, section.eviction)
        self._tails, self._rooms = self._context, [self._context]
        if sizes.tail_bytes is not None:
            self._tails = _Room(sizes.tail_bytes, section.eviction)
            self._rooms.append(self._tails)

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def ready_s(self, key: Hashable) -> float:
        """When an object can be read: once it is written; ``NEVER`` where it is not there."""
        item = self._items.get(key)
        return item.ready_s if item else NEVER

    def serve(self) -> None:
        """What follows is done for one request."""
        for room in self._rooms:
            room.policy.serve(0)

    def use(self, key: Hashable) -> None:
        item = self._items[key]
        item.room.policy.touch(item.run)
        self._offer(key)

    def fits(self, key: Hashable) -> bool:
        """Whether it has room for such an object at all."""
        size_bytes, room = self._place(key)
        return size_bytes <= room.capacity_bytes

    def put(self, key: Hashable, parent: int | None, ready_s: float) -> list[Hashable]:
        """Keep an object behind ``parent`` from a moment on; returns what was evicted for it."""
        gone = list[Hashable]()
        size_bytes, room = self._place(key)
        if size_bytes > room.capacity_bytes:
            return gone
        while room.used_bytes + size_bytes > room.capacity_bytes:
            gone += self._evict(room)
        run = Run(None, [], 0, 1)
        self._items[key] = _Object(room, size_bytes, parent, ready_s, run)
        if parent is not None:
            self._children[parent] += 1
            if parent in self._items:
                self._items[parent].run.ticket = 0
        room.used_bytes += size_bytes
        room.key_of[run] = key
        room.policy.admit(run)
        self._offer(key)
        self.peak_bytes = max(self.peak_bytes, sum(room.used_bytes for room in self._rooms))
        return gone

    def drop(self, key: Hashable) -> None:
        item = self._items.pop(key)
        item.room.used_bytes -= item.size_bytes
        del item.room.key_of[item.run]
        item.run.ticket = 0
        if item.parent is not None:
            self._children[item.parent] -= 1
            if not self._children[item.parent]:
                del self._children[item.parent]
                self._offer(item.parent)

    def volume(self, keys: Sequence[Hashable]) -> tuple[int, int]:
        """Operations and bytes of some objects."""
        contexts = sum(isinstance(key, int) for key in keys)
        tails = len(keys) - contexts
        size_bytes = contexts * self._context_bytes + tails * self._tail_bytes
        return self._objects.operations(contexts, tails), size_bytes

    def load(self, now_s: float, keys: Sequence[Hashable]) -> float:
        self.moved_blocks += sum(isinstance(key, int) for key in keys)
        return self.read.move(now_s, *self.volume(keys))

    def store(self, now_s: float, keys: Sequence[Hashable]) -> float:
        self.moved_blocks += sum(isinstance(key, int) for key in keys)
        return self.write.move(now_s, *self.volume(keys))

    def _place(self, key: Hashable) -> tuple[int, _Room]:
        if isinstance(key, int):
            return self._context_bytes, self._context
        return self._tail_bytes, self._tails

    def _offer(self, key: Hashable) -> None:
        item = self._items.get(key)
        if item and key not in self._children:
            item.room.policy.offer(item.run)

    def _evict(self, room: _Room) -> list[Hashable]:
        run = room.policy.choose()
        key = room.key_of[run]
        room.policy.dropped(run)
        gone = [key]
        if isinstance(key, int) and tail_of(key) in self._items:
            gone.append(tail_of(key))
        for each in gone:
            self.drop(each)
        return gone
