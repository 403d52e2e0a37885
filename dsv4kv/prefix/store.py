"""The prefix index over a tree of runs; ``radix`` and ``block_hash`` say what its keys are."""

from __future__ import annotations

from threading import RLock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsv4kv.errors import ConfigError, NotOwner, OutOfBlocks
from dsv4kv.prefix.index import IndexStats, Insertion, Keys, Lease, Match
from dsv4kv.prefix.policies.contract import Policy
from dsv4kv.prefix.tree import NO_IDS, Ids, Layout, Run, RunTree, identity, path_to


class Keeper:
    """Keeps the policy informed, and counts.

    Attributes:
        tree: The runs.
        layout: What values they have.
        cached: Keys in the tree.
        held: Values in the tree (keys, where rows hold them).
        pinned: Values that leases hold.
        evicted: Keys evicted so far.
    """

    def __init__(self, policy: Policy, layout: Layout, key_bytes: int, chained: bool) -> None:
        """Start empty; ``chained`` keys stand for their history too."""
        self.tree = RunTree(key_bytes, layout)
        self.layout = layout
        self.cached = self.held = self.pinned = self.evicted = 0
        self._policy = policy
        self._chained = chained

    @property
    def evictable(self) -> int:
        """Values that may be evicted."""
        return self.held - self.pinned

    @property
    def inserted(self) -> int:
        """Keys stored so far."""
        return self.cached + self.evicted

    @property
    def blockwise(self) -> bool:
        """Whether nothing depends on how many calls store or evict what one could."""
        return self._policy.blockwise

    def part(self, run: Run, inside: int) -> Run:
        """Return the run that ends after the first ``inside`` keys of a run."""
        if inside == run.length:
            return run
        if not inside and run.parent is not None:
            return run.parent
        return self.tree.split(run, inside)

    def use(self, run: Run, request: int) -> list[Run]:
        """Notify the policy that a request uses a chain; return the chain's runs."""
        self._policy.serve(request)
        path = path_to(run)
        for node in path:
            self._policy.touch(node)
        return path

    def go_on(self, request: int) -> int:
        """Notify the policy that a request goes on in what it uses; return the moment."""
        self._policy.serve(request)
        return self._policy.now

    def miss(self, data: bytes, at: int) -> None:
        """Notify the policy that key ``at`` of a chain is wanted and not cached."""
        if self._policy.remembers:
            begin, end = at * self.tree.key_bytes, (at + 1) * self.tree.key_bytes
            key = data[begin:end]
            self._policy.missed(key if self._chained else hash((data[:begin], key)))

    def hold(self, path: list[Run]) -> None:
        """Keep runs from being evicted."""
        for run in path:
            if not run.pins:
                self.pinned += self.layout.count(run)
                run.ticket = 0
            run.pins += 1

    def let_go(self, path: list[Run], moment: int = 0) -> None:
        """Undo ``hold``; the request that held the runs last used them at ``moment``."""
        for run in path:
            run.pins -= 1
            if not run.pins:
                self.pinned -= self.layout.count(run)
            self._policy.refresh(run, moment)
        if path:
            self.offer(path[-1])

    def offer(self, run: Run) -> None:
        """Notify the policy that a run may go, if it may."""
        if run.evictable:
            self._policy.offer(run)

    def store(self, above: Run, keys: bytes, values: Ids, guards: Ids | None) -> Run:
        """Hang what is new of a chain below a run; see ``RunTree.grow``."""
        above.ticket = 0
        run = self.tree.grow(above, keys, values, guards)
        self.cached += run.length
        self.held += self.layout.count(run)
        self._policy.admit(run, self._identity(run, 0))
        return run

    def evict(self, count: int) -> Ids:
        """Evict ``count`` values, children before parents; see ``PrefixIndex.evict``."""
        if not 0 <= count <= self.evictable:
            raise OutOfBlocks(
                f"{count} are to be evicted and {self.evictable} of {self.held} cached may be: "
                "release a request first. Nothing was changed."
            )
        parts, last = list[Ids](), self.held - count
        while (missing := self.held - last) > 0:
            parts.append(self._evict_from(self._policy.choose(), missing))
        return np.concatenate(parts) if parts else NO_IDS

    def _evict_from(self, run: Run, count: int) -> Ids:
        """Evict at most ``count`` values from the end of one run."""
        at = max(self.layout.cut(run, count), run.end - self._policy.limit(run))
        above, dropped, owned = run.parent, run.end - at, self.layout.count(run)
        values, key = self.layout.owned(run, at), self._identity(run, at - run.start)
        gone = at == run.start
        self.tree.trim(run, at)
        self.held -= owned if gone else owned - self.layout.count(run)
        self.cached -= dropped
        self.evicted += dropped
        if gone and above is not None:
            self.offer(above)
        self._policy.dropped(run, dropped, key)
        return values

    def _identity(self, run: Run, at: int) -> object:
        if not self._policy.remembers:
            return None
        return identity(run, at, self.tree.key_bytes, self._chained)


class New(NamedTuple):
    """What is new of a chain.

    Attributes:
        keys: Bytes of the keys.
        values: What is cached for them, as the layout lays it out.
        guards: int64, one for every key, where the keys have guards.
    """

    keys: bytes
    values: Ids
    guards: Ids | None


Counts = tuple[int, int, int, int, int]
"""Requests that the policy knows; lookups, asked, hit, collisions as in ``IndexStats``."""


class PrefixStore:
    """Every method of ``PrefixIndex``; two threads may share one."""

    def __init__(self, policy: Policy, layout: Layout, key_bytes: int, *, chained: bool) -> None:
        """Start empty.

        Args:
            policy: What goes first; an object for this index alone.
            layout: What values the keys have.
            key_bytes: Bytes of one key.
            chained: Whether a key stands for its history too.
        """
        self._keeper = Keeper(policy, layout, key_bytes, chained)
        self._key_bytes = key_bytes
        self._lock = RLock()
        self._leases: set[Lease] = set()
        self._counts: Counts = (0, 0, 0, 0, 0)

    @property
    def held(self) -> int:
        """Values held now (keys, where rows hold them)."""
        return self._keeper.held

    @property
    def evictable(self) -> int:
        """Values that ``evict`` could free."""
        return self._keeper.evictable

    @property
    def blockwise(self) -> bool:
        """Whether nothing depends on how many calls store or evict what one could."""
        return self._keeper.blockwise

    def encode(self, keys: Keys) -> tuple[bytes, Ids | None]:
        """Bytes of the keys, and their guards if there are any; ``ConfigError`` if unusable."""
        raise NotImplementedError

    def match(self, keys: Keys) -> Match:
        """Look the longest cached prefix up; changes nothing, counts nothing."""
        with self._lock:
            run, length = self._find(keys)
            return Match(length, self._keeper.layout.join(path_to(run), length))

    def match_length(self, keys: Keys) -> int:
        """The length of that prefix alone."""
        with self._lock:
            return self._find(keys)[1]

    def pin(self, keys: Keys) -> Lease:
        """Use the longest cached prefix: it is kept until the lease is released."""
        with self._lock:
            return self._pin(keys)

    def insert(self, keys: Keys, values: Ids) -> Insertion:
        """Store a chain; see ``PrefixIndex.insert``.

        Raises:
            ConfigError: The values begin after the cached prefix or are too many.
        """
        keeper = self._keeper
        with self._lock:
            run, new = self._enter(keeper.tree.root, keys, values)
            request, lookups, asked, hit, collisions = self._counts
            self._counts = request + 1, lookups, asked, hit, collisions
            keeper.use(run, request)
            insertion, run = self.store(run, new)
            keeper.offer(run)
            return insertion

    def extend(self, lease: Lease, keys: Keys, values: Ids) -> Insertion:
        """Store what follows what a lease holds; see ``PrefixIndex.extend``.

        Raises:
            ConfigError: The values begin after the cached prefix or are too many.
            NotOwner: The lease has been released.
        """
        keeper = self._keeper
        with self._lock:
            above = lease.run
            if above is None:
                raise NotOwner("the lease has been released: pin the chain again.")
            run, new = self._enter(above, keys, values)
            lease.moment = keeper.go_on(lease.request)
            insertion, run = self.store(run, new)
            keeper.hold(path_to(run, above))
            lease.run, lease.length = run, run.end
            return insertion

    def release(self, lease: Lease) -> None:
        """End a lease; ``NotOwner`` if it has ended before."""
        with self._lock:
            self._release(lease)

    def evict(self, count: int) -> Ids:
        """Evict ``count`` values, children first; see ``PrefixIndex.evict``."""
        with self._lock:
            return self._keeper.evict(count)

    def stats(self) -> IndexStats:
        """Counts so far."""
        with self._lock:
            keeper, (_, lookups, asked, hit, collisions) = self._keeper, self._counts
            return IndexStats(
                lookups=lookups,
                asked=asked,
                hit=hit,
                inserted=keeper.inserted,
                evicted=keeper.evicted,
                collisions=collisions,
                cached=keeper.cached,
                held=keeper.held,
                pinned=keeper.pinned,
                evictable=keeper.evictable,
                runs=keeper.tree.num_runs,
            )

    def fit(self, run: Run, keys: bytes) -> bytes:
        """As many of new keys as may be stored below ``run``; makes room if need be."""
        return keys

    def store(self, run: Run, new: New) -> tuple[Insertion, Run]:
        """Store what is new of a chain that leads to ``run``; returns its last run, too."""
        keeper, present = self._keeper, run.end
        keys = self.fit(run, new.keys)
        if not keys:
            return Insertion(present, present, NO_IDS), run
        run = keeper.store(run, keys, new.values, new.guards)
        return Insertion(present, run.end, keeper.layout.owned(run, run.start)), run

    def _pin(self, keys: Keys) -> Lease:
        data, guards = self.encode(keys)
        keeper = self._keeper
        requests, lookups, asked, hit, collisions = self._counts
        trusted, run, inside = self._walk(keeper.tree.root, data, guards)
        run = keeper.part(run, inside)
        length = run.end
        path = keeper.use(run, requests)
        keeper.hold(path)
        asked += len(data) // self._key_bytes
        collisions += len(trusted) < len(data)
        self._counts = requests + 1, lookups + 1, asked, hit + length, collisions
        if length * self._key_bytes < len(trusted):
            keeper.miss(data, length)
        lease = Lease(length, keeper.layout.join(path, length), requests, run)
        self._leases.add(lease)
        return lease

    def _release(self, lease: Lease) -> None:
        run = lease.run
        if run is None:
            raise NotOwner("the lease has been released before. Nothing was changed.")
        self._leases.discard(lease)
        lease.run = None
        self._keeper.let_go(path_to(run), lease.moment)

    def _find(self, keys: Keys) -> tuple[Run, int]:
        """The last run that a chain enters, and how many of its keys are cached."""
        _, run, inside = self._walk(self._keeper.tree.root, *self.encode(keys))
        return run, run.start + inside

    def _enter(self, above: Run, keys: Keys, values: Ids) -> tuple[Run, New]:
        """Follow a chain that goes on after a run: where it leads, and what is new of it."""
        data, guards = self.encode(keys)
        data, run, inside = self._walk(above, data, guards)
        present = run.start + inside
        first = self._first_key(above.end + len(keys), values, present)
        skip = present - above.end
        new = New(
            data[skip * self._key_bytes :],
            self._keeper.layout.tail(values, first, present),
            None if guards is None else guards[skip : len(data) // self._key_bytes],
        )
        return self._keeper.part(run, inside), new

    def _walk(self, above: Run, data: bytes, guards: Ids | None) -> tuple[bytes, Run, int]:
        """Follow a chain after a run as far as keys and guards agree.

        Returns the chain (cut where an equal key has another guard), the last run and how many
        keys of that it shares.
        """
        run, inside = self._keeper.tree.walk(above, data)
        if guards is None:
            return data, run, inside
        for node in path_to(run, above):
            size, at = inside if node is run else node.length, node.start - above.end
            assert node.guards is not None
            different = node.guards[:size] != guards[at : at + size]
            if different.any():
                first = int(different.argmax())
                return data[: (at + first) * self._key_bytes], node, first
        return data, run, inside

    def _first_key(self, num_keys: int, values: Ids, present: int) -> int:
        """The first key that ``values`` speak of."""
        first: int = self._keeper.layout.first_key(num_keys, len(values))
        if not 0 <= first <= present:
            raise ConfigError(
                f"{len(values)} values for a chain of {num_keys} keys begin at key {first}, and "
                f"{present} are cached: give the values of all that is not. Nothing was changed."
            )
        return first


def as_chain(keys: Keys, dtype: type, what: str) -> NDArray[Any]:
    """Check that keys are whole numbers in one row, and return them as ``dtype``."""
    if isinstance(keys, np.ndarray) and keys.dtype == dtype and keys.ndim == 1:
        return keys
    array = np.asarray(keys)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ConfigError(
            f"{what} must be one row of whole numbers, not {array.dtype} of shape {array.shape}."
        )
    return array.astype(dtype)
