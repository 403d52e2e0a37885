"""A tree of runs and its policy: what is held, what may go, what goes."""

from collections.abc import Iterable

import numpy as np

from dsv4kv.errors import OutOfBlocks
from dsv4kv.prefix.layout import Layout
from dsv4kv.prefix.policies.contract import Policy
from dsv4kv.prefix.run import NO_IDS, Ids, Run, identity, path_to
from dsv4kv.prefix.tree import RunTree


class Keeper:
    """Keeps the policy told, and counts.

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
        """Tell the policy that a request uses a chain; return the chain's runs."""
        self._policy.serve(request)
        path = path_to(run)
        for node in path:
            self._policy.touch(node)
        return path

    def go_on(self, request: int) -> int:
        """Tell the policy that a request goes on in what it uses; return the moment."""
        self._policy.serve(request)
        return self._policy.now

    def miss(self, data: bytes, at: int) -> None:
        """Tell the policy that key ``at`` of a chain is wanted and not cached."""
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
        """Tell the policy that a run may go, if it may."""
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
        """Evict ``count`` values, leaves first; see ``PrefixIndex.evict``."""
        if not 0 <= count <= self.evictable:
            raise OutOfBlocks(
                f"{count} are to be evicted and {self.evictable} of {self.held} cached may be: "
                "release a request first. Nothing was changed."
            )
        parts, last = list[Ids](), self.held - count
        while (missing := self.held - last) > 0:
            parts.append(self._evict_from(self._policy.choose(), missing))
        return np.concatenate(parts) if parts else NO_IDS

    def recount(self, ends: Iterable[Run]) -> None:
        """Count and offer anew after runs were put back; leases hold those down to ``ends``."""
        runs = list(self.tree.runs())
        offered = sorted(runs, key=lambda run: run.ticket)
        for run in runs:
            run.pins = run.ticket = 0
        for end in ends:
            for run in path_to(end):
                run.pins += 1
        self.tree.num_runs = len(runs)
        self.cached = sum(run.length for run in runs)
        self.held = sum(self.layout.count(run) for run in runs)
        self.pinned = sum(self.layout.count(run) for run in runs if run.pins)
        self._policy.recount(runs)
        for run in offered:
            self.offer(run)

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
