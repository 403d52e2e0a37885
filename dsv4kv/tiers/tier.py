"""One tier: a store with so much room, what leaves it first, and when it is written.

Objects come and go in nodes: the pages of one block, or the window, states and manifest of one
resume point. A node that another one follows stays, so that what is kept can be found.

The store is the truth about what is there, and other processes may write to it. The books here
say what it costs and who goes next: a node that they lack is entered when it is used.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np

from dsv4kv.choices import WRITE_POLICIES, choose
from dsv4kv.core.policies import Run
from dsv4kv.errors import StoreUnavailable
from dsv4kv.prefix.policies import make_policy
from dsv4kv.tiers.stores.contract import Bytes, Found, Store

_UNIT_BYTES = 4096  # what policies count: a node's size to them
_SELECTIVE_USES = 2  # SGLang 0.5.23: write_through_selective backs up at the second hit
_REMEMBERED = 1 << 20  # nodes whose uses are counted


@dataclass(frozen=True)
class Node:
    """Objects that come and go together.

    Attributes:
        key: The block's key, or with a dot after it the resume point's.
        parent: Key of the block before; empty for the first.
        names: Of its objects.
        sizes: Their bytes.
    """

    key: str
    parent: str
    names: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes of all."""
        return sum(self.sizes)


@dataclass
class TierTotals:
    """What went through a tier so far, in bytes unless the name says otherwise.

    Attributes:
        stored: Written.
        read: Read, and found right.
        evicted: Given up for others.
        refused: Not written for want of room.
        damaged_objects: Found with other bytes than were stored.
        failures: Calls that the store could not answer.
    """

    stored: int = 0
    read: int = 0
    evicted: int = 0
    refused: int = 0
    damaged_objects: int = 0
    failures: int = 0


@dataclass
class _Books:
    """Which nodes are here: truth, and what is worked out from it."""

    nodes: dict[str, tuple[Node, Run]] = field(default_factory=dict)
    children: Counter[str] = field(default_factory=Counter)
    used: int = 0


class Tier:
    """A store with a capacity.

    Attributes:
        name: For tables and messages.
        store: Keeps the objects.
        capacity_bytes: Room for them; None is no limit.
        write: When it is given what the tier above has, one of ``choices.WRITE_POLICIES``.
        below: The next tier, which takes what this one gives up if it is written back.
        totals: What went through.
    """

    def __init__(
        self,
        name: str,
        store: Store,
        *,
        capacity_bytes: int | None = None,
        policy: str = "lru",
        write: str = "write_through",
    ) -> None:
        """Start with empty books; raises ``ConfigError`` for an unknown policy."""
        choose(WRITE_POLICIES, write, "a write policy")
        self.name, self.store, self.write = name, store, write
        self.capacity_bytes = capacity_bytes
        self.below: Tier | None = None
        self.totals = TierTotals()
        units = None if capacity_bytes is None else max(1, capacity_bytes // _UNIT_BYTES)
        self._policy = make_policy(policy, 1 << 62 if units is None else units)
        self._books = _Books()
        self._pins = set[str]()
        self._uses: OrderedDict[str, int] = OrderedDict()
        self._requests = 0

    @property
    def used_bytes(self) -> int:
        """Bytes of the nodes in the books."""
        return self._books.used

    @property
    def nodes(self) -> list[str]:
        """Keys of the nodes in the books."""
        return list(self._books.nodes)

    @contextmanager
    def serving(self, keys: Sequence[str]) -> Iterator[None]:
        """Keep the nodes of one request's path while it is served; one at a time is."""
        self._policy.serve(self._requests)
        self._requests += 1
        self._pins = set(keys)
        try:
            yield
        finally:
            self._pins = set()
            for key in keys:
                self._offer(key)

    def exists(self, names: Sequence[str]) -> Found:
        """Which objects are there; none in a store that cannot answer."""
        try:
            return self.store.exists(names)
        except StoreUnavailable:
            self.totals.failures += 1
            return np.zeros(len(names), dtype=np.bool_)

    def get(self, names: Sequence[str], into: Sequence[Bytes]) -> Found:
        """Fill ``into``; which were there; none in a store that cannot answer."""
        try:
            return self.store.get(names, into)
        except StoreUnavailable:
            self.totals.failures += 1
            return np.zeros(len(names), dtype=np.bool_)

    def wanted(self, nodes: Sequence[Node], *, leaving: bool) -> list[bool]:
        """Which nodes are to be written now: a use of each.

        leaving: the cache gives them up.
        """
        wanted = []
        for node in nodes:
            entered = self._books.nodes.get(node.key)
            if entered is not None:
                self._policy.touch(entered[1])
                self._offer(node.key)
            wanted.append(entered is None and self._is_due(node.key, leaving=leaving))
        return self._without_present(nodes, wanted)

    def keep(self, nodes: Sequence[Node], data: Sequence[Sequence[Bytes]]) -> int:
        """Write nodes, each after the ones before it; returns how many, for want of room fewer."""
        count = self._make_room(nodes)
        self.totals.refused += sum(node.size for node in nodes[count:])
        if count and self._put(nodes[:count], data[:count]):
            self._enter(nodes[:count])
            self.totals.stored += sum(node.size for node in nodes[:count])
            return count
        return 0

    def clear(self) -> None:
        """Forget everything in the books."""
        for node, _ in list(self._books.nodes.values()):
            self._forget(node.names)
            self._leave(node.key)

    def lose(self, node: Node, *, damaged: bool) -> None:
        """An object of a node was not there, or had other bytes: it must not be found again."""
        self.totals.damaged_objects += damaged
        if damaged or node.key in self._books.nodes:
            self._forget(node.names)
            self._leave(node.key)

    def _put(self, nodes: Sequence[Node], data: Sequence[Sequence[Bytes]]) -> bool:
        """Write nodes, or nothing."""
        names = [name for node in nodes for name in node.names]
        try:
            self.store.put(names, [each for parts in data for each in parts])
            return True
        except StoreUnavailable:
            self.totals.failures += 1
            self._forget(names)
            return False
        except BaseException:
            self._forget(names)
            raise

    def _is_due(self, key: str, *, leaving: bool) -> bool:
        if self.write == "write_back":
            return leaving
        if self.write == "write_through":
            return True
        uses = self._uses.pop(key, 0) + 1
        self._uses[key] = uses
        if len(self._uses) > _REMEMBERED:
            self._uses.popitem(last=False)
        return uses >= _SELECTIVE_USES

    def _without_present(self, nodes: Sequence[Node], wanted: list[bool]) -> list[bool]:
        """Enter those wanted nodes that are there already, and want the others."""
        asked = [node for node, wants in zip(nodes, wanted, strict=True) if wants]
        names = [name for node in asked for name in node.names]
        if not names:
            return wanted
        found = dict(zip(names, self.exists(names).tolist(), strict=True))
        present = {node.key for node in asked if all(found[name] for name in node.names)}
        self._enter([node for node in asked if node.key in present])
        return [
            wants and node.key not in present for node, wants in zip(nodes, wanted, strict=True)
        ]

    def _make_room(self, nodes: Sequence[Node]) -> int:
        """Evict until the first nodes have room; returns how many have it."""
        if self.capacity_bytes is None:
            return len(nodes)
        count = len(nodes)
        for node in nodes:
            self._policy.missed(node.key)
        needed = sum(node.size for node in nodes)
        while count and self._books.used + needed > self.capacity_bytes:
            try:
                run = self._policy.choose()
            except LookupError:
                count -= 1
                needed -= nodes[count].size
            else:
                self._evict(self._books.nodes[str(run.key)][0], run)
        return count

    def _evict(self, node: Node, run: Run) -> None:
        below = self.below
        if below is not None and below.write == "write_back":
            into = [np.empty(size, dtype=np.uint8) for size in node.sizes]
            if self.get(node.names, into).all():
                below.keep([node], [into])
        self._forget(node.names)
        run.ticket = 0
        self._policy.dropped(run, run.length, node.key)
        self._leave(node.key)
        self.totals.evicted += node.size

    def _enter(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if node.key not in self._books.nodes:
                run = Run(None, [], 0, -(-node.size // _UNIT_BYTES))
                run.key = node.key
                self._policy.admit(run, node.key)
                self._books.nodes[node.key] = node, run
                self._books.children[node.parent] += 1
                self._books.used += node.size
                self._uses.pop(node.key, None)
                self._offer(node.key)
                self._offer(node.parent)

    def _leave(self, key: str) -> None:
        entered = self._books.nodes.pop(key, None)
        if entered is not None:
            node, run = entered
            run.ticket = 0
            self._books.children[node.parent] -= 1
            self._books.used -= node.size
            self._offer(node.parent)

    def _offer(self, key: str) -> None:
        """Let a node go or not, as its followers and users have it."""
        entered = self._books.nodes.get(key)
        if entered is None:
            return
        if self._books.children[key] > 0 or key in self._pins:
            entered[1].ticket = 0
        else:
            self._policy.offer(entered[1])

    def _forget(self, names: Sequence[str]) -> None:
        with suppress(StoreUnavailable):
            self.store.delete(names)
