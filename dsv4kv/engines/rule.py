"""What a rule by which an engine reuses prefixes is made of, and the rule of no engine."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsv4kv.core.cache import EngineCache
from dsv4kv.engines.cache import ENGINE_BLOCK_TOKENS, Pool, draft_needs
from dsv4kv.model.config import DSV4Config
from dsv4kv.prefix.outcome import Losses, Outcome
from dsv4kv.prefix.paths import Ints, find_reuse


@dataclass(frozen=True)
class GroupHits:
    """What requests hit, in blocks of context.

    Attributes:
        resumed: int64[requests]: where all groups agreed.
        found: int64[requests]: what the context group alone held.
        marked: int64[requests]: the last boundary up to there whose windows were ever cached.
        rejected: bool[requests]: whether the request can never run; then it hits nothing.
    """

    resumed: Ints
    found: Ints
    marked: Ints
    rejected: NDArray[np.bool_]


@dataclass(frozen=True)
class Rule:
    """How an engine reuses prefixes.

    Attributes:
        replay: Serves the trace.
        setting: What a user of the engine writes to have it.
        windows: Whether it asks for windows and states too, as DeepSeek-V4 needs.
        open: Makes the engine's cache, for requests that run side by side.
        speculations: By what drafts its hits are known.
        kinds: Generations of models that it is a rule for.
        own_block_tokens: Tokens of a block that the engine takes.
        hopper_block_tokens: Likewise on Hopper, where it takes others there.
        replays: Whether the last window of a hit is computed again.
        leaves_window: Whether no hit covers a prompt's last window; else not its last token.
        caches_scheduled: Whether blocks are found as soon as they are scheduled, by requests that
            are admitted to the same step (vLLM, in ``allocate_slots``).
        retracts: Whether prompts are computed in steps of their own, and requests retracted where
            those that decode lack pages (SGLang).
    """

    replay: Callable[[Pool], Outcome]
    setting: str = ""
    windows: bool = False
    open: Callable[[Pool], EngineCache] | None = None
    speculations: tuple[str, ...] = ("none",)
    kinds: tuple[str, ...] = ("v4", "v41", "flat")
    own_block_tokens: int = ENGINE_BLOCK_TOKENS
    hopper_block_tokens: int | None = None
    replays: bool = False
    leaves_window: bool = False
    caches_scheduled: bool = False
    retracts: bool = False

    def block_tokens(self, arch: str | None = None) -> int | None:
        """Tokens of a block where none are asked for, by GPU; None takes what is there."""
        if arch == "sm_90" and self.hopper_block_tokens:
            return self.hopper_block_tokens
        return self.own_block_tokens if self.open else None

    def uncovered_tokens(self, model: DSV4Config) -> int:
        """Tokens at a prompt's end that no hit covers."""
        return model.window_tokens if self.leaves_window else 1


def one_group(
    replay: Callable[[Pool], Ints],
    open_cache: Callable[[Pool], EngineCache],
    speculations: tuple[str, ...],
) -> Rule:
    """A rule that keeps blocks of context alone."""

    def serve(pool: Pool) -> Outcome:
        return count_hits(pool, alike(replay(pool)), windows=False)

    return Rule(serve, open=open_cache, speculations=speculations)


def alike(hits: Ints) -> GroupHits:
    """Hits of blocks of context alone: what is found is where a request resumes."""
    return GroupHits(hits, hits, hits, np.zeros(len(hits), bool))


def serve_alone(cache: EngineCache, tokens: Ints) -> GroupHits:
    """Serve prompts one after the other; their lengths are int64[requests]."""
    served = [cache.serve(request, length) for request, length in enumerate(tokens.tolist())]
    rejected = np.array([hit is None for hit in served], bool)
    hits = np.array([hit or (0, 0, 0) for hit in served], np.int64).reshape(-1, 3).T
    return GroupHits(hits[0], hits[1], hits[2], rejected)


def count_hits(
    pool: Pool,
    hits: GroupHits,
    *,
    windows: bool,
    replayed_tokens: int = 0,
    uncovered_tokens: int = 1,
) -> Outcome:
    """Hits in tokens, and what an unbounded cache of single tokens would have hit beyond them.

    Of a hit the last ``replayed_tokens`` are computed again; none covers the last
    ``uncovered_tokens`` of a prompt.
    """
    key_tokens, dropped_tokens = draft_needs(pool, windows=windows)
    size, served = pool.block_tokens, ~hits.rejected
    table = pool.table.select(np.flatnonzero(served)) if hits.rejected.any() else pool.table
    once = find_reuse(table, table.block_tokens).found_tokens(None)
    whole = once // size * size
    covered = np.maximum(table.input_tokens - uncovered_tokens, 0)
    allowed = np.minimum(whole, covered // size * size)
    drafted = allowed
    if key_tokens:
        alike = find_reuse(table, size, whole_blocks=True, key_tokens=key_tokens)
        drafted = np.minimum(allowed, alike.found_tokens(None))
    drafted = np.maximum(0, drafted - dropped_tokens)
    resumed, found, marked = (
        np.minimum(blocks[served] * size, drafted)
        for blocks in (hits.resumed, hits.found, hits.marked)
    )
    begun = np.maximum(hits.resumed * size - replayed_tokens, 0)
    losses = Losses(
        alignment=int((once - whole).sum()),
        last_token=int((whole - allowed).sum()),
        draft=int((allowed - drafted).sum()),
        evicted_block=int((drafted - found).sum()),
        no_checkpoint=int((found - marked).sum()),
        evicted_checkpoint=int((marked - resumed).sum()),
        replay=int((hits.resumed * size - begun).sum()),
    )
    return Outcome(
        "",  # whoever chose the rule names it
        begun,
        pool.table.total_input_tokens,
        losses,
        int(found.sum()),
        rejected=int(hits.rejected.sum()),
    )


def _replay_ideal(pool: Pool) -> Outcome:
    reuse = find_reuse(pool.table, pool.block_tokens)
    found, once = reuse.found_tokens(pool.blocks), reuse.found_tokens(None)
    losses = Losses(evicted_block=int((once - found).sum()))
    return Outcome("", found, pool.table.total_input_tokens, losses, int(found.sum()))


IDEAL = Rule(_replay_ideal)
