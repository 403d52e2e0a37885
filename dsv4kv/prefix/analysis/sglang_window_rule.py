"""SGLang's prefix tree with a pool of its own for windows.

Every node has its pages of context, and its window pages or none any more. A hit ends at the
deepest node that has them; where the context goes on beyond, prompts part: the window there is
kept by the request that finds it missing. Windows are evicted apart from context, the least
recently used first and of equal age the upper node's: a leaf goes altogether then, any other node
keeps its context, of no use until a prompt computes its window again.
Source: SGLang 0.5.23, ``unified_cache/unified_tree_core.py``, ``unified_cache/components/swa.py``.
"""

import heapq
from itertools import count
from typing import NamedTuple

from dsv4kv.prefix.analysis.sglang_rule import Node, PageTree
from dsv4kv.prefix.analysis.walk import Shape

_REFRESHED_PAGES = 2
"""Pages whose windows are refreshed together: the window and a page, in whole pages."""


class Lock(NamedTuple):
    """What a request keeps from being evicted.

    Attributes:
        node: The last node that it needs.
        begin: First page of windows that it needs; splitting the node does not move it.
    """

    node: Node
    begin: int


class WindowTree(PageTree):
    """The tree, its leaves by age, and its nodes with windows by age.

    Attributes:
        free_windows: Window pages that hold nothing.
        stored_windows: Window pages of all nodes.
    """

    def __init__(self, shape: Shape, pages: int, window_pages: int) -> None:
        """An empty cache."""
        super().__init__(shape, pages)
        self.free_windows, self.stored_windows = window_pages, 0
        self._aging: list[tuple[int, int, int, Node]] = []
        self._window_tickets = count()

    def find(self, request: int, limit: int) -> tuple[Node, int, int]:
        """Where a prompt resumes, pages of context found, and where windows ever were."""
        last = self._descend(request, self.root, limit)
        node = marked = last
        while node is not self.root and node.window < 0:
            node = _above(node)
        while marked is not self.root and not marked.marked:
            marked = _above(marked)
        self._refresh(node)
        self._touch(node)
        return node, last.end, marked.end

    def hold(self, node: Node) -> Lock:
        """Keep a node and all above from being evicted, and the node's windows."""
        self.lock(node)
        node.window_locks += node is not self.root
        return Lock(node, node.begin)

    def release(self, held: Lock) -> None:
        """Undo ``hold``."""
        self.unlock(held.node)
        node = held.node
        while node is not self.root:
            node.window_locks -= 1
            if node.begin == held.begin:
                return
            node = _above(node)

    def split(self, node: Node, at: int) -> Node:
        """Cut a node in two; both halves have its windows, its locks, and their age."""
        upper = super().split(node, at)
        for half in (upper, node):
            self._clock += 1
            self._use(half)
        upper.window_locks, upper.marked = node.window_locks, node.marked
        upper.window = node.window
        if node.window >= 0:
            self._age(upper)
            self._age(node)
        return upper

    def remove(self, node: Node) -> None:
        """Drop a leaf."""
        self._drop_window(node)
        super().remove(node)

    def take_windows(self, pages: int) -> None:
        """Take window pages; those unused for longest go, a leaf's with its context."""
        kept = []
        while self.free_windows < pages:
            entry = heapq.heappop(self._aging)
            used, begin, _, node = entry
            if (node.window, node.begin) != (used, begin):
                continue
            if node.window_locks:
                kept.append(entry)
            elif node.children or node.locks:
                self._drop_window(node)
            else:
                self.remove(node)
        for entry in kept:
            heapq.heappush(self._aging, entry)
        self.free_windows -= pages

    def insert(
        self, request: int, below: Node, end: int, window_from: int
    ) -> tuple[Node, int, int]:
        """Insert the pages of a prompt up to ``end``, computed below a node that it holds.

        Args:
            request: Whose prompt.
            below: The node; nothing above it changes.
            end: Pages of the prompt.
            window_from: First page whose window the request still has.

        Returns:
            Its last node, and the pages of context and of windows that the tree takes over.
        """
        last = self._descend(request, below, end)
        self._touch(last)
        windows = sum(self._recover(n, window_from) for n in _way(below, last))
        stored = end - last.end
        if stored:
            last = self.add(request, last, end)
            windows += self._recover(last, window_from)
            if last.window >= 0 and last.end - last.begin > 1:
                self.split(last, last.end - 1)  # so that a lock holds one window alone
        self._refresh(last)
        return last, stored, windows

    def _descend(self, request: int, node: Node, limit: int) -> Node:
        """Follow a prompt from a node on its way for at most ``limit`` pages in all."""
        shape, path = self._shape, self._shape.path(request)
        while node.end < limit:
            child = node.children.get(shape.name(request, path, node.end))
            if child is None:
                break
            other = shape.path(child.request)
            end = min(shape.common_blocks(request, child.request, (path, other)), child.end, limit)
            node = child if end == child.end else self.split(child, end)
        return node

    def _touch(self, node: Node) -> None:
        """Use a node and all above, the deepest last."""
        for each in _way(self.root, node):
            self._clock += 1
            self._use(each)

    def _recover(self, node: Node, window_from: int) -> int:
        """Let a node without windows have the request's; returns how many it takes over."""
        if node.window >= 0 or node.end <= window_from:
            return 0
        if node.begin < window_from:
            self.split(node, window_from)
        self._set_window(node)
        pages = node.end - node.begin
        self.stored_windows += pages
        return pages

    def _refresh(self, node: Node) -> None:
        """Make the windows that end with a node the last ones to go."""
        self._clock += 1
        end = node.end
        while node is not self.root and end - node.end < _REFRESHED_PAGES:
            if node.window >= 0:
                self._set_window(node)
            node = _above(node)

    def _set_window(self, node: Node) -> None:
        node.window, node.marked = self._clock, True
        self._age(node)

    def _age(self, node: Node) -> None:
        entry = (node.window, node.begin, next(self._window_tickets), node)
        heapq.heappush(self._aging, entry)

    def _drop_window(self, node: Node) -> None:
        if node.window >= 0:
            node.window = -1
            self.free_windows += node.end - node.begin
            self.stored_windows -= node.end - node.begin


def _above(node: Node) -> Node:
    assert node.parent is not None
    return node.parent


def _way(above: Node, node: Node) -> list[Node]:
    """The nodes below ``above`` down to ``node``."""
    way = []
    while node is not above:
        way.append(node)
        node = _above(node)
    return way[::-1]
