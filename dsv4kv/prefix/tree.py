"""Chains of keys as a tree of runs: where a chain leads, splitting, growing and trimming.

Keys are bytes of a fixed width. A run is compared in one ``memcmp``; only where it differs from
the chain, or the chain ends in it, is the first difference looked for.

A run: keys of one tree edge that were cached together and have been used together ever since.
Whatever uses only a part of a run splits it first. So all its blocks share one history, a policy
judges the run as it would judge each of its blocks, and evicting from its end takes children
before their parents.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Score = float | tuple[float, float]
NO_IDS: Ids = np.zeros(0, dtype=np.int64)


class Run:
    """One edge of the tree.

    Attributes:
        parent: The run before; None for the root and for what has been evicted.
        children: Runs after this one, by the bytes of their first key; None while there is none.
        keys: Bytes of the keys; more than ``length`` until what was evicted is cut off.
        start: Keys before this run.
        length: Keys in it.
        values: What is cached for the keys, as a ``Layout`` lays it out.
        guards: A second check of every key, where the index keeps one.
        pins: Leases that hold the run or one below it.
        ticket: Number of the run's valid entry in its policy's order; 0 while it may not go.
        stamp: Its place in its policy's order, the least first.
        uses: How often it was used, as its policy counts.
        queue: Which queue of its policy it is in.
    """

    __slots__ = (
        "children",
        "guards",
        "keys",
        "length",
        "parent",
        "pins",
        "queue",
        "stamp",
        "start",
        "ticket",
        "uses",
        "values",
    )

    def __init__(
        self,
        parent: Run | None,
        keys: bytes,
        start: int,
        length: int,
        values: Ids,
        guards: Ids | None = None,
    ) -> None:
        """Make a run that nobody uses yet."""
        self.parent = parent
        self.children: dict[bytes, Run] | None = None
        self.keys = keys
        self.start = start
        self.length = length
        self.values = values
        self.guards = guards
        self.pins = 0
        self.ticket = 0
        self.stamp: Score = 0
        self.uses = 0
        self.queue = 0

    @property
    def end(self) -> int:
        """Keys of a chain up to the end of this run."""
        return self.start + self.length

    @property
    def moment(self) -> float:
        """Its stamp, where that is a moment of its policy."""
        assert not isinstance(self.stamp, tuple)
        return self.stamp

    @property
    def evictable(self) -> bool:
        """Whether the run may lose keys from its end: nobody holds it and nothing follows it."""
        return not self.pins and self.children is None and self.parent is not None


def path_to(run: Run, above: Run | None = None) -> list[Run]:
    """Runs from the first below ``above``, else below the root, down to ``run``."""
    path = []
    parent = run.parent
    while parent is not None and run is not above:
        path.append(run)
        run, parent = parent, parent.parent
    path.reverse()
    return path


def identity(run: Run, at: int, width: int, chained: bool) -> Hashable:
    """What stands for key ``at`` of a run *and its history*, also after the run is gone.

    A chained key does so itself; otherwise it is the path from the root.
    """
    key = run.keys[at * width : (at + 1) * width]
    if chained:
        return key
    before = [node.keys[: node.length * width] for node in path_to(run)[:-1]]
    return hash((b"".join([*before, run.keys[: at * width]]), key))


class Layout(Protocol):
    """How the values of a chain of keys are laid over the runs of its path."""

    def head(self, values: Ids, start: int, at: int) -> Ids:
        """Of the values of a run from key ``start``: those of the keys before ``at``."""

    def tail(self, values: Ids, start: int, at: int) -> Ids:
        """Those of the keys from ``at`` on."""

    def join(self, path: Sequence[Run], depth: int) -> Ids:
        """Values of the first ``depth`` keys of a path."""

    def first_key(self, num_keys: int, num_values: int) -> int:
        """First key of a chain that its last ``num_values`` values speak of; −1: too many."""

    def count(self, run: Run) -> int:
        """What evicting the whole run frees: values, or keys where rows hold them."""

    def cut(self, run: Run, count: int) -> int:
        """The key at which the last ``count`` of these begin; at most the run's start: all."""

    def owned(self, run: Run, at: int) -> Ids:
        """Values that go when the keys from ``at`` on do."""


class Blocks:
    """Every value is a block of ``block_keys`` keys.

    Where chains part inside a block, the runs after it hold blocks that begin before them: the
    block of the run above (whoever goes on writing in it), or a copy of its first keys.
    """

    def __init__(self, block_keys: int) -> None:
        """``block_keys`` is 1 where keys are blocks already."""
        self.block_keys = block_keys

    def head(self, values: Ids, start: int, at: int) -> Ids:
        """Blocks that hold keys before ``at``, the partial one included."""
        size = self.block_keys
        return values[: -(-at // size) - start // size]

    def tail(self, values: Ids, start: int, at: int) -> Ids:
        """Blocks that hold keys from ``at`` on, the partial one included."""
        size = self.block_keys
        return values[at // size - start // size :]

    def join(self, path: Sequence[Run], depth: int) -> Ids:
        """Blocks of the first ``depth`` keys; below a fork inside a block, the copy counts."""
        if not path:
            return NO_IDS
        size = self.block_keys
        last = path[-1]
        end = self.head(last.values, last.start, depth)
        if len(path) == 1:
            return end.copy()
        parts = [
            run.values[: after.start // size - run.start // size] for run, after in pairwise(path)
        ]
        return np.concatenate([*parts, end])

    def first_key(self, num_keys: int, num_values: int) -> int:
        """First key of the block that comes ``num_values`` before the end."""
        return max(-(-num_keys // self.block_keys) - num_values, -1) * self.block_keys

    def count(self, run: Run) -> int:
        """Blocks of the run, less one that a run above holds too."""
        return len(run.values) - (self.block_keys > 1 and self._shares(run))

    def cut(self, run: Run, count: int) -> int:
        """Key at which the last ``count`` blocks begin; the run's start where that is all."""
        if count >= self.count(run):
            return run.start
        return (-(-run.end // self.block_keys) - count) * self.block_keys

    def owned(self, run: Run, at: int) -> Ids:
        """Blocks that nothing above ``at`` holds."""
        if at > run.start:
            return self.tail(run.values, run.start, at)
        return run.values[self.block_keys > 1 and self._shares(run) :]

    def _shares(self, run: Run) -> bool:
        """Whether the block that a run begins in is held by one of those above that end in it."""
        above, begin = run.parent, run.start - run.start % self.block_keys
        if not len(run.values):
            return False
        first = run.values.item(0)
        while above is not None and above.start + above.length > begin and len(above.values):
            if above.values.item(-1) == first:
                return True
            above = above.parent
        return False


class Rows:
    """Every run's values name rows that hold its whole chain from the first key on.

    They are pairs of slot and version, the newest first. The index does not own rows: it only
    remembers what they held. Keys are counted instead.
    """

    def head(self, values: Ids, start: int, at: int) -> Ids:
        """The rows: a part of the chain is in them too."""
        return values

    def tail(self, values: Ids, start: int, at: int) -> Ids:
        """The rows."""
        return values

    def join(self, path: Sequence[Run], depth: int) -> Ids:
        """The newest row of the last run."""
        return path[-1].values[:2] if path else NO_IDS

    def first_key(self, num_keys: int, num_values: int) -> int:
        """The first, with one slot and one version."""
        return 0 if num_values == 2 else -1

    def count(self, run: Run) -> int:
        """Keys of the run."""
        return run.length

    def cut(self, run: Run, count: int) -> int:
        """The key ``count`` before the end."""
        return run.end - count

    def owned(self, run: Run, at: int) -> Ids:
        """Nothing."""
        return NO_IDS


_FIRST_WINDOW = 256
_SLACK = 4  # a run's bytes are copied once a quarter of them is no longer of use


class RunTree:
    """The tree; counts and eviction order are the business of who holds it."""

    def __init__(self, key_bytes: int, layout: Layout) -> None:
        """``key_bytes`` is a multiple of 4."""
        self.key_bytes = key_bytes
        self.layout = layout
        self.root = Run(None, b"", 0, 0, NO_IDS)
        self.num_runs = 0

    def walk(self, above: Run, data: bytes) -> tuple[Run, int]:
        """Follow a chain that goes on after a run.

        Returns the last run it enters, and how many keys of that run it shares.
        """
        run, at, width = above, 0, self.key_bytes
        while at < len(data):
            child = run.children.get(data[at : at + width]) if run.children else None
            if child is None:
                break
            size = child.length * width
            if size == len(child.keys):
                if not data.startswith(child.keys, at):
                    return child, self._common(child, data, at)
            elif not data.startswith(memoryview(child.keys)[:size], at):
                return child, self._common(child, data, at)
            run = child
            at += size
        return run, run.length

    def _common(self, run: Run, data: bytes, at: int) -> int:
        """Keys that a run shares with ``data`` from byte ``at`` on."""
        limit = min(run.length * self.key_bytes, len(data) - at) // 4
        done, window = 0, _FIRST_WINDOW
        while done < limit:
            size = min(window, limit - done)
            ours = np.frombuffer(run.keys, np.uint32, size, done * 4)
            theirs = np.frombuffer(data, np.uint32, size, at + done * 4)
            different = ours != theirs
            first = int(different.argmax())
            if different[first]:
                return (done + first) * 4 // self.key_bytes
            done += size
            window *= 8
        return limit * 4 // self.key_bytes

    def split(self, run: Run, inside: int) -> Run:
        """Cut a run after ``inside`` keys and return the new upper part.

        The object given stays the lower part, so that leases on it stay valid.
        """
        width, at, above = self.key_bytes, run.start + inside, run.parent
        assert above is not None
        assert above.children is not None
        layout, keys = self.layout, run.keys
        head = layout.head(run.values, run.start, at).copy()
        guards = run.guards
        upper = Run(above, keys[: inside * width], run.start, inside, head)
        above.children[keys[:width]] = upper
        upper.children = {keys[inside * width : (inside + 1) * width]: run}
        if guards is not None:
            upper.guards, run.guards = guards[:inside].copy(), guards[inside:].copy()
        upper.pins, upper.stamp = run.pins, run.stamp
        upper.uses, upper.queue = run.uses, run.queue
        run.values = layout.tail(run.values, run.start, at).copy()
        run.keys = keys[inside * width : run.length * width]
        run.parent, run.start, run.length = upper, at, run.length - inside
        self.num_runs += 1
        return upper

    def grow(self, above: Run, keys: bytes, values: Ids, guards: Ids | None) -> Run:
        """Hang what is new of a chain below the run that it leads to.

        Args:
            above: Where the chain leads.
            keys: Those that are new, at least one.
            values: What is cached for them, as the layout lays it out.
            guards: int64, one for every new key.
        """
        width = self.key_bytes
        kept = None if guards is None else guards.copy()
        run = Run(above, keys, above.end, len(keys) // width, values.copy(), kept)
        if above.children is None:
            above.children = {}
        above.children[keys[:width]] = run
        self.num_runs += 1
        return run

    def trim(self, run: Run, at: int) -> None:
        """Cut off the keys from ``at`` on; all of them takes the run out of the tree."""
        if at <= run.start:
            self._remove(run)
            return
        width = self.key_bytes
        run.values = self.layout.head(run.values, run.start, at)
        run.length = at - run.start
        if run.length * width * _SLACK < len(run.keys) * (_SLACK - 1):
            run.keys = run.keys[: run.length * width]
            run.values = run.values.copy()
            if run.guards is not None:
                run.guards = run.guards[: run.length].copy()

    def _remove(self, run: Run) -> None:
        above = run.parent
        assert above is not None
        assert above.children is not None
        del above.children[run.keys[: self.key_bytes]]
        if not above.children:
            above.children = None
        run.parent = None
        run.ticket = 0
        self.num_runs -= 1
