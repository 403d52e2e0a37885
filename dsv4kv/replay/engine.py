"""An engine's rule in place of the toolkit's own: its cache, and prompts as numbers of blocks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dsv4kv.config.bench import Speculative
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.core.contract import NOTHING_BELOW, Below
from dsv4kv.core.hashed import HashedCache
from dsv4kv.core.losses import ReuseTally
from dsv4kv.core.served import Served
from dsv4kv.engines.names import find_rule
from dsv4kv.engines.prefix import Pool, PrefixCache, draft_needs, find_drafts, open_cache
from dsv4kv.prefix.paths import NumberedPaths, PathTable, number_prompts
from dsv4kv.prefix.tree import Ids
from dsv4kv.replay.memory import MemoryPlan, arch_of
from dsv4kv.replay.server import holds_chunks
from dsv4kv.replay.stored import Places, leave_nothing
from dsv4kv.traces.collect import collect_paths
from dsv4kv.traces.request import Request
from dsv4kv.traces.runs import IdRuns, list_runs


@dataclass(frozen=True)
class WindowPages:
    """Pages of a pool of windows; none are copied, so none are counted as written.

    Attributes:
        cache: Whose.
    """

    cache: PrefixCache
    written = evicted = orphaned = 0

    def __len__(self) -> int:
        return self.cache.windows


class EnginePrompts:
    """See ``Prompts``; windows stay where they were computed, so nothing is moved.

    Attributes:
        tally: What was found, and why not more.
        checkpoints: Pages of windows, where they have a pool.
        restored: How often a request resumed after a window and a state.
        kept_bytes: Nothing.
        stepped: The cache, where decoding requests take blocks from it one after the other.
    """

    def __init__(
        self,
        cache: PrefixCache,
        block_tokens: int,
        *,
        windows: bool,
        draft_needs: tuple[int, int] = (0, 0),
        replayed_tokens: int = 0,
        uncovered_tokens: int = 1,
        chunk_tokens: int = 0,
    ) -> None:
        """``windows``: whether a hit needs them; needs and uncovered tokens as the tally says.

        The last ``replayed_tokens`` of a hit are computed again. The cache takes ``chunk_tokens``
        at most at once.
        """
        self.tally = ReuseTally(list_runs, block_tokens, draft_needs, uncovered_tokens)
        self.checkpoints = WindowPages(cache)
        self.restored = self.kept_bytes = 0
        self._cache, self._tokens, self._windows = cache, block_tokens, windows
        self.stepped = cache if isinstance(cache, HashedCache) else None
        self._tree = None if isinstance(cache, HashedCache) else cache
        self._replayed, self._chunk = replayed_tokens, chunk_tokens
        self._below: Below = NOTHING_BELOW
        self._places: Places = leave_nothing
        self._back: dict[int, tuple[int, int]] = {}  # blocks that a tier brings back

    def stand_on(self, below: Below, places: Places) -> None:
        """Have tiers below, that are offered tails at some places."""
        self._below, self._places = below, places
        if self._tree:  # the other never writes what it evicts
            self._tree.watch(self._evicted)

    def _evicted(self, pages: Sequence[int], windows: Sequence[int]) -> None:
        self._below.forget(pages, windows)

    def refuses(self, served: Served) -> str:
        """Why a request can never be served, other than its context; empty if it can."""
        return self._cache.refuses(served.total_tokens)

    def look_up(self, served: Served) -> int:
        """Blocks of a request's prompt that are cached; nothing changes."""
        return self._cache.peek(served.number, served.prompt_tokens)

    def arrive(self, served: Served) -> None:
        """A request waits from now on."""
        if self._below.fetches:
            self._below.fetch(served, self.look_up(served), self._usable(served))

    def misses(self, served: Served, found: int) -> bool:
        """Whether there are blocks beyond those found that could have been."""
        return found < self._usable(served)

    def _usable(self, served: Served) -> int:
        """Blocks of a prompt that a hit may cover."""
        covered = max(0, served.prompt_tokens - self.tally.uncovered_tokens)
        return min(len(served.keys), covered // self._tokens)

    def fits(
        self, served: Served, found: int, needed: int, promised: int, step_tokens: int
    ) -> bool:
        """Whether a prompt can begin, with the windows and states it needs."""
        if self.stepped:
            return self.stepped.admits(served.number, served.prompt_tokens, step_tokens)
        return self._cache.fits(served.number, served.prompt_tokens, promised)

    def begin(self, served: Served) -> int:
        """Resume a request after its hit."""
        own = self._cache.begin(served.number, served.prompt_tokens)
        hit = self._below.restore(served, own, self._usable(served))
        served.found, served.committed = hit.found, own.resumed
        if hit.resumed > own.resumed:
            self._back[served.number] = own.resumed, hit.resumed
            if self.stepped:
                self.stepped.load(served.number, hit.resumed * self._tokens)
        served.position = max(0, hit.resumed * self._tokens - self._replayed)
        served.blocks = self._blocks(served.prompt_tokens)
        if served.admitted_s is None:
            self.tally.count(served, hit)
        self.restored += self._windows and own.resumed > 0
        return 0

    def commit(self, served: Served) -> int:
        """Store what a request has computed."""
        before = served.committed
        if served.number in self._back:
            before = self._take_back(served)
        served.committed = self._cache.compute(served.number, served.position)
        self._offer(served, before)
        return 0

    def answered(self, served: Served) -> None:
        """What was only for the prompt is given back."""
        if self._tree:
            self._tree.decode(served.number)

    def decoded(self, due: Sequence[Served]) -> None:
        """Generated tokens have windows, too."""
        self._cache.decoded(due)

    def next_event(self, served: Served, due: int) -> int:
        """When it needs or frees a block of any kind."""
        return self._tree.next_event(served, due) if self._tree else due

    def end(self, served: Served) -> None:
        """Let go of everything a request holds."""
        decoded = served.blocks - self._blocks(served.prompt_tokens)
        before = served.committed
        served.committed = self._cache.end(served.number, decoded, served.position)
        self._offer(served, before)
        self._back.pop(served.number, None)
        served.blocks = served.committed = served.found = 0

    def _take_back(self, served: Served) -> int:
        """Cache what a tier brought back as if it had been computed; returns its blocks."""
        begin, end = self._back.pop(served.number)
        if self.stepped:
            self.stepped.loaded(served.number)
            return end
        for position in range(begin * self._tokens + self._chunk, served.position, self._chunk):
            self._cache.compute(served.number, position)
        return end

    def _offer(self, served: Served, before: int) -> None:
        """Blocks are cached: remember it, and let tiers have them."""
        count = served.committed
        self.tally.store(served, count)
        self._below.offer(served, count, self._places(served, before, count))

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._tokens)


def name_apart(requests: Sequence[Request], block_tokens: int) -> Iterator[Request]:
    """Prompts of which only the lengths are known, as those that share nothing."""
    first = 0
    for request in requests:
        count = -(-request.input_tokens // block_tokens)
        ids = IdRuns(np.array([first]), np.array([count]))
        yield replace(request, prefix_hashes=ids, hash_block_tokens=block_tokens)
        first += count


def _tokens_per_step(speculative: Speculative) -> float:
    """Of a request, on average: one, and the drafts that are accepted."""
    kept = (speculative.acceptance**draft for draft in range(1, speculative.draft_tokens + 1))
    return 1 + sum(kept)


@dataclass(frozen=True)
class Engine:
    """A replay by an engine's rule.

    Attributes:
        ledger: The engine's cache: the blocks, too.
        prompts: What requests find there.
    """

    ledger: PrefixCache
    prompts: EnginePrompts


@dataclass(frozen=True)
class EnginePaths:
    """The prompts of a trace, as an engine's cache is given them.

    Attributes:
        table: As paths of ids.
        numbered: The blocks of each that can be shared, as numbers.
    """

    table: PathTable
    numbered: NumberedPaths

    @property
    def paths(self) -> Sequence[Ids]:
        """The numbers of every prompt."""
        return self.numbered.paths


def find_paths(
    config: ReplayConfig, memory: MemoryPlan, requests: Sequence[Request]
) -> EnginePaths | None:
    """The prompts for ``prefix.rule``; None for the toolkit's own, or without reuse.

    Raises:
        ConfigError: Blocks that do not fit the trace's or the rule.
    """
    rule = find_rule(config.prefix.rule)
    if not rule.engine or not config.prefix.reuse:
        return None
    size = memory.block_tokens
    named = any(len(request.prefix_hashes) for request in requests)
    table = collect_paths(requests if named else name_apart(requests, size))
    drafts = find_drafts(config.prefix.rule, config.prefix.speculation)
    return EnginePaths(table, number_prompts(table, size, drafts.key_tokens))


def build_engine(config: ReplayConfig, memory: MemoryPlan, known: EnginePaths) -> Engine:
    """An empty cache of ``prefix.rule`` for prompts that are known."""
    rule = find_rule(config.prefix.rule)
    size, chunk = memory.block_tokens, config.scheduler.step_tokens
    pool = Pool(
        known.table,
        memory.num_blocks * size,
        size,
        memory.model,
        chunk,
        find_drafts(config.prefix.rule, config.prefix.speculation),
        arch_of(config.cost),
        windows=memory.num_checkpoints,
        holds_chunks=holds_chunks(config.server),
        tokens_per_step=_tokens_per_step(config.scheduler.speculative),
        numbered=known.numbered,
        step_tokens=1 + config.scheduler.speculative.draft_tokens,
    )
    cache, window = open_cache(rule, pool), memory.model.window_tokens
    prompts = EnginePrompts(
        cache,
        size,
        windows=rule.windows,
        draft_needs=draft_needs(rule, pool),
        replayed_tokens=rule.policy.replayed(window),
        uncovered_tokens=rule.policy.uncovered(window),
        chunk_tokens=chunk,
    )
    return Engine(cache, prompts)
