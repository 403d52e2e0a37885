"""The rules by which SGLang 0.5.23 reuses prefixes."""

from dsv4kv.engines.cache import EngineCache, Pool
from dsv4kv.engines.rule import Rule, one_group, tell_hits
from dsv4kv.engines.sglang.cache import open_sglang, replay_sglang
from dsv4kv.engines.sglang.windows import open_sglang_windows, replay_sglang_windows
from dsv4kv.prefix.outcome import Outcome
from dsv4kv.prefix.paths import Ints

_DRAFTS = ("none", "dspark", "mtp")
_KINDS = ("v4", "v41")


def _serve(pool: Pool) -> Ints:
    return replay_sglang(pool.table, pool.block_tokens, pool.blocks, pool.speculation.key_tokens)


def _windows(*, dense: bool) -> Rule:
    def serve(pool: Pool) -> Outcome:
        return tell_hits(pool, replay_sglang_windows(pool, dense=dense), windows=True)

    def open_cache(pool: Pool) -> EngineCache:
        return open_sglang_windows(pool, dense=dense)

    setting = f"SGLANG_OPT_UNIFIED_CACHE_FREE_OUT_OF_WINDOW_SLOTS={int(not dense)}"
    return Rule(serve, setting, True, open_cache, _DRAFTS, _KINDS)


ONE_POOL = one_group(_serve, open_sglang, _DRAFTS)
DENSE, TAIL = _windows(dense=True), _windows(dense=False)
