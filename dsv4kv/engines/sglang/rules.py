"""The rules by which SGLang 0.5.23 reuses prefixes.

V4.1 has two of its own. Decoder replay writes windows of late layers for the last rows of a prompt
alone, so that no hit covers a prompt's last window (``swa_reprefill_tail_tokens``); on unless
turned off. Encoder replay gives every request a window of its own, which the tree knows nothing
of, and computes the last window of a hit again (``encoder_swa_replay.py``); then the other one
changes no hit.
"""

from collections.abc import Callable
from dataclasses import replace

from dsv4kv.core.radix import SglangCache, SglangWindowCache
from dsv4kv.engines.cache import Pool, check_pages
from dsv4kv.engines.rule import Rule, alike, count_hits, one_group, serve_alone
from dsv4kv.prefix.outcome import Outcome
from dsv4kv.prefix.paths import Ints, number_prompts

_DRAFTS = ("none", "dspark", "mtp")
_V41_DRAFTS = ("none", "dspark")  # SGLang serves V4.1 with no others
_KINDS = ("v4", "v41")


def open_sglang(pool: Pool, replayed_tokens: int = 0) -> SglangCache:
    """An empty tree with one pool."""
    return SglangCache(
        pool.blocks,
        pool.block_tokens,
        _paths_of(pool),
        key_tokens=pool.speculation.key_tokens,
        chunk_tokens=pool.chunk_tokens,
        replayed_tokens=replayed_tokens,
    )


def open_sglang_windows(
    pool: Pool, *, dense: bool, uncovered_tokens: int = 1
) -> SglangWindowCache:
    """An empty tree with a pool of windows; raises ``ConfigError`` for pages below a window."""
    check_pages(pool)
    return SglangWindowCache(
        pool.blocks,
        pool.window_pages,
        pool.block_tokens,
        _paths_of(pool),
        window_tokens=pool.model.window_tokens,
        chunk_tokens=pool.chunk_tokens,
        dense=dense,
        holds_chunks=pool.holds_chunks,
        tokens_per_step=pool.tokens_per_step,
        key_tokens=pool.speculation.key_tokens,
        uncovered_tokens=uncovered_tokens,
    )


def _paths_of(pool: Pool) -> Callable[[int], list[int]]:
    """The prompts in whole pages; with MTP, a page's key covers the token behind it."""
    numbered = pool.numbered or number_prompts(
        pool.table, pool.block_tokens, pool.speculation.key_tokens
    )
    return numbered.path


def _serve(pool: Pool) -> Ints:
    return serve_alone(open_sglang(pool), pool.table.input_tokens).resumed


def _windows(*, dense: bool) -> Rule:
    def open_cache(pool: Pool) -> SglangWindowCache:
        return open_sglang_windows(pool, dense=dense)

    def serve(pool: Pool) -> Outcome:
        hits = serve_alone(open_cache(pool), pool.table.input_tokens)
        return count_hits(pool, hits, windows=True)

    setting = f"SGLANG_OPT_UNIFIED_CACHE_FREE_OUT_OF_WINDOW_SLOTS={int(not dense)}"
    return Rule(serve, setting, True, open_cache, _DRAFTS, _KINDS, retracts=True)


def _open_decoder(pool: Pool) -> SglangWindowCache:
    rest = pool.model.window_tokens
    return open_sglang_windows(pool, dense=False, uncovered_tokens=rest)


def _serve_decoder(pool: Pool) -> Outcome:
    hits = serve_alone(_open_decoder(pool), pool.table.input_tokens)
    rest = pool.model.window_tokens
    return count_hits(pool, hits, windows=True, uncovered_tokens=rest)


def _open_encoder(pool: Pool) -> SglangCache:
    return open_sglang(pool, pool.model.window_tokens)


def _serve_encoder(pool: Pool) -> Outcome:
    again = pool.model.window_tokens
    return count_hits(pool, alike(_serve(pool)), windows=False, replayed_tokens=again)


DECODER = Rule(
    _serve_decoder,
    "--enable-decoder-swa-bounded-replay",
    windows=True,
    open=_open_decoder,
    speculations=_V41_DRAFTS,
    kinds=("v41",),
    leaves_window=True,
    retracts=True,
)
ENCODER = Rule(
    _serve_encoder,
    "--enable-encoder-swa-bounded-replay",
    open=_open_encoder,
    speculations=_V41_DRAFTS,
    kinds=("v41",),
    replays=True,
    retracts=True,
)
ONE_POOL = replace(one_group(_serve, open_sglang, _DRAFTS), retracts=True)
DENSE, TAIL = _windows(dense=True), _windows(dense=False)
