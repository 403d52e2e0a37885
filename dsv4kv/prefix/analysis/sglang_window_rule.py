"""SGLang's prefix tree with a pool of its own for windows.

Every node has its pages of context, and its window pages or none any more. A hit ends at the
deepest node that has them. Windows are evicted apart from context, the least recently used first:
a leaf goes altogether then, any other node keeps its context, of no use until a prompt computes
its window again. A leaf without windows is not kept.
Source: SGLang 0.5.23, ``unified_cache/components/swa.py``.
"""

import heapq
from collections import Counter
from itertools import count

import numpy as np

from dsv4kv.prefix.analysis.group_pool import GroupHits
from dsv4kv.prefix.analysis.paths import PathTable
from dsv4kv.prefix.analysis.sglang_rule import Node, PageTree
from dsv4kv.prefix.analysis.walk import Shape


class WindowTree(PageTree):
    """The tree, its leaves by age, and its nodes with windows by age.

    Attributes:
        free_windows: Window pages that hold nothing.
        stored_windows: Window pages of all nodes.
        locked_windows: Of which running requests resumed behind.
    """

    def __init__(self, shape: Shape, pages: int, window_pages: int) -> None:
        """An empty cache."""
        super().__init__(shape, pages)
        self.free_windows = window_pages
        self.stored_windows = self.locked_windows = 0
        self._used: dict[Node, int] = {}  # nodes with windows
        self._ever: set[Node] = set()  # nodes that had them once
        self._locks: Counter[Node] = Counter()  # of windows
        self._aging: list[tuple[int, int, Node]] = []
        self._window_tickets = count()

    def find(self, request: int, limit: int) -> tuple[Node, int, int]:
        """Where a prompt resumes, pages of context found, and where windows ever were."""
        found = self.walk(request, limit)
        node, marked = found, found
        while node is not self.root and node not in self._used:
            node = _above(node)
        while marked is not self.root and marked not in self._ever:
            marked = _above(marked)
        if node is not self.root:
            self._set_window(node)
        return node, found.end, marked.end

    def has_windows(self, node: Node) -> bool:
        """Whether a prompt can resume at the end of a node."""
        return node in self._used

    def idle_windows(self, node: Node, end: int) -> int:
        """Window pages up to ``end`` of a node that could be evicted."""
        return 0 if self._locks[node] else end - node.begin

    def lock(self, node: Node) -> None:
        """Keep a node and all above from being evicted, and the node's windows."""
        super().lock(node)
        if node is not self.root:
            self.locked_windows += 0 if self._locks[node] else node.end - node.begin
            self._locks[node] += 1

    def unlock(self, node: Node) -> None:
        """Undo ``lock``."""
        super().unlock(node)
        if node is not self.root:
            self._locks[node] -= 1
            if not self._locks[node]:
                del self._locks[node]
                self.locked_windows -= node.end - node.begin

    def split(self, node: Node, at: int) -> Node:
        """Cut a node in two; both halves keep their windows, a lock the lower half's."""
        upper = super().split(node, at)
        if node in self._locks:
            self.locked_windows -= upper.end - upper.begin
        if node in self._ever:
            self._ever.add(upper)
        if node in self._used:
            self._used[upper] = self._used[node]
            self._age(upper)
        return upper

    def remove(self, node: Node) -> None:
        """Drop a leaf, and leaves without windows that this leaves behind."""
        while True:
            parent = _above(node)
            self._drop_window(node)
            super().remove(node)
            bare = parent is not self.root and not parent.children and parent not in self._used
            if not bare or parent.locks:
                return
            node = parent

    def take_windows(self, pages: int) -> None:
        """Take window pages; those unused for longest go, a leaf's with its context."""
        kept = []
        while self.free_windows < pages:
            entry = heapq.heappop(self._aging)
            node = entry[2]
            if self._used.get(node) != entry[0]:
                continue
            if self._locks[node]:
                kept.append(entry)
            elif node.children:
                self._drop_window(node)
            else:
                self.remove(node)
        for entry in kept:
            heapq.heappush(self._aging, entry)
        self.free_windows -= pages

    def store_windows(
        self, request: int, full: int, begin: int, window_from: int
    ) -> tuple[Node, int, int]:
        """Insert a prompt that was computed from page ``begin`` on.

        Returns:
            Its last node, and the pages of context and of windows that the tree takes over.
        """
        last = node = self.walk(request, full)
        present, windows = node.end, 0
        while node is not self.root and node.end > max(begin, window_from):
            if node not in self._used:
                if node.begin < window_from:
                    self.split(node, window_from)
                self._set_window(node)
                windows += node.end - node.begin
            node = _above(node)
        if present == full:
            return last, 0, windows
        leaf = self.add(request, self.walk(request, full), full)
        if present < window_from:
            self.split(leaf, window_from)
        self._set_window(leaf)
        windows += leaf.end - leaf.begin
        if full - leaf.begin > 1:
            self.split(leaf, full - 1)  # so that a lock holds one window alone
        return leaf, full - present, windows

    def _set_window(self, node: Node) -> None:
        self.stored_windows += 0 if node in self._used else node.end - node.begin
        self._used[node] = self._clock
        self._ever.add(node)
        self._age(node)

    def _age(self, node: Node) -> None:
        heapq.heappush(self._aging, (self._used[node], next(self._window_tickets), node))

    def _drop_window(self, node: Node) -> None:
        if self._used.pop(node, None) is not None:
            self.free_windows += node.end - node.begin
            self.stored_windows -= node.end - node.begin


def _above(node: Node) -> Node:
    assert node.parent is not None
    return node.parent


def replay_sglang_windows(
    table: PathTable,
    grain_tokens: int,
    capacity_pages: int,
    window_pages: int,
    *,
    tail_pages: int | None,
) -> GroupHits:
    """Serve a trace.

    Args:
        table: The trace.
        grain_tokens: Tokens of a page; one page covers a window.
        capacity_pages: Pages of context; the longest prompt must fit.
        window_pages: Pages of windows; the longest prompt must fit.
        tail_pages: Last pages of a prompt whose windows stay; None for all.
    """
    shape = Shape(table, grain_tokens, whole_blocks=True)
    tree = WindowTree(shape, capacity_pages, window_pages)
    hits = np.zeros((3, len(table)), np.int64)
    for request, tokens in enumerate(table.input_tokens.tolist()):
        full = shape.blocks[request]
        node, found, marked = tree.find(request, min((tokens - 1) // grain_tokens, full))
        hits[:, request] = node.end, found, marked
        needed = -(-tokens // grain_tokens) - node.end
        tree.lock(node)
        tree.take(needed)
        tree.take_windows(needed)
        window_from = max(0, full - tail_pages) if tail_pages else 0
        _, stored, windows = tree.store_windows(request, full, node.end, window_from)
        tree.unlock(node)
        tree.free += needed - stored
        tree.free_windows += needed - windows
    return GroupHits(*hits)
