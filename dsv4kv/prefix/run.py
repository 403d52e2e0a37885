"""A run: keys of one tree edge that were cached together and have been used together ever since.

Whatever uses only a part of a run splits it first. So all its blocks share one history, a policy
judges the run as it would judge each of its blocks, and evicting from its end takes leaves first.
"""

from __future__ import annotations

from collections.abc import Hashable

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
