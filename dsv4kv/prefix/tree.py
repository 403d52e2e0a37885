"""Chains of keys as a tree of runs: where a chain leads, splitting, growing and trimming.

Keys are bytes of a fixed width. A run is compared in one ``memcmp``; only where it differs from
the chain, or the chain ends in it, is the first difference looked for.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dsv4kv.prefix.layout import Layout
from dsv4kv.prefix.run import NO_IDS, Ids, Run

_FIRST_WINDOW = 256
Undo = tuple[Any, ...]
"""A function and its arguments."""
_SLACK = 4  # a run's bytes are copied once a quarter of them is no longer of use


class RunTree:
    """The tree; counts and eviction order are the business of who holds it.

    Attributes:
        journal: How to undo what has been done since whoever holds the tree last replaced it, the
            last first.
    """

    def __init__(self, key_bytes: int, layout: Layout) -> None:
        """``key_bytes`` is a multiple of 4."""
        self.key_bytes = key_bytes
        self.layout = layout
        self.root = Run(None, b"", 0, 0, NO_IDS)
        self.num_runs = 0
        self.journal: list[Undo] = []

    def runs(self) -> Iterator[Run]:
        """All runs below the root."""
        left = [self.root]
        while left:
            children = (left.pop().children or {}).values()
            yield from children
            left += children

    def note(self, run: Run) -> None:
        """Before a run is changed: how to undo that."""
        place = (run.parent, run.keys, run.start, run.length, run.values, run.guards)
        self.journal.append((self._put_back, run, *place))

    def walk(self, above: Run, data: bytes) -> tuple[Run, int]:
        """Follow a chain that goes on behind a run.

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
        self.note(run)
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
        self.journal.append((_take_out, run))
        if above.children is None:
            above.children = {}
        above.children[keys[:width]] = run
        self.num_runs += 1
        return run

    def trim(self, run: Run, at: int) -> None:
        """Cut off the keys from ``at`` on; all of them takes the run out of the tree."""
        self.note(run)
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

    def _put_back(
        self,
        run: Run,
        parent: Run,
        keys: bytes,
        start: int,
        length: int,
        values: Ids,
        guards: Ids | None,
    ) -> None:
        """Let a run be where and what it was."""
        _take_out(run)
        run.parent, run.keys, run.start, run.length = parent, keys, start, length
        run.values, run.guards = values, guards
        parent.children = (parent.children or {}) | {keys[: self.key_bytes]: run}


def _take_out(run: Run) -> None:
    """Take a run out of the tree if it is in it, whatever an interruption has left of it."""
    above, run.parent = run.parent, None
    if above is not None:
        others = {key: child for key, child in (above.children or {}).items() if child is not run}
        above.children = others or None
