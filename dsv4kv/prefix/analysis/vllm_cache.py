"""vLLM's prefix cache for requests that run side by side."""

from dsv4kv.prefix.analysis.engine_cache import Hit
from dsv4kv.prefix.analysis.group_pool import GroupPool, Running
from dsv4kv.prefix.analysis.rule_pool import Pool
from dsv4kv.prefix.analysis.speculation import SPECULATIONS, Speculation
from dsv4kv.prefix.analysis.tail_groups import TailGroup, Way, number_ways
from dsv4kv.prefix.analysis.vllm_groups_rule import check_retention, kept_ends


class VllmCache:
    """A pool of groups, and who runs in it; see ``EngineCache``.

    A request that begins is promised the most it can need, and takes it chunk by chunk: context
    that it has not yet, and windows and states whether others use them too or not, for they may
    not come free when it moves on. A decoding request keeps those its prompt ended with.
    """

    per_shared = 1
    windows = 0

    def __init__(
        self,
        pool: GroupPool,
        ways: list[Way],
        *,
        retention_tokens: int | None,
        chunk_tokens: int,
        speculation: Speculation = SPECULATIONS["none"],
    ) -> None:
        """An empty cache.

        Args:
            pool: The blocks.
            ways: Every prompt.
            retention_tokens: As ``replay_vllm_groups`` says.
            chunk_tokens: Most tokens of a prompt that are computed at once.
            speculation: How drafts are made.

        Raises:
            ConfigError: A retention that is no whole blocks.
        """
        check_retention(retention_tokens, pool.size)
        self.total = pool.queue.uncached
        self.freed = 0
        self._pool, self._ways, self._speculation = pool, ways, speculation
        self._retention, self._chunk = retention_tokens, chunk_tokens
        self._running: dict[int, Running] = {}
        self._tails: dict[int, int] = {}  # windows and states that a request may hold
        self._context: dict[int, int] = {}  # blocks of a prompt that are not computed yet
        self._promised = self._decoded = 0

    @property
    def evicted(self) -> int:
        """Cached blocks evicted so far."""
        return self._pool.queue.evicted

    @property
    def free(self) -> int:
        """Blocks that hold nothing."""
        return self._pool.queue.uncached

    @property
    def cached(self) -> int:
        """Cached blocks that nobody uses."""
        return self._pool.queue.idle

    @property
    def shared(self) -> int:
        """Cached blocks that requests use."""
        return self._pool.queue.busy

    @property
    def private(self) -> int:
        """Blocks that one request holds for itself."""
        return self.total - self.free - self.cached - self.shared

    @property
    def available(self) -> int:
        """Blocks that can be had: free, or to be evicted, less those promised."""
        return self.total - self._pool.context_used - self._decoded - self._promised

    def refuses(self, tokens: int) -> str:
        """Why a request of so many tokens can never run; empty if it can."""
        tails = self._pool.most_tails(tokens, self._chunk)
        if self._pool.most_blocks(tokens, self._chunk) <= self.total:
            return ""
        beside = ", with windows and states of a chunk" if tails else ""
        return f"longer than all blocks together{beside}"

    def peek(self, request: int, tokens: int) -> int:
        """Blocks of context that a prompt of so many tokens would find."""
        return self._find(request, tokens).found

    def fits(self, request: int, tokens: int, promised: int) -> bool:
        """Whether a prompt can begin and end where ``promised`` blocks are others'."""
        resumed = self._find(request, tokens).resumed
        idle = self._pool.idle_context(self._ways[request].context[:resumed])
        needed = self._pool.most_blocks(tokens, self._chunk) - resumed
        return needed + idle + promised <= self.available

    def begin(self, request: int, tokens: int) -> Hit:
        """Use what is cached of a prompt; everything it needs can be had from now on."""
        hit, way, pool = self._find(request, tokens), self._ways[request], self._pool
        found = hit.resumed, hit.found
        kept = kept_ends(way, tokens, found, pool.size, self._retention, self._speculation)
        self._running[request] = pool.begin(way, hit.resumed, kept)
        self._tails[request] = pool.most_tails(tokens, self._chunk)
        self._context[request] = -(-tokens // pool.size) - hit.resumed
        self._promised += self._tails[request] + self._context[request]
        return hit

    def compute(self, request: int, position: int) -> int:
        """Cache what is computed up to ``position``; returns the blocks that others can find."""
        running, pool = self._running[request], self._pool
        before = pool.context_used
        pool.compute(running, position)
        self._context[request] -= pool.context_used - before
        self._promised -= pool.context_used - before
        return self._cached(running, position)

    def decode(self, request: int) -> None:
        """The prompt is computed and more tokens follow: keep only what these need."""
        running = self._running[request]
        self._pool.slide(running)
        self._keep_tails(request, self._pool.tail_blocks(running))

    def end(self, request: int, decoded_blocks: int) -> int:
        """Give everything back, with so many blocks that decoding took; returns those cached."""
        running = self._running.pop(request)
        self._promised -= self._context.pop(request)
        self._keep_tails(request, 0)
        self._pool.end(running)
        self._pool.queue.uncached += decoded_blocks
        self._decoded -= decoded_blocks
        return self._cached(running, running.position)

    def take(self, blocks: int) -> None:
        """Take blocks for decoded tokens; raises ``OutOfBlocks``."""
        self._pool.queue.take(blocks)
        self._decoded += blocks

    def _find(self, request: int, tokens: int) -> Hit:
        return Hit(*self._pool.find(self._ways[request], (tokens - 1) // self._pool.size))

    def _cached(self, running: Running, position: int) -> int:
        """Blocks that others can find of a prompt computed up to ``position``."""
        return min(position // self._pool.size, len(running.way.context))

    def _keep_tails(self, request: int, blocks: int) -> None:
        """A request will hold no more windows and states; the rest is free to others."""
        self._promised -= self._tails.pop(request, 0) - blocks
        if blocks:
            self._tails[request] = blocks
        self.freed += 1


def open_vllm(
    pool: Pool, groups: tuple[TailGroup, ...], retention_tokens: int | None
) -> VllmCache:
    """An empty cache with groups of windows and states beside the context, or none."""
    speculation, size = pool.speculation, pool.block_tokens
    ways, nodes = number_ways(pool.table, size, groups, speculation.key_tokens)
    return VllmCache(
        GroupPool(pool.blocks, nodes, size, groups, drops=speculation.drops),
        ways,
        retention_tokens=retention_tokens,
        chunk_tokens=pool.chunk_tokens,
        speculation=speculation,
    )
