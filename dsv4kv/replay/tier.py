"""One tier: what it holds, and the transfers into it and out of it.

A transfer takes

    latency · ⌈operations / parallel⌉ + bytes / bandwidth

and transfers of one direction wait for each other.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from math import ceil

from dsv4kv.config.replay import TierSection
from dsv4kv.prefix.policies import make_policy
from dsv4kv.replay.shelf import Room, Shelf
from dsv4kv.replay.stored import Sizes, Stored


class Channel:
    """One direction of a tier.

    Attributes:
        moved_bytes: Through it so far.
        operations: That moved them.
        transfers: In which they were.
        busy_s: Time of these.
        waited_s: Time in which they waited for others.
        free_s: When the last one ends.
    """

    def __init__(self, gbps: float, tier: TierSection) -> None:
        self._bytes_per_s = gbps * 1e9
        self._latency_s, self._parallel = tier.latency_us / 1e6, tier.parallel
        self.moved_bytes = self.operations = self.transfers = 0
        self.busy_s = self.waited_s = self.free_s = 0.0

    def end_s(self, now_s: float, operations: int, size_bytes: int) -> float:
        """When a transfer that is asked for now would end."""
        return max(now_s, self.free_s) + self._duration_s(operations, size_bytes)

    def move(self, now_s: float, operations: int, size_bytes: int) -> float:
        """Ask for a transfer; returns when it ends."""
        self.waited_s += max(0.0, self.free_s - now_s)
        self.free_s = self.end_s(now_s, operations, size_bytes)
        self.busy_s += self._duration_s(operations, size_bytes)
        self.moved_bytes += size_bytes
        self.operations += operations
        self.transfers += 1
        return self.free_s

    def _duration_s(self, operations: int, size_bytes: int) -> float:
        return ceil(operations / self._parallel) * self._latency_s + size_bytes / self._bytes_per_s


class Tier:
    """One tier.

    Attributes:
        name: ``host``, ``disk`` or ``remote``.
        section: How it is set.
        sizes: How its memory is divided.
        shelf: What it holds.
        read: Transfers out of it.
        write: Transfers into it.
        hit_tokens: Tokens of prompts that it gave.
        lost: Tokens of prompts that it could have given, by why it did not.
        moved_blocks: Objects of context that it read or wrote.
        peak_bytes: Most that it held.
    """

    def __init__(self, name: str, section: TierSection, sizes: Sizes, stored: Stored) -> None:
        self.name, self.section, self.sizes, self.shelf = name, section, sizes, Shelf()
        self.read, self.write = (
            Channel(gbps, section) for gbps in (section.read_gbps, section.write_gbps)
        )
        self.hit_tokens = self.moved_blocks = self.peak_bytes = 0
        self.lost = Counter[str]()
        self._objects = stored.objects
        self._context_bytes = stored.objects.context_bytes
        self._tail_bytes = stored.objects.tail_bytes
        self.context = self._room(sizes.context_bytes, stored.objects.context_bytes)
        self.tails = self.context
        if sizes.tail_bytes is not None:
            self.tails = self._room(sizes.tail_bytes, stored.objects.tail_bytes)

    def _room(self, size_bytes: int, unit_bytes: int) -> Room:
        policy = make_policy(self.section.eviction, max(1, size_bytes // max(1, unit_bytes)))
        return Room(size_bytes, policy)

    @property
    def used_bytes(self) -> int:
        """What it holds."""
        apart = self.tails is not self.context
        return self.context.used_bytes + (self.tails.used_bytes if apart else 0)

    def serve(self) -> None:
        """What follows is done for one request."""
        for room in {id(room): room for room in (self.context, self.tails)}.values():
            room.policy.serve(0)

    def fits(self, key: Hashable) -> bool:
        """Whether it has room for such an object at all."""
        size, room = self._place(key)
        return size <= room.capacity_bytes

    def put(self, key: Hashable, parent: int | None, ready_s: float) -> list[Hashable]:
        """Keep an object from a moment on; returns what was evicted for it."""
        size, room = self._place(key)
        gone = self.shelf.put(key, size, parent, room, ready_s)
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        return gone or []

    def volume(self, keys: Sequence[Hashable]) -> tuple[int, int]:
        """Operations and bytes of some objects."""
        contexts = sum(isinstance(key, int) for key in keys)
        tails, objects = len(keys) - contexts, self._objects
        size = contexts * self._context_bytes + tails * self._tail_bytes
        return objects.operations(contexts, tails), size

    def load(self, now_s: float, keys: Sequence[Hashable]) -> float:
        """Read objects; returns when they are there."""
        self._count(keys)
        return self.read.move(now_s, *self.volume(keys))

    def store(self, now_s: float, keys: Sequence[Hashable]) -> float:
        """Write objects; returns when they can be read."""
        self._count(keys)
        return self.write.move(now_s, *self.volume(keys))

    def _count(self, keys: Sequence[Hashable]) -> None:
        self.moved_blocks += sum(isinstance(key, int) for key in keys)

    def _place(self, key: Hashable) -> tuple[int, Room]:
        if isinstance(key, int):
            return self._context_bytes, self.context
        return self._tail_bytes, self.tails
