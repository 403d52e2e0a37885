"""The prefix index over a tree of runs; ``radix`` and ``block_hash`` say what its keys are."""

from threading import RLock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsv4kv.errors import ConfigError, NotOwner
from dsv4kv.prefix.index import IndexStats, Insertion, Keys, Lease, Match
from dsv4kv.prefix.keeper import Keeper
from dsv4kv.prefix.layout import Layout
from dsv4kv.prefix.policies.contract import Policy
from dsv4kv.prefix.run import NO_IDS, Ids, Run, path_to


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
        data, guards = self.encode(keys)
        keeper = self._keeper
        with self._lock:
            trusted, run, inside = self._walk(keeper.tree.root, data, guards)
            run = keeper.part(run, inside)
            length, request = run.end, self._count_request()
            path = keeper.use(run, request)
            keeper.hold(path)
            self._lookups += 1
            self._asked += len(data) // self._key_bytes
            self._hit += length
            self._collisions += len(trusted) < len(data)
            if length * self._key_bytes < len(trusted):
                keeper.miss(data, length)
            return Lease(length, keeper.layout.join(path, length), request, run)

    def insert(self, keys: Keys, values: Ids) -> Insertion:
        """Store a chain; see ``PrefixIndex.insert``.

        Raises:
            ConfigError: The values begin after the cached prefix or are too many.
        """
        with self._lock:
            keeper = self._keeper
            run, new = self._enter(keeper.tree.root, keys, values)
            keeper.use(run, self._count_request())
            insertion, run = self.store(run, new)
            keeper.offer(run)
            return insertion

    def extend(self, lease: Lease, keys: Keys, values: Ids) -> Insertion:
        """Store what follows what a lease holds; see ``PrefixIndex.extend``.

        Raises:
            ConfigError: The values begin after the cached prefix or are too many.
            NotOwner: The lease has been released.
        """
        with self._lock:
            keeper, above = self._keeper, lease.run
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
            run = lease.run
            if run is None:
                raise NotOwner("the lease has been released before. Nothing was changed.")
            lease.run = None
            self._keeper.let_go(path_to(run), lease.moment)

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

    def _find(self, keys: Keys) -> tuple[Run, int]:
        """The last run that a chain enters, and how many of its keys are cached."""
        _, run, inside = self._walk(self._keeper.tree.root, *self.encode(keys))
        return run, run.start + inside

    def _enter(self, above: Run, keys: Keys, values: Ids) -> tuple[Run, New]:
        """Follow a chain that goes on behind a run: where it leads, and what is new of it."""
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
        """Follow a chain behind a run as far as keys and guards agree.

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

    def _count_request(self) -> int:
        self._requests += 1
        return self._requests - 1


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
