"""SGLang's radix tree of pages, with one pool or with a pool of its own for windows.

A node holds pages that were inserted together; it is split where a prompt parts from it. Whole
leaves are evicted, the least recently used first; what a running request found stays.

With one pool a lookup uses every node on its way, all of one that it leaves half-way too, and a
prompt is inserted when it is computed to its end (the engine inserts every chunk).

With a pool of windows every node has its window pages or none any more. A hit ends at the deepest
node that has them; where context continues, prompts part: the request that finds the window
there missing is inserted up to there first and keeps it. A prompt is inserted chunk by chunk, and
to its end when it is done. Windows before a chunk's last one are freed before it is inserted, if
the engine is set to. Windows are evicted apart from context, the least recently used first and of
equal age the upper node's: a leaf goes altogether then, any other node keeps its context, of no
use until a prompt computes its window again.

Requests and pages are known by numbers; a page's number stands for its history, too.
Source: SGLang 0.5.23, ``radix_cache.py``, ``unified_radix_cache.py`` (``checkpoint_into_tree``),
``unified_cache/unified_tree_core.py``, ``unified_cache/components/swa.py``, ``common.py``
(``free_swa_out_of_window_slots``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from dsv4kv.core.cache import EngineCache
from dsv4kv.core.served import Hit, Served

_REFRESHED_PAGES = 2  # whose windows are refreshed together: the window and a page, in whole pages
_EVICTION_STEPS = 128  # SGLANG_SWA_EVICTION_INTERVAL
_SPARE_PAGES = 5
"""Window pages a request holds in addition to a chunk's whole pages: two of its hit, two behind
the chunk before, one that a chunk begins in."""


class TreeNode:
    """Pages ``begin`` to ``end`` of prompts that share them."""

    __slots__ = (
        "before", "begin", "behind", "children", "end", "key", "last", "lock_ref", "marked",
        "parent", "passed", "queued", "swa_lock_ref", "ticket", "used", "window",
    )  # fmt: skip

    def __init__(self, parent: "TreeNode | None", key: list[int], begin: int) -> None:
        self.parent = parent  # None for the root, and for a node that was evicted
        self.key, self.last = key, key[-1] if key else -1  # numbers of the pages
        self.begin, self.end = begin, begin + len(key)
        self.children: dict[int, TreeNode] = {}  # by the numbers of their first pages
        self.lock_ref = self.swa_lock_ref = 0  # running requests that need it, and its windows
        self.used = 0  # clock of its last use; with windows those below may have been used since
        self.ticket = 0  # order in which leaves of the same age were used
        self.passed = -1  # clock when a prompt last ended here, or at one below that is gone
        self.window = -1  # clock of the last use of its windows; -1 where it has none
        self.queued = self.marked = False  # in the queue of leaves; whether it ever had windows
        self.before: TreeNode | None = None  # whose windows are the next older ones
        self.behind: TreeNode | None = None  # the next younger ones; None outside that list


@dataclass(eq=False)
class Running:
    """A request in the tree."""

    path: list[int]  # numbers of its prompt's whole pages
    tokens: int
    node: TreeNode  # the last that it needs
    pages: int  # pages that it holds for itself, or with windows that it may still take
    begin: int = 0  # first page of the tree's windows that it needs; splits do not move it
    position: int = 0  # tokens that have pages
    freed: int = 0  # pages whose windows it freed, from the start
    branch: int = 0  # page where the context found ends, if beyond its hit and not inserted yet
    windows: int = 0  # window pages that it may hold at most


@dataclass(frozen=True)
class Pages:
    """Pages of a tree, and how prompts take and find them."""

    pages: int
    page_tokens: int  # tokens of a page
    path_of: Callable[[int], list[int]]  # numbers of the whole pages of a request's prompt
    key_tokens: int = 0  # tokens after a page that distinguish it, too
    uncovered_tokens: int = 1  # tokens at a prompt's end that no hit covers
    chunk_tokens: int = 1 << 40  # max tokens of a prompt in a step
    replayed_tokens: int = 0  # tokens at a hit's end that are computed again
    window_pages: int = 0  # pages of the pool of windows
    window_tokens: int = 0
    dense: bool = False  # whether a running request keeps the windows of its whole prompt
    holds_chunks: bool = False  # whether, if dense, it locks its last chunk's windows, not its end
    tokens_per_step: float = 1.0  # tokens of a request in a decode step, on average


class SglangCache(EngineCache):
    """A tree of pages, and who runs in it; see the module."""

    def __init__(self, own: Pages) -> None:
        super().__init__(own.pages, own.page_tokens, own.chunk_tokens)
        self.replayed_tokens = own.replayed_tokens
        self.root = TreeNode(None, [], 0)
        self._size, self._path_of = own.page_tokens, own.path_of
        self._key, self._uncovered = own.key_tokens, own.uncovered_tokens
        self._running: dict[int, Running] = {}
        self._clock = self._tickets = 0
        # a node is in it once at most, by its age or an earlier one; a locked leaf that comes
        # first leaves it until it is unlocked
        self._leaves: list[tuple[int, int, TreeNode]] = []
        self._most_leaves = 64
        self._changes = 0  # nodes that came, went or were split
        self._asked = (-1, 0, 0)
        self._answer: tuple[TreeNode, int] = self.root, 0

    def refuses(self, tokens: int) -> str:
        return "longer than all blocks together" if self._pages(tokens) > self.total else ""

    def chunk_ends(self, begin: int, tokens: int) -> list[int]:
        """Where the chunks of a prompt end: whole pages."""
        chunk = max(1, self.chunk_tokens // self._size) * self._size
        return [*range(begin + chunk, tokens, chunk), tokens]

    def find(self, request: int, tokens: int) -> Hit:
        end = self._match(request, tokens)[1]
        return Hit(end, end, end)

    def fits(self, request: int, tokens: int, promised: int, step_tokens: int) -> bool:
        node, resumed = self._match(request, tokens)
        needed = self._pages(tokens) - resumed + self._unlocked(request, node, resumed)
        return needed + promised <= self.uncached + self.cached

    def begin(self, request: int, tokens: int) -> Hit:
        path = self._path_of(request)
        node = self._match_prefix(path, self._limit(path, tokens))
        self._inc_lock_ref(node, self.root)
        pages = self._pages(tokens) - node.end
        self.alloc(pages)
        self._running[request] = Running(path, tokens, node, pages)
        return Hit(node.end, node.end, node.end)

    def compute(self, request: int, position: int) -> int:
        running = self._running[request]
        full = len(running.path)
        if position == running.tokens:
            node = self._match_prefix(running.path, full)
            rest = self._pages(position) - full
            self.uncached += running.pages - (full - node.end) - rest
            if node.end < full:
                node = self._add(node, running.path, full)
            self._inc_lock_ref(node, running.node)
            running.node, running.pages = node, rest
            self.freed += 1
        return running.node.end

    def loaded(self, request: int, begin: int, end: int, position: int) -> None:
        chunk = self.chunk_tokens
        for at in range(begin * self._size + chunk, position, chunk):
            self.compute(request, at)

    def end(self, request: int, decoded_blocks: int = 0, position: int = 0) -> int:
        running = self._running.pop(request)
        self._dec_lock_ref(running.node)
        self.uncached += running.pages + decoded_blocks
        self.freed += 1
        return running.node.end

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self._size)

    def _limit(self, path: list[int], tokens: int) -> int:
        return min(max(0, tokens - self._uncovered - self._key) // self._size, len(path))

    def _match(self, request: int, tokens: int) -> tuple[TreeNode, int]:
        """What a prompt would find; looked up once for as long as the tree stays as it is."""
        asked = (request, tokens, self._changes)
        if self._asked != asked:
            self._asked = asked
            path = self._path_of(request)
            self._answer = self._walk(self.root, path, self._limit(path, tokens), use=False)
        return self._answer

    def _match_prefix(self, path: list[int], limit: int) -> TreeNode:
        """Follow a prompt for at most ``limit`` pages and use what it passes."""
        self._clock += 1
        node, end = self._walk(self.root, path, limit, use=True)
        return node if end == node.end else self._split(node, end)

    def _walk(
        self, node: TreeNode, path: list[int], limit: int, *, use: bool
    ) -> tuple[TreeNode, int]:
        """Follow a prompt from a node on its way; returns the node it ends in, and the pages."""
        end = node.end
        while end < limit:
            child = node.children.get(path[end])
            if child is None:
                break
            if use:
                self._use(child)
            node, end = child, child.end
            if end > limit or path[end - 1] != child.last:
                return child, _same_pages(child, path, limit)
        return node, end

    def _split(self, node: TreeNode, at: int) -> TreeNode:
        """Cut a node in two; returns the upper one."""
        parent, key, cut = _above(node), node.key, at - node.begin
        upper = TreeNode(parent, key[:cut], node.begin)
        upper.used, upper.lock_ref = self._clock, node.lock_ref
        parent.children[key[0]] = upper
        upper.children[key[cut]] = node
        node.parent, node.key, node.begin = upper, key[cut:], at
        self._changes += 1
        return upper

    def _add(self, parent: TreeNode, path: list[int], end: int) -> TreeNode:
        begin = parent.end
        node = TreeNode(parent, path[begin:end], begin)
        parent.children[path[begin]] = node
        self.cached += end - begin
        self._changes += 1
        self._use(node)
        return node

    def _inc_lock_ref(self, node: TreeNode, held: TreeNode) -> None:
        """Keep a node and all above from being evicted, below one of these that is kept."""
        while node is not held and node.parent is not None:
            if not node.lock_ref:
                self.shared += node.end - node.begin
                self.cached -= node.end - node.begin
            node.lock_ref += 1
            node = node.parent

    def _dec_lock_ref(self, node: TreeNode) -> None:
        while node.parent is not None:
            node.lock_ref -= 1
            if not node.lock_ref:
                self.shared -= node.end - node.begin
                self.cached += node.end - node.begin
                if not node.children and not node.queued:
                    self._queue(node)
            node = node.parent

    def _unlocked(self, request: int, node: TreeNode, end: int) -> int:
        """Unlocked pages of a prompt's path, up to page ``end`` of a node on it."""
        if not end or not self.root.children[self._path_of(request)[0]].lock_ref:
            return end  # below an unlocked node all are unlocked
        kept = end
        while not node.lock_ref:
            kept, node = node.begin, _above(node)
        return end - kept

    def evict(self, blocks: int) -> None:
        wanted = self.uncached + blocks
        while self.uncached < wanted:
            _, ticket, node = heappop(self._leaves)
            node.queued = False
            if node.parent is None or node.children:
                continue
            if node.ticket != ticket:  # used since
                self._queue(node)
            elif not node.lock_ref:
                self._evict(node)

    def _evict(self, node: TreeNode) -> None:
        if self.on_evicted is not None:
            self.on_evicted(node.key, node.key if node.window >= 0 else [])
        pages, parent = node.end - node.begin, _above(node)
        self.uncached += pages
        self.cached -= pages
        self.evicted += pages
        self._changes += 1
        node.parent = None
        del parent.children[node.key[0]]
        if not parent.children and parent is not self.root:
            self._use_leaf(parent)

    def _use(self, node: TreeNode) -> None:
        node.used = self._clock
        if not node.children:
            self._use_leaf(node)

    def _use_leaf(self, node: TreeNode) -> None:
        self._tickets += 1
        node.ticket = self._tickets
        if not node.queued:
            self._queue(node)

    def _queue(self, node: TreeNode) -> None:
        if len(self._leaves) >= self._most_leaves:  # some were evicted for their windows
            self._leaves = [each for each in self._leaves if each[2].parent is not None]
            heapify(self._leaves)
            self._most_leaves = 2 * len(self._leaves) + 64
        node.queued = True
        heappush(self._leaves, (node.used, node.ticket, node))


class SglangWindowCache(SglangCache):
    """``SglangCache`` with a pool of windows."""

    def __init__(self, own: Pages) -> None:
        super().__init__(own)
        windows, size = own.window_pages, own.page_tokens
        self.free_windows = windows  # window pages that hold nothing
        self.total_windows = windows
        self.stored_windows = 0  # window pages of all nodes
        self._window, self._dense = own.window_tokens, own.dense
        self._holds_chunks = own.dense and own.holds_chunks
        self._lag = max(self._window, size) + int(_EVICTION_STEPS / 2 * own.tokens_per_step)
        self._chunk_pages = -(-self.chunk_tokens // size)
        self._chunk_windows = self._chunk_pages + _SPARE_PAGES + self._key
        self._promised, self._spare_windows = 0, windows  # not promised
        # nodes with windows are between these, by age; a locked one that comes first leaves the
        # list until it is unlocked
        self._oldest, self._newest = TreeNode(None, [], 0), TreeNode(None, [], 0)
        self._oldest.behind, self._newest.before = self._newest, self._oldest

    @property
    def available(self) -> int:
        """Pages free or to be evicted, less promised; a generated one takes a page of windows."""
        context = self.uncached + self.cached - self._promised
        return min(context, self._spare_windows)

    @property
    def windows(self) -> int:
        return self.total_windows - self.free_windows

    def refuses(self, tokens: int) -> str:
        pages = self._pages(tokens)
        if pages > self.total:
            return "longer than all blocks together"
        most = pages if self._dense else min(pages, self._chunk_windows)
        return "longer than all windows together" if most > self.total_windows else ""

    def fits(self, request: int, tokens: int, promised: int, step_tokens: int) -> bool:
        node, found = self._match(request, tokens)
        resumed = found
        while resumed and node.window < 0:
            resumed, node = node.begin, _above(node)
        windows = self._needed_windows(tokens, resumed, resumed - node.begin, found)
        needed = self._pages(tokens) - resumed + self._unlocked(request, node, resumed)
        available = self.uncached + self.cached - self._promised
        return windows <= self._spare_windows and needed + promised <= available

    def begin(self, request: int, tokens: int) -> Hit:
        path = self._path_of(request)
        node, found, marked = self._resume(path, self._limit(path, tokens))
        running = Running(path, tokens, self.root, self._pages(tokens) - node.end)
        self._running[request] = running
        self._hold(running, node, node.end)
        running.position = node.end * self._size
        running.branch = found if found > node.end else 0
        running.windows = self._needed_windows(tokens, node.end, node.end - node.begin, found)
        self._promised += running.pages
        self._spare_windows -= running.windows
        return Hit(node.end, found, marked)

    def compute(self, request: int, position: int) -> int:
        running = self._running[request]
        pages = self._pages(position) - self._pages(running.position)
        self._promised -= pages
        running.pages -= pages
        self.alloc(pages)
        self._alloc_windows(pages)
        running.position = position
        self._cache(running, slide=not self._dense)
        self.freed += 1
        return running.node.end

    def decode(self, request: int) -> None:
        """The prompt is computed: a request has what it keeps locked, and its last page."""
        running = self._running[request]
        end = running.node.end
        held = end - running.begin + self._pages(running.position) - max(running.freed, end)
        self._spare_windows += running.windows - held
        running.windows = held
        self.freed += 1

    def decoded(self, due: Sequence[Served]) -> None:
        """Windows of generated tokens; those that are out of the window are freed."""
        grown = 0
        for request in due:
            windows = request.blocks - self._pages(request.begun)
            windows -= self._left_behind(request.begun, request.position)
            grown += windows - request.windows
            request.windows = windows
        self._grow(grown)

    def next_event(self, request: Served, due: int) -> int:
        size = self._size
        pages = max((request.position - self._lag) // size, request.begun // size) + 1
        return min(due, pages * size + self._lag - 1)

    def end(self, request: int, decoded_blocks: int = 0, position: int = 0) -> int:
        running = self._running.pop(request)
        if position > running.tokens:
            self._grow(self._left_behind(running.tokens, position) - decoded_blocks)
        if running.position == running.tokens:
            self._cache(running, slide=False)
        stored, held = running.node.end, self._pages(running.position)
        self.uncached += held - stored + decoded_blocks
        self.free_windows += max(0, held - max(running.freed, stored))
        self._dec_lock_ref(running.node)
        self._dec_swa_lock_ref(running.node, running.begin)
        self._promised -= running.pages
        self._spare_windows += running.windows
        self.freed += 1
        return stored

    def _needed_windows(self, tokens: int, resumed: int, locked: int, found: int) -> int:
        """Window pages that a prompt holds at most, with ``locked`` ones of the tree at its hit.

        Where windows are not freed the tree takes over a chunk's windows, and some stay locked
        while the next is computed; with a branch at ``found``, the windows of two chunks.
        """
        pages = self._pages(tokens)
        if not self._dense:
            return min(pages, self._chunk_windows)
        chunks = 1 + (self._holds_chunks and found > resumed)
        held = self._chunk_windows + chunks * self._chunk_pages
        return min(pages, locked + min(pages - resumed, held))

    def _left_behind(self, begun: int, position: int) -> int:
        """Window pages that a decoding request has freed.

        Source: SGLang 0.5.15, ``common.py``: ``free_swa_out_of_window_slots``; once in 128 steps
        (``SGLANG_SWA_EVICTION_INTERVAL``); half of them have passed on average.
        """
        return max((position - self._lag) // self._size - begun // self._size, 0)

    def _grow(self, pages: int) -> None:
        if pages > 0:
            self._alloc_windows(pages)
        elif pages < 0:
            self.free_windows -= pages
            self.freed += 1
        self._spare_windows -= pages

    def _cache(self, running: Running, *, slide: bool) -> None:
        """Let the tree take over what is computed, or what others found of it before."""
        held, known = running.node.end, running.position - self._key
        branches = held < running.branch <= known // self._size
        length = running.branch * self._size if branches else known
        if slide:
            self._slide(running, length)
        end = min(max(held, length // self._size), len(running.path))  # others find named pages
        first = max(running.freed, held)
        node, stored, windows = self._insert(running.path, running.node, end, first)
        self.uncached += end - held - stored
        self.free_windows += max(0, end - first) - windows
        self._hold(running, node, held if self._holds_chunks else end)
        if branches:
            running.branch = 0
            if slide:
                self._slide(running, known)

    def _slide(self, running: Running, tokens: int) -> None:
        """Free the windows that lie a page and more before the last of ``tokens``."""
        last = tokens - 1
        if last - self._window > running.freed * self._size:
            freed = max(running.freed, running.node.end)
            running.freed = max(freed, (last - self._size) // self._size)
            self.free_windows += running.freed - freed

    def _hold(self, running: Running, node: TreeNode, window_from: int) -> None:
        """Lock a node below the one that a request holds, and its windows instead of those.

        Also windows of the nodes above that begin at ``window_from`` or later.
        """
        self._inc_lock_ref(node, running.node)
        last, begin = node, node.begin
        while node.parent is not None:
            node.swa_lock_ref += 1
            begin = node.begin
            if begin <= window_from:
                break
            node = node.parent
        self._dec_swa_lock_ref(running.node, running.begin)
        running.node, running.begin = last, begin

    def _resume(self, path: list[int], limit: int) -> tuple[TreeNode, int, int]:
        """Where a prompt resumes, pages of context found, and where windows ever were."""
        node = marked = last = self._descend(self.root, path, limit)
        while node.parent is not None and node.window < 0:
            node = node.parent
        while marked.parent is not None and not marked.marked:
            marked = marked.parent
        self._refresh(node)
        self._touch(node)
        return node, last.end, marked.end

    def _descend(self, node: TreeNode, path: list[int], limit: int) -> TreeNode:
        node, end = self._walk(node, path, limit, use=False)
        return node if end == node.end else self._split(node, end)

    def _insert(
        self, path: list[int], held: TreeNode, end: int, window_from: int
    ) -> tuple[TreeNode, int, int]:
        """Insert the pages of a prompt up to ``end``, computed below a node that it holds.

        It still has the windows of pages from ``window_from`` on. Returns its last node, and the
        pages of context and of windows that the tree takes over.
        """
        last = self._descend(held, path, end)
        self._touch(last)
        node, bare, windows = last, list[TreeNode](), self.stored_windows
        while node is not held:
            if node.window < 0 and node.end > window_from:
                bare.append(node)
            node = _above(node)
        for node in reversed(bare):
            self._recover(node, window_from)
        stored = end - last.end
        if stored:
            last = self._add(last, path, end)
            if end > window_from:
                self._recover(last, window_from)
                if last.end - last.begin > 1:
                    self._split(last, end - 1)  # so that a lock holds one window alone
        self._refresh(last)
        return last, stored, self.stored_windows - windows

    def _split(self, node: TreeNode, at: int) -> TreeNode:
        """Cut a node in two; both halves have its windows, its locks, and their age."""
        upper = super()._split(node, at)
        for half in (upper, node):
            self._clock += 1
            self._use(half)
        upper.swa_lock_ref, upper.marked = node.swa_lock_ref, node.marked
        upper.window = node.window
        if node.behind is not None:
            _link(upper, node)
        return upper

    def _dec_swa_lock_ref(self, node: TreeNode, begin: int) -> None:
        while node.parent is not None:
            node.swa_lock_ref -= 1
            if not node.swa_lock_ref and node.window >= 0 and node.behind is None:
                self._link_by_age(node)
            if node.begin == begin:
                return
            node = node.parent

    def _alloc_windows(self, pages: int) -> None:
        """Take window pages; those unused for longest go, a leaf's with its context."""
        while self.free_windows < pages:
            node = _behind(self._oldest)
            if node.swa_lock_ref:
                _unlink(node)
            elif node.children or node.lock_ref:
                if self.on_evicted is not None:
                    self.on_evicted([], node.key)
                self._drop_windows(node)
            else:
                self._evict(node)
        self.free_windows -= pages

    def _evict(self, node: TreeNode) -> None:
        parent = _above(node)
        if node.passed > parent.passed:
            parent.passed = node.passed
            parent.used = max(parent.used, parent.passed + parent.end)
        super()._evict(node)
        if node.window >= 0:
            self._drop_windows(node)

    def _touch(self, node: TreeNode) -> None:
        """Use a node and all above, the deepest last; these learn of it when they are leaves."""
        if node is not self.root:
            node.passed = self._clock
            self._clock += node.end
            self._use(node)

    def _recover(self, node: TreeNode, window_from: int) -> None:
        if node.begin < window_from:
            self._split(node, window_from)
        self._use_windows(node)
        self.stored_windows += node.end - node.begin

    def _refresh(self, node: TreeNode) -> None:
        """Make the windows that end with a node, a window and a page, the last ones to go."""
        self._clock += 1
        if node is not self.root:
            upper = _above(node)
            if upper.window >= 0 and node.end - upper.end < _REFRESHED_PAGES:
                self._use_windows(upper)
            if node.window >= 0:
                self._use_windows(node)

    def _use_windows(self, node: TreeNode) -> None:
        node.window, node.marked = self._clock, True
        if node.behind is not None:
            _unlink(node)
        _link(node, self._newest)

    def _link_by_age(self, node: TreeNode) -> None:
        age, younger = (node.window, node.begin), _behind(self._oldest)
        while younger is not self._newest and (younger.window, younger.begin) < age:
            younger = _behind(younger)
        _link(node, younger)

    def _drop_windows(self, node: TreeNode) -> None:
        node.window = -1
        if node.behind is not None:
            _unlink(node)
        self.free_windows += node.end - node.begin
        self.stored_windows -= node.end - node.begin


def _above(node: TreeNode) -> TreeNode:
    parent = node.parent
    assert parent is not None
    return parent


def _behind(node: TreeNode) -> TreeNode:
    behind = node.behind
    assert behind is not None
    return behind


def _link(node: TreeNode, behind: TreeNode) -> None:
    before = behind.before
    assert before is not None
    before.behind, node.before = node, before
    node.behind, behind.before = behind, node


def _unlink(node: TreeNode) -> None:
    before, behind = node.before, node.behind
    assert before is not None
    assert behind is not None
    before.behind, behind.before = behind, before
    node.before = node.behind = None


def _same_pages(node: TreeNode, path: list[int], limit: int) -> int:
    """Pages up to which a prompt goes along with a node that it leaves half-way."""
    key, begin = node.key, node.begin
    low, high = begin + 1, min(node.end, limit)
    while low < high:
        middle = (low + high) // 2
        if path[middle] == key[middle - begin]:
            low = middle + 1
        else:
            high = middle
    return low
