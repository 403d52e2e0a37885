"""SGLang's prefix trees for requests that run side by side.

A prompt is inserted when it is computed to its end, as the rules do that serve one request at a
time; the engine inserts every chunk.

SGLang's radix tree at page granularity. A node holds the pages that were inserted together; it is
split where a prompt parts from it. Looking a prompt up refreshes every node on its way, all of a
node it leaves half-way too. Whole leaves are evicted, the least recently used first, until there
is room; what a running request found stays. A hit leaves the last token to be computed.
Source: SGLang 0.5.23, ``radix_cache.py``.
"""

import heapq
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from dsv4kv.engines.cache import Generating, Hit, Pool
from dsv4kv.errors import OutOfBlocks
from dsv4kv.prefix.paths import Ints, PathTable, find_reuse, number_paths


class Pages:
    """Prompts in whole pages, by numbers that stand for a page and its history.

    So two prompts are alike up to a page where its numbers are equal.

    Attributes:
        blocks: Pages of every prompt.
        key_tokens: Tokens after a page that distinguish it, too.
    """

    def __init__(
        self, paths: Sequence[Ints], key_tokens: int, owners: Sequence[int] | None = None
    ) -> None:
        """``paths`` are int64 numbers of pages, contiguous; owners may not be known."""
        self.blocks, self.key_tokens = [len(path) for path in paths], key_tokens
        self._paths, self._owners = paths, owners

    def owner(self, request: int) -> int:
        """The prompt that touched the last of its pages seen before; -1 where none is known."""
        return self._owners[request] if self._owners else -1

    def numbers(self, request: int) -> "memoryview[int]":
        """Of a prompt's pages; to be read one by one."""
        return memoryview(self._paths[request])  # type: ignore[arg-type]

    def common(self, one: "memoryview[int]", request: int, begin: int, end: int) -> int:
        """Leading pages that a prompt shares with a request's, from ``begin`` up to ``end``."""
        other = self.numbers(request)
        return bisect_left(range(end), True, begin, key=lambda page: one[page] != other[page])


def number_pages(table: PathTable, page_tokens: int, key_tokens: int = 0) -> Pages:
    """The prompts of a trace in whole pages; raises ``ConfigError`` for pages that do not fit."""
    reuse = find_reuse(table, page_tokens, whole_blocks=True, key_tokens=key_tokens)
    numbered = number_paths(reuse)
    return Pages(numbered.paths, key_tokens, numbered.owners)


class Node:
    """Pages ``begin`` to ``end`` of one request's path.

    Attributes:
        children: Nodes after this one, by the numbers of their first pages.
        last: Number of its last page.
        used: Clock of its last use; a node that is gone has -1. In a tree with windows those below
            may have been used since.
        passed: Clock when a prompt last ended here, or at one below that is gone; -1 if none did.
        locks: Running requests that need it.
        window: Clock of the last use of its windows; -1 where it has none.
        window_locks: Running requests that need these.
        marked: Whether it ever had any.
    """

    __slots__ = (
        "begin",
        "children",
        "end",
        "last",
        "locks",
        "marked",
        "parent",
        "passed",
        "request",
        "used",
        "window",
        "window_locks",
    )

    def __init__(
        self, request: int, begin: int, end: int, parent: "Node | None", last: int = -1
    ) -> None:
        self.request, self.begin, self.end, self.last = request, begin, end, last
        self.parent = parent
        self.children: dict[int, Node] = {}
        self.used = self.locks = 0
        self.passed = -1
        self.window, self.window_locks, self.marked = -1, 0, False


def parent_of(node: Node) -> Node:
    """The node above one that is not the root."""
    assert node.parent is not None
    return node.parent


Evicted = Callable[[Sequence[int], Sequence[int]], None]
"""Hears the numbers of pages that are evicted, rising, and of those whose windows are."""


def _unheard(pages: Sequence[int], windows: Sequence[int]) -> None:
    """Nobody wants to know."""


class PageTree:
    """The tree, and its leaves by age.

    Attributes:
        on_evicted: Called with what is evicted, before it is.
        root: Of no pages.
        free: Pages that hold nothing.
        stored: Pages of all nodes.
        locked: Of which running requests need.
        evicted: Pages evicted so far.
        changes: How often a node came, went or was cut.
    """

    def __init__(self, shape: Pages, pages: int) -> None:
        """An empty cache of so many pages."""
        self._shape = shape
        self.on_evicted: Evicted = _unheard
        self.root = Node(-1, 0, 0, None)
        self.free = pages
        self.stored = self.locked = self.evicted = self.changes = 0
        self._clock = 0
        self._leaves: list[tuple[int, int, Node]] = []
        # of which these came first while they were locked, and wait until they are not
        self._locked_leaves: dict[Node, list[tuple[int, int, Node]]] = {}
        self._tickets = count()
        self._tips: dict[int, Node] = {}

    def peek(self, request: int, limit: int) -> tuple[Node, int]:
        """The last node that ``walk`` would pass, and the pages matched to its end."""
        node, numbers = self.start(request, limit), self._shape.numbers(request)
        while node.end < limit:
            child = node.children.get(numbers[node.end])
            if child is None:
                break
            if child.end > limit or numbers[child.end - 1] != child.last:
                return child, self._part_of(child, numbers, limit)
            node = child
        return node, node.end

    def start(self, request: int, limit: int) -> Node:
        """A node on a prompt's way, as far down as is known without following it.

        Where it ended before, or the prompt that it goes on from; what is left of that.
        """
        owner, numbers = self._shape.owner(request), self._shape.numbers(request)
        node = self._tips.get(request) or self._tips.get(owner, self.root)
        while node is not self.root and (
            node.used < 0 or node.end > limit or numbers[node.end - 1] != node.last
        ):
            node = parent_of(node)
        return node

    def keep_tip(self, request: int, node: Node) -> None:
        """Remember where a prompt ends, and no longer where the one before it did."""
        self._tips.pop(self._shape.owner(request), None)
        self._tips[request] = node

    def _part_of(self, node: Node, numbers: "memoryview[int]", limit: int) -> int:
        """Pages up to which a prompt goes along with a node that begins as it goes on."""
        end = min(node.end, limit)
        if numbers[end - 1] == node.last:
            return end
        return self._shape.common(numbers, node.request, node.begin + 1, end)

    def walk(self, request: int, limit: int) -> Node:
        """Follow a prompt for at most ``limit`` pages; returns the node its match ends at."""
        node, self._clock = self.root, self._clock + 1
        numbers = self._shape.numbers(request)
        while node.end < limit:
            child = node.children.get(numbers[node.end])
            if child is None:
                break
            self._use(child)
            node = self._enter(child, numbers, limit)
        return node

    def _enter(self, node: Node, numbers: "memoryview[int]", limit: int) -> Node:
        """A node as far as a prompt goes along with it: all of it, or it is cut there."""
        if node.end <= limit and numbers[node.end - 1] == node.last:
            return node
        end = self._part_of(node, numbers, limit)
        return node if end == node.end else self.split(node, end)

    def split(self, node: Node, at: int) -> Node:
        """Cut a node in two; returns the upper one."""
        parent, numbers = node.parent, self._shape.numbers(node.request)
        assert parent is not None
        upper = Node(node.request, node.begin, at, parent, numbers[at - 1])
        upper.used, upper.locks = self._clock, node.locks
        self.changes += 1
        parent.children[numbers[node.begin]] = upper
        upper.children[numbers[at]] = node
        node.parent, node.begin = upper, at
        return upper

    def add(self, request: int, below: Node, end: int) -> Node:
        """Hang the rest of a prompt below a node."""
        numbers = self._shape.numbers(request)
        node = Node(request, below.end, end, below, numbers[end - 1])
        below.children[numbers[below.end]] = node
        self.stored += end - below.end
        self.changes += 1
        self._use(node)
        return node

    def lock(self, node: Node, above: Node | None = None) -> None:
        """Keep a node and all above from being evicted, below one of these that is kept."""
        while node is not above and node.parent is not None:
            self.locked += 0 if node.locks else node.end - node.begin
            node.locks += 1
            node = node.parent

    def unlock(self, node: Node) -> None:
        """Undo ``lock``."""
        while node.parent is not None:
            node.locks -= 1
            if not node.locks:
                self.locked -= node.end - node.begin
                for entry in self._locked_leaves.pop(node, ()):
                    heapq.heappush(self._leaves, entry)
            node = node.parent

    def unlocked(self, request: int, node: Node, end: int) -> int:
        """Pages that nobody keeps on a prompt's way, up to page ``end`` of a node on it."""
        if not end:
            return 0
        first = self.root.children[self._shape.numbers(request)[0]]
        if not first.locks:  # nor is any below it
            return end
        locked = end
        while not node.locks:
            locked, node = node.begin, parent_of(node)
        return end - locked

    def take(self, pages: int) -> None:
        """Take pages for new content; least recently used leaves are dropped to have them."""
        while self.free < pages:
            entry = heapq.heappop(self._leaves)
            node = entry[2]
            if node.used != entry[0] or node.children:
                continue
            if node.locks:
                self._locked_leaves.setdefault(node, []).append(entry)
                continue
            self.remove(node)
        self.free -= pages

    def store(self, request: int, full: int) -> tuple[Node, int]:
        """Insert a prompt; returns its last node and the pages that the tree takes over."""
        node = self.walk(request, full)
        stored = full - node.end
        if stored:
            node = self.add(request, node, full)
        self.keep_tip(request, node)
        return node, stored

    def remove(self, node: Node) -> None:
        """Drop a leaf; its parent may be the next."""
        parent = node.parent
        assert parent is not None
        gone = self._pages_of(node)
        self.on_evicted(gone, gone if node.window >= 0 else ())
        self._forget(node, parent)

    def _pages_of(self, node: Node) -> list[int]:
        return self._shape.numbers(node.request)[node.begin : node.end].tolist()

    def _forget(self, node: Node, parent: Node) -> None:
        pages = node.end - node.begin
        self.free += pages
        self.stored -= pages
        self.evicted += pages
        node.used = -1
        self.changes += 1
        del parent.children[self._shape.numbers(node.request)[node.begin]]
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
    shape = number_pages(table, grain_tokens, key_tokens)
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


@dataclass(slots=True)
class Running:
    """A request in the tree.

    Attributes:
        node: The last node that it needs.
        tokens: Tokens of its prompt.
        pages: Pages that it holds for itself.
    """

    node: Node
    tokens: int
    pages: int


class SglangCache:
    """A tree of pages, and who runs in it; see ``EngineCache``."""

    per_shared = 1

    def __init__(
        self, tree: PageTree, shape: Pages, page_tokens: int, uncovered_tokens: int = 1
    ) -> None:
        """``shape`` are the prompts in whole pages; the tree is empty.

        No hit covers the last ``uncovered_tokens`` of a prompt.
        """
        self.total = tree.free
        self.freed = 0
        self._tree, self._shape, self._size = tree, shape, page_tokens
        self._uncovered = uncovered_tokens
        self._running: dict[int, Running] = {}
        self._asked, self._answer = (-1, 0, 0), (tree.root, 0)

    def watch(self, on_evicted: Evicted) -> None:
        """Call this from now on with what is evicted."""
        self._tree.on_evicted = on_evicted

    @property
    def evicted(self) -> int:
        """Pages evicted so far."""
        return self._tree.evicted

    @property
    def free(self) -> int:
        """Pages that hold nothing."""
        return self._tree.free

    @property
    def cached(self) -> int:
        """Pages of the tree that nobody uses."""
        return self._tree.stored - self._tree.locked

    @property
    def shared(self) -> int:
        """Pages of the tree that requests use."""
        return self._tree.locked

    @property
    def private(self) -> int:
        """Pages that one request holds for itself."""
        return self.total - self.free - self.cached - self.shared

    @property
    def available(self) -> int:
        """Pages that can be had: free, or to be evicted."""
        return self.free + self.cached

    @property
    def windows(self) -> int:
        """Window pages that the tree holds."""
        return 0

    def refuses(self, tokens: int) -> str:
        """Why a request of so many tokens can never run; empty if it can."""
        return "longer than all blocks together" if self._pages(tokens) > self.total else ""

    def peek(self, request: int, tokens: int) -> int:
        """Pages that a prompt of so many tokens would find."""
        return self._match(request, tokens)[1]

    def _match(self, request: int, tokens: int) -> tuple[Node, int]:
        """What a prompt would find; looked up once for as long as the tree stays as it is."""
        asked = request, tokens, self._tree.changes
        if self._asked != asked:
            self._asked = asked
            self._answer = self._tree.peek(request, self._limit(request, tokens))
        return self._answer

    def fits(self, request: int, tokens: int, promised: int) -> bool:
        """Whether a prompt can begin and end where ``promised`` pages are others'."""
        node, resumed = self._match(request, tokens)
        needed = self._pages(tokens) - resumed
        return needed + promised <= self.available - self._tree.unlocked(request, node, resumed)

    def begin(self, request: int, tokens: int) -> Hit:
        """Use what is cached of a prompt; everything it needs can be had from now on."""
        node = self._tree.walk(request, self._limit(request, tokens))
        pages = self._pages(tokens) - node.end
        self._tree.lock(node)
        self._tree.take(pages)
        self._running[request] = Running(node, tokens, pages)
        return Hit(node.end, node.end, node.end)

    def compute(self, request: int, position: int, earlier: Sequence[int] = ()) -> int:
        """Cache a prompt that is computed; returns the pages that others can find."""
        running = self._running[request]
        if position < running.tokens:
            return running.node.end
        node, stored = self._tree.store(request, self._shape.blocks[request])
        rest = self._pages(running.tokens) - node.end
        self._tree.free += running.pages - stored - rest
        running.pages = rest
        self._tree.lock(node, above=running.node)
        running.node = node
        self.freed += 1
        return node.end

    def decode(self, request: int) -> None:
        """The prompt is computed and more tokens follow: their windows are not counted."""

    def decoded(self, requests: Generating) -> None:
        """Their windows are not counted."""

    def end(self, request: int, decoded_blocks: int, position: int = 0) -> int:
        """Give everything back, with so many pages that decoding took; returns those cached."""
        running = self._running.pop(request)
        self._tree.unlock(running.node)
        self._tree.free += running.pages + decoded_blocks
        self.freed += 1
        return running.node.end

    def take(self, blocks: int) -> None:
        """Take pages for decoded tokens; raises ``OutOfBlocks``."""
        if blocks > self.available:
            raise OutOfBlocks(f"{blocks} pages are needed and {self.available} can be had.")
        self._tree.take(blocks)

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self._size)

    def _limit(self, request: int, tokens: int) -> int:
        known = max(0, tokens - self._uncovered - self._shape.key_tokens)
        return min(known // self._size, self._shape.blocks[request])


def page_shape(pool: Pool) -> Pages:
    """The prompts in whole pages; with MTP, a page's key covers the token behind it."""
    key_tokens = pool.speculation.key_tokens
    if pool.numbered is None:
        return number_pages(pool.table, pool.block_tokens, key_tokens)
    return Pages(pool.numbered.paths, key_tokens, pool.numbered.owners)


def open_sglang(pool: Pool) -> SglangCache:
    """An empty tree with one pool."""
    shape = page_shape(pool)
    return SglangCache(PageTree(shape, pool.blocks), shape, pool.block_tokens)
