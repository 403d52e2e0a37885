"""SGLang's prefix tree with a pool of its own for windows, one request at a time.

Every node has its pages of context, and its window pages or none any more. A hit ends at the
deepest node that has them. Windows are evicted apart from context, the least recently used first:
a leaf goes altogether then, any other node keeps its context, of no use until a prompt computes
its window again. A leaf without windows is not kept.
Source: SGLang 0.5.23, ``unified_cache/components/swa.py``.
"""

import heapq
from itertools import count

import numpy as np

from dsv4kv.prefix.analysis.paths import PathTable
from dsv4kv.prefix.analysis.sglang_rule import Node, PageTree
from dsv4kv.prefix.analysis.vllm_groups_rule import GroupHits
from dsv4kv.prefix.analysis.walk import Shape


class WindowTree(PageTree):
    """The tree, its leaves by age, and its nodes with windows by age."""

    def __init__(self, shape: Shape, pages: int, window_pages: int) -> None:
        """An empty cache."""
        super().__init__(shape, pages)
        self.free_windows = window_pages
        self._used: dict[Node, int] = {}  # nodes with windows
        self._ever: set[Node] = set()  # nodes that had them once
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

    def split(self, node: Node, at: int) -> Node:
        """Cut a node in two; both halves keep their windows."""
        upper = super().split(node, at)
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
            if not bare or parent is self._held:
                return
            node = parent

    def make_room(self, pages: int, held: Node) -> None:
        """Evict until so many pages of context and of windows are free; ``held`` stays."""
        self._held = held
        self.evict(pages, held)
        kept = []
        while self.free_windows < pages:
            entry = heapq.heappop(self._aging)
            node = entry[2]
            if self._used.get(node) != entry[0]:
                continue
            if node is held:
                kept.append(entry)
            elif node.children:
                self._drop_window(node)
            else:
                self.remove(node)
        for entry in kept:
            heapq.heappush(self._aging, entry)

    def store(self, request: int, full: int, begin: int, window_from: int) -> tuple[int, int]:
        """Insert a prompt that was computed from page ``begin`` on.

        Returns:
            Pages of context and of windows that the tree takes over.
        """
        node = self.walk(request, full)
        present, windows = node.end, 0
        while node is not self.root and node.end > max(begin, window_from):
            if node not in self._used:
                if node.begin < window_from:
                    self.split(node, window_from)
                self._set_window(node)
                windows += node.end - node.begin
            node = _above(node)
        if present == full:
            return 0, windows
        leaf = self.add(request, self.walk(request, full), full)
        if present < window_from:
            self.split(leaf, window_from)
        self._set_window(leaf)
        windows += leaf.end - leaf.begin
        if full - leaf.begin > 1:
            self.split(leaf, full - 1)  # so that a lock holds one window alone
        return full - present, windows

    def _set_window(self, node: Node) -> None:
        self._used[node] = self._clock
        self._ever.add(node)
        self._age(node)

    def _age(self, node: Node) -> None:
        heapq.heappush(self._aging, (self._used[node], next(self._window_tickets), node))

    def _drop_window(self, node: Node) -> None:
        if self._used.pop(node, None) is not None:
            self.free_windows += node.end - node.begin


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
        tree.make_room(needed, node)
        tree.free -= needed
        tree.free_windows -= needed
        window_from = max(0, full - tail_pages) if tail_pages else 0
        stored, windows = tree.store(request, full, node.end, window_from)
        tree.free += needed - stored
        tree.free_windows += needed - windows
    return GroupHits(*hits)
