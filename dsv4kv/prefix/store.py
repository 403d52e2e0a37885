"""The prefix index over a tree of runs; ``radix`` and ``block_hash`` say what its keys are."""

from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsv4kv.errors import ConfigError, NotOwner
from dsv4kv.prefix.index import IndexStats, Insertion, Keys, Lease, Match
from dsv4kv.prefix.keeper import Keeper
from dsv4kv.prefix.layout import Layout
from dsv4kv.prefix.policies.contract import Policy
from dsv4kv.prefix.run import NO_IDS, Ids, Run, path_to


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
        self._requests = self._lookups = self._asked = self._hit = self._collisions = 0

    def encode(self, keys: Keys) -> tuple[bytes, Ids | None]:
        """Bytes of the keys, and their guards if there are any; ``ConfigError`` if unusable."""
        raise NotImplementedError

    def match(self, keys: Keys) -> Match:
        """Look the longest cached prefix up; changes nothing, counts nothing."""
        data, guards = self.encode(keys)
        with self._lock:
            run, inside = self._walk(data, guards)[1:]
            length = run.start + inside
            return Match(length, self._keeper.layout.join(path_to(run), length))

    def pin(self, keys: Keys) -> Lease:
        """Use the longest cached prefix: it is kept until the lease is released."""
        data, guards = self.encode(keys)
        keeper = self._keeper
        with self._lock:
            trusted, run, inside = self._walk(data, guards)
            run = keeper.part(run, inside)
            length, request = run.end, self._count_request()
            path = keeper.use(run, request, again=False)
            keeper.hold(path)
            self._lookups += 1
            self._asked += len(data) // self._key_bytes
            self._hit += length
            self._collisions += len(trusted) < len(data)
            if length * self._key_bytes < len(trusted):
                keeper.miss(data, length)
            return Lease(length, keeper.layout.join(path, length), request, run)

    def insert(self, keys: Keys, values: Ids, lease: Lease | None = None) -> Insertion:
        """Store a chain; see ``PrefixIndex.insert``.

        Raises:
            ConfigError: The values begin after the cached prefix or are too many, or the keys
                do not begin with those of the lease.
            NotOwner: The lease has been released.
        """
        data, guards = self.encode(keys)
        with self._lock:
            if lease is not None and lease.run is None:
                raise NotOwner("the lease has been released: pin the chain again.")
            data, run, inside = self._walk(data, guards)
            present = run.start + inside
            first = self._first_key(len(keys), values, present)
            if (
                lease is not None
                and lease.length
                and (present < lease.length or lease.run not in path_to(run))
            ):
                raise ConfigError("the keys do not begin with those that the lease holds.")
            run = self._keeper.part(run, inside)
            return self._insert(data, run, (values, guards, first), lease)

    def release(self, lease: Lease) -> None:
        """End a lease; ``NotOwner`` if it has ended before."""
        with self._lock:
            run = lease.run
            if run is None:
                raise NotOwner("the lease has been released before. Nothing was changed.")
            lease.run = None
            self._keeper.let_go(path_to(run))

    def evict(self, count: int) -> Ids:
        """Give up ``count`` values, leaves first; see ``PrefixIndex.evict``."""
        with self._lock:
            return self._keeper.evict(count)

    def stats(self) -> IndexStats:
        """Counts so far."""
        with self._lock:
            keeper = self._keeper
            return IndexStats(
                lookups=self._lookups,
                asked=self._asked,
                hit=self._hit,
                inserted=keeper.inserted,
                evicted=keeper.evicted,
                collisions=self._collisions,
                cached=keeper.cached,
                held=keeper.held,
                pinned=keeper.pinned,
                evictable=keeper.evictable,
                runs=keeper.tree.num_runs,
            )

    def fit(self, run: Run, data: bytes) -> bytes:
        """The part of a chain that may be stored below ``run``; makes room if need be."""
        return data

    def _insert(
        self, data: bytes, run: Run, new: tuple[Ids, Ids | None, int], lease: Lease | None
    ) -> Insertion:
        keeper, present, taken = self._keeper, run.end, NO_IDS
        request = self._count_request() if lease is None else lease.request
        path = keeper.use(run, request, again=lease is not None)
        data = self.fit(run, data)
        if present * self._key_bytes < len(data):
            run = keeper.store(run, data, *new)
            taken = keeper.layout.owned(run, run.start)
            path.append(run)
        if lease is None:
            keeper.offer(run)
        elif run.end > lease.length:
            keeper.hold([node for node in path if node.start >= lease.length])
            lease.run, lease.length = run, run.end
        return Insertion(present, run.end, taken)

    def _walk(self, data: bytes, guards: Ids | None) -> tuple[bytes, Run, int]:
        """Follow a chain as far as keys and guards agree.

        Returns the chain (cut where an equal key has another guard), the last run and how many
        keys of that it shares.
        """
        run, inside = self._keeper.tree.walk(data)
        if guards is None:
            return data, run, inside
        for node in path_to(run):
            size = inside if node is run else node.length
            if node.guards is None:
                continue
            different = node.guards[:size] != guards[node.start : node.start + size]
            if different.any():
                at = int(different.argmax())
                return data[: (node.start + at) * self._key_bytes], node, at
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

    def _count_request(self) -> int:
        self._requests += 1
        return self._requests - 1


def as_chain(keys: Keys, dtype: type, what: str) -> NDArray[Any]:
    """Check that keys are whole numbers in one row, and return them contiguous as ``dtype``."""
    array = np.asarray(keys)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ConfigError(
            f"{what} must be one row of whole numbers, not {array.dtype} of shape {array.shape}."
        )
    return np.ascontiguousarray(array, dtype=dtype)
