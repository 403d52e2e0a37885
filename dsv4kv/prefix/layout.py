"""What cached keys stand for: blocks of a paged cache, or one row that holds a whole prompt."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np

from dsv4kv.prefix.run import NO_IDS, Ids, Run


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
