"""A prefix cache: chains of keys as a tree of runs, evicted children before parents.

A request will ``pin`` the longest cached prefix of its keys, ``evict`` what is missing for the
rest, ``extend`` the lease by keys and values once they are computed, ``release``. Values that the
tree takes over or frees are returned, and its owner counts references. Whatever uses a part of a
run splits it first: all its blocks share one history, and a policy judges them as one.
"""

from collections.abc import Iterable

from dsv4kv.core.policies import Policy, Run
from dsv4kv.errors import ConfigError, NotOwner, OutOfBlocks


class Lease:
    """A match that stays cached until it is released."""

    def __init__(self, length: int, values: list[int], request: int, run: Run) -> None:
        self.length = length  # keys held; grows as the lease is extended
        self.values = values  # what the tree held for the prefix when it was pinned
        self.request = request  # number of the ``pin`` it came from, from 0
        self.run: Run | None = run  # the deepest run it holds; None once it is released
        self.moment = 0  # when it was extended last, as its policy counts time


class PrefixTree:
    """Chains of keys and what is cached for them.

    Every value is a block of ``block_keys`` keys; the last value of a prefix may be a block that
    more keys would fill.  Where chains part inside a block, the runs after it hold blocks that
    begin before them: the block of the run above, or a copy of its first keys.
    """

    def __init__(self, policy: Policy, block_keys: int = 0, *, chained: bool = True) -> None:
        """With ``block_keys`` 0 keys have no values. ``chained``: a key stands for its history."""
        self.root = Run(None, [], 0, 0)
        self.held = 0  # values held now; keys, where there are no values
        self.pinned = 0  # values that leases hold; keys, where there are no values
        self.cached = 0  # keys held now
        self._policy, self._size, self._chained = policy, block_keys, chained
        self._requests = 0

    @property
    def evictable(self) -> int:
        return self.held - self.pinned

    def match_length(self, keys: list[int], after: Lease | None = None) -> int:
        """Keys of the longest cached prefix, after a lease's keys; changes nothing."""
        above = after.run if after is not None and after.run is not None else self.root
        run, inside = self._walk(above, keys)
        return run.start + inside - above.end

    def pin(self, keys: list[int]) -> Lease:
        """Use the longest cached prefix: it is kept until the lease is released."""
        run, inside = self._walk(self.root, keys)
        run = self._part(run, inside)
        length, request = run.end, self._requests
        path = self._use(run)
        self._hold(path)
        values = list[int]()
        if self._size:  # below a fork inside a block, the copy counts
            for each in path:
                del values[each.start // self._size :]
                values += each.values
            del values[-(-length // self._size) :]
        return Lease(length, values, request, run)

    def insert(self, keys: list[int], values: list[int]) -> list[int]:
        """Store a chain with its last values, one more use; returns the values taken over."""
        run, skip = self._enter(self.root, keys, values)
        self._use(run)
        run, taken = self.store(run, keys[skip:], values)
        self._offer(run)
        return taken

    def extend(self, lease: Lease, keys: list[int], values: list[int]) -> list[int]:
        """Store the keys behind a lease's and hold them, too; returns values taken over.

        ``values`` are of these keys, or of their last from a cached one on. Raises
        ``ConfigError`` where they are too few or too many, ``NotOwner`` after a release.
        """
        above = lease.run
        if above is None:
            raise NotOwner("the lease has been released: pin the chain again.")
        run, skip = self._enter(above, keys, values)
        self._policy.serve(lease.request)
        lease.moment = self._policy.now
        run, taken = self.store(run, keys[skip:], values)
        self._hold(path_to(run, above))
        lease.run, lease.length = run, run.end
        return taken

    def release(self, lease: Lease) -> None:
        """End a lease; ``NotOwner`` if it has ended before."""
        run = lease.run
        if run is None:
            raise NotOwner("the lease has been released before. Nothing was changed.")
        lease.run = None
        path = path_to(run)
        for each in path:  # the request used them at the moment of its lease
            each.pins -= 1
            if not each.pins:
                self.pinned -= self.count(each)
            self._policy.refresh(each, lease.moment)
        if path:
            self._offer(path[-1])

    def evict(self, count: int) -> list[int]:
        """Evict ``count`` values, children before parents, and return them."""
        if not 0 <= count <= self.evictable:
            raise OutOfBlocks(
                f"{count} are to be evicted and {self.evictable} of {self.held} cached may be: "
                "release a request first. Nothing was changed."
            )
        gone, last = list[int](), self.held - count
        while self.held > last:
            gone += self._evict_from(self._policy.choose(), self.held - last)
        return gone

    def serve(self, paths: Iterable[list[int]], capacity: int) -> list[int]:
        """Serve chains one by one in a cache of ``capacity`` keys; return the hits of each."""
        found = list[int]()
        for path in paths:
            lease = self.pin(path)
            known = lease.length
            missing = self.held + len(path) - known - capacity
            if missing > 0:
                self.evict(missing)
            self.extend(lease, path[known:], [])
            self.release(lease)
            found.append(known)
        return found

    def store(self, above: Run, keys: list[int], values: list[int]) -> tuple[Run, list[int]]:
        """Append what is new of a chain to the run that it leads to; ``values`` end with it."""
        if not keys:
            return above, []
        above.ticket = 0
        run = Run(above, keys, above.end, len(keys))
        if self._size:
            blocks = -(-run.end // self._size) - run.start // self._size
            run.values = values[len(values) - blocks :]
        above.children[keys[0]] = run
        self.cached += run.length
        self.held += self.count(run)
        self._policy.admit(run)
        return run, self._owned(run, run.start)

    def count(self, run: Run) -> int:
        return len(run.values) - self._shares(run) if self._size else run.length

    def _walk(self, above: Run, keys: list[int]) -> tuple[Run, int]:
        """Follow a chain after a run: the last run that it enters, and keys shared there."""
        run, at, count = above, 0, len(keys)
        while at < count:
            child = run.children.get(keys[at])
            if child is None:
                break
            run, end = child, at + child.length
            if end > count or not self._alike(child, keys, at, end):
                return child, self._common(child, keys, at)
            at = end
        return run, run.length

    def _alike(self, run: Run, keys: list[int], begin: int, end: int) -> bool:
        if self._chained:
            return keys[end - 1] == run.keys[run.length - 1]
        return keys[begin:end] == run.keys[: run.length]

    def _common(self, run: Run, keys: list[int], at: int) -> int:
        """Keys that a run, entered at ``at``, shares with a chain that leaves it."""
        low, high, mine = 1, min(run.length, len(keys) - at), run.keys
        while low < high:
            middle = (low + high + 1) // 2
            if self._chained:
                alike = keys[at + middle - 1] == mine[middle - 1]
            else:
                alike = keys[at + low : at + middle] == mine[low:middle]
            if alike:
                low = middle
            else:
                high = middle - 1
        return low

    def _part(self, run: Run, inside: int) -> Run:
        """The run that ends after the first ``inside`` keys of a run; splits it."""
        if inside == run.length:
            return run
        above, at, keys = run.parent, run.start + inside, run.keys
        assert above is not None
        upper = Run(above, keys[:inside], run.start, inside)
        above.children[keys[0]] = upper
        upper.children[keys[inside]] = run
        upper.pins, upper.moment = run.pins, run.moment
        upper.uses, upper.rows = run.uses, run.rows[:]
        if self._size:
            first = run.start // self._size
            upper.values = run.values[: -(-at // self._size) - first]
            run.values = run.values[at // self._size - first :]
        run.parent, run.keys, run.start, run.length = upper, keys[inside:], at, run.length - inside
        return upper

    def _enter(self, above: Run, keys: list[int], values: list[int]) -> tuple[Run, int]:
        """Follow a chain after a run; returns where it leads, and how many keys are cached."""
        run, inside = self._walk(above, keys)
        present, total = run.start + inside, above.end + len(keys)
        if self._size:
            first = max(-(-total // self._size) - len(values), -1) * self._size
            if not 0 <= first <= present:
                raise ConfigError(
                    f"{len(values)} values for a chain of {total} keys begin at key {first}, and "
                    f"{present} are cached: give the values of all that is not. Nothing was "
                    "changed."
                )
        return self._part(run, inside), present - above.end

    def _evict_from(self, run: Run, count: int) -> list[int]:
        size, owned = self._size, self.count(run)
        if not size:
            at = run.end - count
        elif count >= owned:
            at = run.start
        else:
            at = (-(-run.end // size) - count) * size
        at = max(at, run.start, run.end - self._policy.limit(run))
        inside, dropped = at - run.start, run.end - at
        gone = self._owned(run, at)
        if inside:
            run.length = inside
            del run.keys[inside:]
            if size:
                del run.values[-(-at // size) - run.start // size :]
            self.held -= owned - self.count(run)
        else:
            above = run.parent
            assert above is not None
            del above.children[run.keys[0]]
            run.parent, run.ticket = None, 0
            self.held -= owned
            self._offer(above)
        self.cached -= dropped
        self._policy.dropped(run)
        return gone

    def _owned(self, run: Run, at: int) -> list[int]:
        """Values that go when the keys from ``at`` on do."""
        if not self._size:
            return run.keys[at - run.start : run.length]
        if at > run.start:
            return run.values[at // self._size - run.start // self._size :]
        return run.values[self._shares(run) :]

    def _shares(self, run: Run) -> int:
        """1 where the block that a run begins in is held by one of those above that end in it."""
        if self._size == 1 or not run.values:
            return 0
        above, begin = run.parent, run.start - run.start % self._size
        while above is not None and above.end > begin and above.values:
            if above.values[-1] == run.values[0]:
                return 1
            above = above.parent
        return 0

    def _use(self, run: Run) -> list[Run]:
        self._policy.serve(self._requests)
        self._requests += 1
        path = path_to(run)
        for each in path:
            self._policy.touch(each)
        return path

    def _hold(self, path: list[Run]) -> None:
        for run in path:
            if not run.pins:
                self.pinned += self.count(run)
                run.ticket = 0
            run.pins += 1

    def _offer(self, run: Run) -> None:
        """Let a run be evicted, if no lease holds it and nothing follows it."""
        if not run.pins and not run.children and run.parent is not None:
            self._policy.offer(run)


def path_to(run: Run, above: Run | None = None) -> list[Run]:
    """Runs from the first below ``above``, else below the root, down to ``run``."""
    path = list[Run]()
    while run.parent is not None and run is not above:
        path.append(run)
        run = run.parent
    path.reverse()
    return path
