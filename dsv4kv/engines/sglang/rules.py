"""The rules by which SGLang 0.5.23 reuses prefixes.

V4.1 has two of its own. Decoder replay writes windows of late layers for the last rows of a prompt
alone, so that no hit covers a prompt's last window (``swa_reprefill_tail_tokens``); on unless
turned off. Encoder replay gives every request a window of its own, which the tree knows nothing
of, and computes the last window of a hit again (``encoder_swa_replay.py``); then the other one
changes no hit.
"""

from dsv4kv.engines.cache import EngineCache, Pool
from dsv4kv.engines.rule import Rule, alike, count_hits, one_group
from dsv4kv.engines.sglang.cache import open_sglang, replay_sglang
from dsv4kv.engines.sglang.windows import open_sglang_windows, replay_sglang_windows
from dsv4kv.prefix.outcome import Outcome
from dsv4kv.prefix.paths import Ints

_DRAFTS = ("none", "dspark", "mtp")
_V41_DRAFTS = ("none", "dspark")  # SGLang serves V4.1 with no others
_KINDS = ("v4", "v41")


def _serve(pool: Pool) -> Ints:
    return replay_sglang(pool.table, pool.block_tokens, pool.blocks, pool.speculation.key_tokens)


def _windows(*, dense: bool) -> Rule:
    def serve(pool: Pool) -> Outcome:
        return count_hits(pool, replay_sglang_windows(pool, dense=dense), windows=True)

    def open_cache(pool: Pool) -> EngineCache:
        return open_sglang_windows(pool, dense=dense)

    setting = f"SGLANG_OPT_UNIFIED_CACHE_FREE_OUT_OF_WINDOW_SLOTS={int(not dense)}"
    return Rule(serve, setting, True, open_cache, _DRAFTS, _KINDS)


def _serve_decoder(pool: Pool) -> Outcome:
    rest = pool.model.window_tokens
    hits = replay_sglang_windows(pool, dense=False, uncovered_tokens=rest)
    return count_hits(pool, hits, windows=True, uncovered_tokens=rest)


def _serve_encoder(pool: Pool) -> Outcome:
    again = pool.model.window_tokens
    return count_hits(pool, alike(_serve(pool)), windows=False, replayed_tokens=again)


DECODER = Rule(
    _serve_decoder,
    "--enable-decoder-swa-bounded-replay",
    windows=True,
    open=lambda pool: open_sglang_windows(
        pool, dense=False, uncovered_tokens=pool.model.window_tokens
    ),
    speculations=_V41_DRAFTS,
    kinds=("v41",),
    leaves_window=True,
)
ENCODER = Rule(
    _serve_encoder,
    "--enable-encoder-swa-bounded-replay",
    open=open_sglang,
    speculations=_V41_DRAFTS,
    kinds=("v41",),
    replays=True,
)
ONE_POOL = one_group(_serve, open_sglang, _DRAFTS)
DENSE, TAIL = _windows(dense=True), _windows(dense=False)
