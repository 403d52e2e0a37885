"""SGLang's prefix tree with a pool of windows, for requests that run side by side."""

from dsv4kv.prefix.analysis.engine_cache import Hit
from dsv4kv.prefix.analysis.rule_pool import Pool, check_pages
from dsv4kv.prefix.analysis.sglang_cache import Running, SglangCache
from dsv4kv.prefix.analysis.sglang_rule import Node
from dsv4kv.prefix.analysis.sglang_window_rule import WindowTree
from dsv4kv.prefix.analysis.walk import Shape


class SglangWindowCache(SglangCache):
    """``SglangCache`` with a pool of windows."""

    def __init__(
        self, tree: WindowTree, shape: Shape, page_tokens: int, tail_pages: int | None
    ) -> None:
        """``tail_pages`` are the last pages of a prompt whose windows stay; None for all."""
        super().__init__(tree, shape, page_tokens)
        self._windows, self._tail = tree, tail_pages
        self._total_windows = tree.free_windows

    @property
    def windows(self) -> int:
        """Window pages that the tree or a prompt holds."""
        return self._total_windows - self._windows.free_windows

    def refuses(self, tokens: int) -> str:
        """Why a request of so many tokens can never run; empty if it can."""
        if reason := super().refuses(tokens):
            return reason
        if self._pages(tokens) > self._total_windows:
            return "longer than all windows together"
        return ""

    def _usable(self, way: list[tuple[Node, int]]) -> list[tuple[Node, int]]:
        while way and not self._windows.has_windows(way[-1][0]):
            way.pop()
        return way

    def _has_windows(self, way: list[tuple[Node, int]], needed: int) -> bool:
        tree = self._windows
        idle = tree.stored_windows - tree.locked_windows
        kept = tree.idle_windows(*way[-1]) if way else 0
        return needed <= tree.free_windows + idle - kept

    def _find(self, request: int, limit: int) -> tuple[Node, Hit]:
        node, found, marked = self._windows.find(request, limit)
        return node, Hit(node.end, found, marked)

    def _take(self, pages: int) -> None:
        self._windows.take(pages)
        self._windows.take_windows(pages)

    def _store(self, request: int, running: Running) -> tuple[Node, int]:
        full = self._shape.blocks[request]
        first = max(0, full - self._tail) if self._tail else 0
        begin = running.node.end
        node, stored, windows = self._windows.store_windows(request, full, begin, first)
        held = self._pages(running.tokens) - begin
        self._windows.free_windows += held - windows
        return node, stored


def open_sglang_windows(pool: Pool, tail_pages: int | None) -> SglangWindowCache:
    """An empty tree with a pool of windows; raises ``ConfigError`` for pages below a window."""
    check_pages(pool)
    shape = Shape(pool.table, pool.block_tokens, whole_blocks=True)
    tree = WindowTree(shape, pool.blocks, pool.window_pages)
    return SglangWindowCache(tree, shape, pool.block_tokens, tail_pages)
