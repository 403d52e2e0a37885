"""SGLang's radix tree at page granularity.

A node holds the pages that were inserted together; it is split where a prompt parts from it.
Looking a prompt up refreshes every node on its way, all of a node it leaves half-way too. Whole
leaves are evicted, the least recently used first, until there is room; what a running request
found stays. A hit leaves the last token to be computed.
Source: SGLang 0.5.23, ``radix_cache.py``.
"""

import heapq
from itertools import count

import numpy as np

from dsv4kv.prefix.analysis.paths import Ints, PathTable
from dsv4kv.prefix.analysis.walk import Shape


class Node:
    """Pages ``begin`` to ``end`` of one request's path.

    Attributes:
        used: Clock of its last use; a node that is gone has -1.
        locks: Running requests that need it.
        window: Clock of the last use of its windows; -1 where it has none.
        window_locks: Running requests that need these.
        marked: Whether it ever had any.
    """

    __slots__ = (
        "begin",
        "children",
        "end",
        "locks",
        "marked",
        "parent",
        "request",
        "used",
        "window",
        "window_locks",
    )

    def __init__(self, request: int, begin: int, end: int, parent: "Node | None") -> None:
        self.request, self.begin, self.end = request, begin, end
        self.parent = parent
        self.children: dict[int, Node] = {}
        self.used = self.locks = 0
        self.window, self.window_locks, self.marked = -1, 0, False


class PageTree:
    """The tree, and its leaves by age.

    Attributes:
        root: Of no pages.
        free: Pages that hold nothing.
        stored: Pages of all nodes.
        locked: Of which running requests need.
        evicted: Pages evicted so far.
    """

    def __init__(self, shape: Shape, pages: int) -> None:
        """An empty cache of so many pages."""
        self._shape = shape
        self.root = Node(-1, 0, 0, None)
        self.free = pages
        self.stored = self.locked = self.evicted = 0
        self._clock = 0
        self._leaves: list[tuple[int, int, Node]] = []
        self._tickets = count()

    def peek(self, request: int, limit: int) -> list[tuple[Node, int]]:
        """The nodes that ``walk`` would pass, with the pages matched to the end of each."""
        shape, node, way = self._shape, self.root, list[tuple[Node, int]]()
        path = shape.path(request)
        while node.end < limit:
            child = node.children.get(shape.name(request, path, node.end))
            if child is None:
                break
            other = shape.path(child.request)
            common = shape.common_blocks(request, child.request, (path, other))
            way.append((child, min(common, child.end, limit)))
            if way[-1][1] < child.end:
                break
            node = child
        return way

    def walk(self, request: int, limit: int) -> Node:
        """Follow a prompt for at most ``limit`` pages; returns the node its match ends at."""
        shape, node = self._shape, self.root
        path = shape.path(request)
        self._clock += 1
        while node.end < limit:
            child = node.children.get(shape.name(request, path, node.end))
            if child is None:
                break
            self._use(child)
            other = shape.path(child.request)
            common = shape.common_blocks(request, child.request, (path, other))
            end = min(common, child.end, limit)
            node = child if end == child.end else self.split(child, end)
        return node

    def split(self, node: Node, at: int) -> Node:
        """Cut a node in two; returns the upper one."""
        parent, name = node.parent, self._shape.name
        assert parent is not None
        path = self._shape.path(node.request)
        upper = Node(node.request, node.begin, at, parent)
        upper.used, upper.locks = self._clock, node.locks
        parent.children[name(node.request, path, node.begin)] = upper
        upper.children[name(node.request, path, at)] = node
        node.parent, node.begin = upper, at
        return upper

    def add(self, request: int, below: Node, end: int) -> Node:
        """Hang the rest of a prompt below a node."""
        node = Node(request, below.end, end, below)
        below.children[self._shape.name(request, self._shape.path(request), below.end)] = node
        self.stored += end - below.end
        self._use(node)
        return node

    def lock(self, node: Node) -> None:
        """Keep a node and all above from being evicted."""
        while node.parent is not None:
            self.locked += 0 if node.locks else node.end - node.begin
            node.locks += 1
            node = node.parent

    def unlock(self, node: Node) -> None:
        """Undo ``lock``."""
        while node.parent is not None:
            node.locks -= 1
            self.locked -= 0 if node.locks else node.end - node.begin
            node = node.parent

    def take(self, pages: int) -> None:
        """Take pages for new content; least recently used leaves are dropped to have them."""
        kept = []
        while self.free < pages:
            entry = heapq.heappop(self._leaves)
            node = entry[2]
            if node.used != entry[0] or node.children:
                continue
            if node.locks:
                kept.append(entry)
                continue
            self.remove(node)
        for entry in kept:
            heapq.heappush(self._leaves, entry)
        self.free -= pages

    def store(self, request: int, full: int) -> tuple[Node, int]:
        """Insert a prompt; returns its last node and the pages that the tree takes over."""
        node = self.walk(request, full)
        stored = full - node.end
        return (self.add(request, node, full) if stored else node), stored

    def remove(self, node: Node) -> None:
        """Drop a leaf; its parent may be the next."""
        parent = node.parent
        assert parent is not None
        pages = node.end - node.begin
        self.free += pages
        self.stored -= pages
        self.evicted += pages
        node.used = -1
        del parent.children[
            self._shape.name(node.request, self._shape.path(node.request), node.begin)
        ]
        if not parent.children and parent is not self.root:
            heapq.heappush(self._leaves, (parent.used, next(self._tickets), parent))

    def _use(self, node: Node) -> None:
        node.used = self._clock
        if not node.children:
            heapq.heappush(self._leaves, (node.used, next(self._tickets), node))


def replay_sglang(
    table: PathTable, grain_tokens: int, capacity_pages: int, key_tokens: int = 0
) -> Ints:
    """Serve a trace; returns int64[requests]: pages that each request hit.

    The longest prompt must fit ``capacity_pages``. ``key_tokens`` are as ``Shape`` says.
    """
    shape = Shape(table, grain_tokens, whole_blocks=True, key_tokens=key_tokens)
    tree = PageTree(shape, capacity_pages)
    hits = np.zeros(len(table), np.int64)
    for request, tokens in enumerate(table.input_tokens.tolist()):
        full = shape.blocks[request]
        node = tree.walk(request, min((tokens - 1 - key_tokens) // grain_tokens, full))
        needed = -(-tokens // grain_tokens) - node.end
        hits[request] = node.end
        tree.lock(node)
        tree.take(needed)
        _, stored = tree.store(request, full)
        tree.unlock(node)
        tree.free += needed - stored
    return hits
