"""SGLang's prefix tree with a pool of windows, for requests that run side by side.

A prompt is inserted chunk by chunk. Windows behind a chunk's last one are given back before it is
inserted, if the engine is set to, so that each chunk leaves its last window alone. A prompt that
finds context beyond its hit is inserted up to there first, with the window there, and to its end
when it is done.
Source: SGLang 0.5.23, ``unified_radix_cache.py`` (``checkpoint_into_tree``), ``common.py``
(``free_swa_out_of_window_slots``).

SGLang's prefix tree with a pool of its own for windows. Every node has its pages of context, and
its window pages or none any more. A hit ends at the deepest node that has them; where the context
goes on beyond, prompts part: the window there is kept by the request that finds it missing.
Windows are evicted apart from context, the least recently used first and of equal age the upper
node's: a leaf goes altogether then, any other node keeps its context, of no use until a prompt
computes its window again.
Source: SGLang 0.5.23, ``unified_cache/unified_tree_core.py``, ``unified_cache/components/swa.py``.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import numpy as np

from dsv4kv.engines.cache import Generating, Hit, Pool, check_pages
from dsv4kv.engines.sglang.cache import Node, Pages, PageTree, SglangCache, page_shape, parent_of
from dsv4kv.engines.vllm.groups import GroupHits
from dsv4kv.prefix.paths import Ints

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

    def __init__(self, shape: Pages, pages: int, window_pages: int) -> None:
        """An empty cache."""
        super().__init__(shape, pages)
        self.free_windows, self.stored_windows = window_pages, 0
        self._aging: list[tuple[int, int, int, Node]] = []
        self._locked_windows: dict[Node, list[tuple[int, int, int, Node]]] = {}
        self._window_tickets = count()

    def find(self, request: int, limit: int) -> tuple[Node, int, int]:
        """Where a prompt resumes, pages of context found, and where windows ever were."""
        last = self._descend(request, self.start(request, limit), limit)
        node = marked = last
        while node is not self.root and node.window < 0:
            node = parent_of(node)
        while marked is not self.root and not marked.marked:
            marked = parent_of(marked)
        self._refresh(node)
        self._touch(node)
        return node, last.end, marked.end

    def hold(self, node: Node, window_from: int | None = None, held: Lock | None = None) -> Lock:
        """Keep a node and all above from being evicted, and its windows.

        Args:
            node: The node.
            window_from: Also windows of the nodes above that begin there or later.
            held: What is held already, by one of the nodes above; its windows are released.
        """
        self.lock(node, above=held.node if held else None)
        last, begin = node, node.begin
        while node is not self.root:
            node.window_locks += 1
            begin = node.begin
            if window_from is None or begin <= window_from:
                break
            node = parent_of(node)
        if held:
            self._release_windows(held)
        return Lock(last, begin)

    def release(self, held: Lock) -> None:
        """Undo ``hold``."""
        self.unlock(held.node)
        self._release_windows(held)

    def _release_windows(self, held: Lock) -> None:
        node = held.node
        while node is not self.root:
            node.window_locks -= 1
            if not node.window_locks:
                for entry in self._locked_windows.pop(node, ()):
                    heapq.heappush(self._aging, entry)
            if node.begin == held.begin:
                return
            node = parent_of(node)

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

    def _forget(self, node: Node, parent: Node) -> None:
        self._drop_window(node)
        if node.passed > parent.passed:
            parent.passed = node.passed
            parent.used = max(parent.used, parent.passed + parent.end)
        super()._forget(node, parent)

    def take_windows(self, pages: int) -> None:
        """Take window pages; those unused for longest go, a leaf's with its context."""
        while self.free_windows < pages:
            entry = heapq.heappop(self._aging)
            used, begin, _, node = entry
            if node.window != used or node.begin != begin:
                continue
            if node.window_locks:
                self._locked_windows.setdefault(node, []).append(entry)
            elif node.children or node.locks:
                self.on_evicted((), self._pages_of(node))
                self._drop_window(node)
            else:
                self.remove(node)
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
        self.keep_tip(request, last)
        return last, stored, windows

    def _descend(self, request: int, node: Node, limit: int) -> Node:
        """Follow a prompt from a node on its way for at most ``limit`` pages in all."""
        numbers = self._shape.numbers(request)
        while node.end < limit:
            child = node.children.get(numbers[node.end])
            if child is None:
                break
            node = self._enter(child, numbers, limit)
        return node

    def _touch(self, node: Node) -> None:
        """Use a node and all above, the deepest last; these learn of it when they are leaves."""
        if node is not self.root:
            node.passed = self._clock
            self._clock += node.end
            self._use(node)

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
            node = parent_of(node)

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


def _way(above: Node, node: Node) -> list[Node]:
    """The nodes below ``above`` down to ``node``."""
    way = []
    while node is not above:
        way.append(node)
        node = parent_of(node)
    return way[::-1]


_EVICTION_STEPS = 128  # SGLANG_SWA_EVICTION_INTERVAL
_SPARE_PAGES = 5
"""Window pages a request holds in addition to a chunk's whole pages: two of its hit, two behind
the chunk before, one that a chunk begins in."""


@dataclass(slots=True)
class WindowRunning:
    """A request in the tree.

    Attributes:
        held: What of the tree it needs.
        tokens: Tokens of its prompt.
        position: Of which it has pages.
        freed: Pages whose windows it gave back, from the start.
        branch: Page where the context that it found ends, if beyond its hit and not inserted yet.
        promised: Pages that it may still take.
        windows: Window pages that it may hold at most.
    """

    held: Lock
    tokens: int
    position: int
    freed: int
    branch: int
    promised: int
    windows: int


class SglangWindowCache(SglangCache):
    """``SglangCache`` with a pool of windows."""

    def __init__(
        self,
        tree: WindowTree,
        shape: Pages,
        pool: Pool,
        *,
        dense: bool,
        uncovered_tokens: int = 1,
    ) -> None:
        """An empty cache.

        Args:
            tree: An empty one.
            shape: The prompts in whole pages.
            pool: Its pages, windows and chunks.
            dense: Whether a running request keeps the windows of its whole prompt.
            uncovered_tokens: Tokens at a prompt's end that no hit covers.
        """
        super().__init__(tree, shape, pool.block_tokens, uncovered_tokens)
        self._windows, self._total_windows = tree, tree.free_windows
        self._window, self._chunk, self._dense = pool.model.window_tokens, pool.chunk_tokens, dense
        self._holds_chunks = dense and pool.holds_chunks
        self._lag = int(_EVICTION_STEPS / 2 * pool.tokens_per_step)
        self._inside: dict[int, WindowRunning] = {}
        self._promised = self._promised_windows = self._decoded_windows = 0

    @property
    def available(self) -> int:
        """Pages that can be had: free, or to be evicted, less those promised.

        A page of generated tokens has a page of windows, too.
        """
        return min(super().available - self._promised, self._available_windows)

    @property
    def _available_windows(self) -> int:
        return self._total_windows - self._promised_windows - self._decoded_windows

    @property
    def windows(self) -> int:
        """Window pages that the tree or a prompt holds."""
        return self._total_windows - self._windows.free_windows

    def refuses(self, tokens: int) -> str:
        """Why a request of so many tokens can never run; empty if it can."""
        if reason := super().refuses(tokens):
            return reason
        if self._most_windows(tokens) > self._total_windows:
            return "longer than all windows together"
        return ""

    def fits(self, request: int, tokens: int, promised: int) -> bool:
        """Whether a prompt can begin and end where ``promised`` pages are others'."""
        node, resumed = self._match(request, tokens)
        while resumed and node.window < 0:
            resumed, node = node.begin, parent_of(node)
        unlocked = self._tree.unlocked(request, node, resumed)
        available = super().available - self._promised - unlocked
        needed = self._needed_windows(tokens, resumed, resumed - node.begin)
        enough = needed <= self._available_windows
        return enough and self._pages(tokens) - resumed + promised <= available

    def begin(self, request: int, tokens: int) -> Hit:
        """Use what is cached of a prompt; everything it needs can be had from now on."""
        node, found, marked = self._windows.find(request, self._limit(request, tokens))
        self._inside[request] = running = WindowRunning(
            held=self._windows.hold(node),
            tokens=tokens,
            position=node.end * self._size,
            freed=0,
            branch=found if found > node.end else 0,
            promised=self._pages(tokens) - node.end,
            windows=self._needed_windows(tokens, node.end, node.end - node.begin),
        )
        self._promised += running.promised
        self._promised_windows += running.windows
        return Hit(node.end, found, marked)

    def compute(self, request: int, position: int, earlier: Sequence[int] = ()) -> int:
        """Cache what is computed up to ``position``; returns the pages that others can find."""
        running = self._inside[request]
        for end in (*earlier, position):
            self._compute(request, running, end)
        return running.held.node.end

    def _compute(self, request: int, running: WindowRunning, position: int) -> None:
        pages = self._pages(position) - self._pages(running.position)
        self._promised -= pages
        running.promised -= pages
        self._windows.take(pages)
        self._windows.take_windows(pages)
        running.position = position
        self._insert(request, running, slide=not self._dense)
        self.freed += 1

    def decode(self, request: int) -> None:
        """The prompt is computed: a request has what it keeps locked, and its last page."""
        running = self._inside[request]
        locked = running.held.node.end - running.held.begin
        own = self._pages(running.position) - max(running.freed, running.held.node.end)
        self._promised_windows += locked + own - running.windows
        running.windows = locked + own
        self.freed += 1

    def decoded(self, requests: Generating) -> None:
        """Windows of generated tokens; those that are out of the window are given back."""
        begun = requests.begun
        decoded = requests.blocks - -(-begun // self._size)
        windows = decoded - self._left_behind(begun, requests.position)
        self._grow(int(windows.sum()) - self._decoded_windows)

    def _left_behind(self, begun: Ints, position: Ints) -> Ints:
        """int64[B]: window pages that decoding requests have given back.

        Source: SGLang 0.5.15, ``common.py``: ``free_swa_out_of_window_slots``; once in 128 steps
        (``SGLANG_SWA_EVICTION_INTERVAL``), of which half have passed on average.
        """
        kept = position - max(self._window, self._size) - self._lag
        pages: Ints = np.maximum(kept // self._size - begun // self._size, 0)
        return pages

    def _grow(self, pages: int) -> None:
        if pages > 0:
            self._windows.take_windows(pages)
        else:
            self._windows.free_windows -= pages
            self.freed += pages < 0
        self._decoded_windows += pages

    def end(self, request: int, decoded_blocks: int, position: int = 0) -> int:
        """Give everything back, with so many pages that decoding took; returns those cached."""
        running, tree = self._inside.pop(request), self._windows
        if position > running.tokens:
            behind = self._left_behind(np.array([running.tokens]), np.array([position]))
            self._grow(int(behind[0]) - decoded_blocks)
        if running.position == running.tokens:
            self._insert(request, running, slide=False)
        stored, held = running.held.node.end, self._pages(running.position)
        tree.free += held - stored + decoded_blocks
        tree.free_windows += max(0, held - max(running.freed, stored))
        tree.release(running.held)
        self._promised -= running.promised
        self._promised_windows -= running.windows
        self.freed += 1
        return stored

    def _most_windows(self, tokens: int) -> int:
        """Window pages that a prompt of so many tokens holds at most."""
        pages = self._pages(tokens)
        return pages if self._dense else min(pages, self._chunk_windows)

    @property
    def _chunk_windows(self) -> int:
        return self._pages(self._chunk) + _SPARE_PAGES + self._shape.key_tokens

    def _needed_windows(self, tokens: int, resumed: int, locked: int) -> int:
        """Window pages that a prompt holds at most, with ``locked`` ones of the tree at its hit.

        Where windows are not given back the tree takes those of a chunk over, and some stay
        locked while the next is computed.
        """
        pages = self._pages(tokens)
        if not self._dense:
            return min(pages, self._chunk_windows)
        chunks = self._chunk_windows + self._pages(self._chunk)
        return min(pages, locked + min(pages - resumed, chunks))

    def _insert(self, request: int, running: WindowRunning, *, slide: bool) -> None:
        """Let the tree take over what is computed, or what others found of it before."""
        tree, held = self._windows, running.held.node.end
        known = running.position - self._shape.key_tokens
        branches = held < running.branch <= known // self._size
        length = running.branch * self._size if branches else known
        if slide:
            self._slide(running, length)
        named = self._shape.blocks[request]  # no id, no page that others could find
        end, first = min(max(held, length // self._size), named), max(running.freed, held)
        node, stored, windows = tree.insert(request, running.held.node, end, first)
        tree.free += end - held - stored
        tree.free_windows += max(0, end - first) - windows
        running.held = tree.hold(node, held if self._holds_chunks else None, running.held)
        if branches:
            running.branch = 0
            if slide:
                self._slide(running, known)

    def _slide(self, running: WindowRunning, tokens: int) -> None:
        """Give back the windows that lie a page and more before the last of so many tokens."""
        last = tokens - 1
        if last - self._window <= running.freed * self._size:
            return
        freed = max(running.freed, running.held.node.end)
        running.freed = max(freed, (last - self._size) // self._size)
        self._windows.free_windows += running.freed - freed


def open_sglang_windows(
    pool: Pool, *, dense: bool, uncovered_tokens: int = 1
) -> SglangWindowCache:
    """An empty tree with a pool of windows; raises ``ConfigError`` for pages below a window."""
    check_pages(pool)
    shape = page_shape(pool)
    tree = WindowTree(shape, pool.blocks, pool.window_pages)
    return SglangWindowCache(tree, shape, pool, dense=dense, uncovered_tokens=uncovered_tokens)


def replay_sglang_windows(pool: Pool, *, dense: bool, uncovered_tokens: int = 1) -> GroupHits:
    """Serve a trace, one request after the other, in chunks of whole pages.

    Args:
        pool: The cache that SGLang is given, and the trace.
        dense: As ``SglangWindowCache`` says.
        uncovered_tokens: As it says, too.

    Raises:
        ConfigError: Pages that are smaller than a window.
    """
    cache = open_sglang_windows(pool, dense=dense, uncovered_tokens=uncovered_tokens)
    size = pool.block_tokens
    chunk = max(1, pool.chunk_tokens // size) * size
    hits = np.zeros((3, len(pool.table)), np.int64)
    rejected = np.zeros(len(pool.table), bool)
    for request, tokens in enumerate(pool.table.input_tokens.tolist()):
        if cache.refuses(tokens):
            rejected[request] = True
            continue
        hits[:, request] = hit = cache.begin(request, tokens)
        for at in range(hit.resumed * size, tokens, chunk):
            cache.compute(request, min(at + chunk, tokens))
        cache.end(request, 0)
    return GroupHits(hits[0], hits[1], hits[2], rejected)
