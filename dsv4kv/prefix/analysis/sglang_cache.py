"""SGLang's prefix trees for requests that run side by side.

A prompt is inserted when it is computed to its end, as the rules do that serve one request at a
time; the engine inserts every chunk.
"""

from dataclasses import dataclass

from dsv4kv.errors import OutOfBlocks
from dsv4kv.prefix.analysis.engine_cache import Hit
from dsv4kv.prefix.analysis.rule_pool import Pool
from dsv4kv.prefix.analysis.sglang_rule import Node, PageTree
from dsv4kv.prefix.analysis.walk import Shape


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

    def __init__(self, tree: PageTree, shape: Shape, page_tokens: int) -> None:
        """``shape`` are the prompts in whole pages; the tree is empty."""
        self.total = tree.free
        self.freed = 0
        self._tree, self._shape, self._size = tree, shape, page_tokens
        self._running: dict[int, Running] = {}

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
        way = self._tree.peek(request, self._limit(request, tokens))
        return way[-1][1] if way else 0

    def fits(self, request: int, tokens: int, promised: int) -> bool:
        """Whether a prompt can begin and end where ``promised`` pages are others'."""
        way = self._tree.peek(request, self._limit(request, tokens))
        resumed = way[-1][1] if way else 0
        unlocked = sum(end - node.begin for node, end in way if not node.locks)
        needed = self._pages(tokens) - resumed
        return needed + promised <= self.available - unlocked

    def begin(self, request: int, tokens: int) -> Hit:
        """Use what is cached of a prompt; everything it needs can be had from now on."""
        node = self._tree.walk(request, self._limit(request, tokens))
        pages = self._pages(tokens) - node.end
        self._tree.lock(node)
        self._tree.take(pages)
        self._running[request] = Running(node, tokens, pages)
        return Hit(node.end, node.end, node.end)

    def compute(self, request: int, position: int) -> int:
        """Cache what is computed up to ``position``; returns the pages that others can find."""
        running = self._running[request]
        if position < running.tokens:
            return running.node.end
        node, stored = self._tree.store(request, self._shape.blocks[request])
        rest = self._pages(running.tokens) - node.end
        self._tree.free += running.pages - stored - rest
        running.pages = rest
        self._tree.lock(node)
        self._tree.unlock(running.node)
        running.node = node
        self.freed += 1
        return node.end

    def decode(self, request: int) -> None:
        """The prompt is computed and more tokens follow: their windows are not counted."""

    def end(self, request: int, decoded_blocks: int) -> int:
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
        known = tokens - 1 - self._shape.key_tokens
        return min(known // self._size, self._shape.blocks[request])


def page_shape(pool: Pool) -> Shape:
    """The prompts in whole pages; with MTP, a page's key covers the token behind it."""
    key_tokens = pool.speculation.key_tokens
    return Shape(pool.table, pool.block_tokens, whole_blocks=True, key_tokens=key_tokens)


def open_sglang(pool: Pool) -> SglangCache:
    """An empty tree with one pool."""
    shape = page_shape(pool)
    return SglangCache(PageTree(shape, pool.blocks), shape, pool.block_tokens)
