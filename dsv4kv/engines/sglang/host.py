"""SGLang's HiCache, with a host pool for every pool of the GPU, and HiSparse.

Source: SGLang 0.5.23, ``hybrid_pool_assembler.py``, ``memory_pool_host.py``,
``hicache_auto_size.py``, ``pool_host``, ``kv_cache_hook.py``,
``managers/hisparse_coordinator.py``.
"""

import math
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from dsv4kv.engines import contract as ct
from dsv4kv.engines.sglang import BUILDS
from dsv4kv.errors import ConfigError
from dsv4kv.model.formats import PageLayout

if TYPE_CHECKING:
    from dsv4kv.engines.sglang.sizes import SglangEngine

_SINCE = f"sglang:{BUILDS[-1].newest}"
_PAGE = 256
_KEPT_FREE = 10 * 2**30  # HICACHE_HOST_MEMORY_RESERVE_BYTES
_STAGED_PAGES = 64  # _WRITE_BACK_STAGING_PAGE_CHUNK
_LAYOUTS = ("page_first", "layer_first", "page_first_direct")
_RATIO = Fraction(2)
_SHARE, _SLACK = 0.8, 0.05  # hicache_host_memory_fraction; what auto-sizing leaves of it
_ORDER = (
    *("kv", "swa", "deepseek_v4_c4", "deepseek_v4_c4_indexer", "deepseek_v4_c4_indexer_scale"),
    *("deepseek_v4_c4_state", "deepseek_v4_c4_indexer_state"),
)
"""In which pools are made, which decides which of them is one too many; others come after."""


def size_tier(
    engine: "SglangEngine", deployment: ct.Deployment, capacity: ct.Capacity, wish: ct.HostWish
) -> ct.HostTier:
    """The host pools of one rank; raises ``ConfigError`` for what SGLang refuses whatever fits."""
    if engine.name != _SINCE:
        name = "HiSparse" if wish.tier == "hisparse" else "HiCache"
        raise ConfigError(f"{name} is sized as {_SINCE} sizes it, not {engine.name}: ask for it.")
    if wish.tier == "hisparse":
        full, entries = capacity.units, _PAGE // 4
        page = engine.pools(deployment).csa
        page *= PageLayout(deployment.formats.main, entries).page_bytes
        pool = ct.HostPool("dsv4_hisparse_c4", -(-(full // 4) // entries), page)
        kept = {"tokens of context, a part of them on the GPU": full}
        tier = ct.HostTier("HiSparse", (pool,), wish.ranks, kept)
        return replace(tier, refusal=_refusal(tier, wish))
    if not deployment.prefix_cache or deployment.role == "decode":
        raise ConfigError(
            "--enable-hierarchical-cache: SGLang refuses it with --disable-radix-cache, which a "
            "decode side sets: drop one of them."
        )
    if wish.layout not in _LAYOUTS:
        raise ConfigError(
            f"--hicache-mem-layout {wish.layout}: SGLang keeps these models in "
            f"{', '.join(_LAYOUTS)}: choose one."
        )
    sized = _flat_tier if deployment.model.kind == "flat" else _v4_tier
    tier = sized(engine, deployment, capacity.units, wish)
    notes = f"Beyond it, pages go to the storage backend {wish.storage}, which is not sized."
    return replace(tier, notes=(notes,) if wish.storage else (), refusal=_refusal(tier, wish))


def _v4_tier(
    engine: "SglangEngine", deployment: ct.Deployment, full_tokens: int, wish: ct.HostWish
) -> ct.HostTier:
    """V4 and V4.1: pages of full tokens and of windows, each by the ratio."""
    if wish.size_bytes:
        raise ConfigError(
            'SGLang refuses it: "DeepSeek V4 HiCache currently does not support --hicache-size; '
            'use --hicache-ratio instead."'
        )
    if wish.ratio is None:
        raise ConfigError(
            "SGLang refuses --enable-hierarchical-cache without --hicache-ratio for these models "
            '("HiCache auto-sizing does not support DeepSeekV4TokenToKVPool"): add it, such as 2.'
        )
    pools = engine.pools(deployment)
    if pools.page_tokens != _PAGE:
        raise ConfigError(
            f"SGLang serves these models in pages of {_PAGE} tokens, not {pools.page_tokens}: "
            "drop --page-size."
        )
    windows = pools.window_slots(full_tokens)
    pages = int(-(-full_tokens // _PAGE) * float(wish.ratio))
    tails = int(-(-windows // _PAGE) * float(wish.ratio))
    objects = ct.objects_of(engine.rule(deployment).layout)
    made = [ct.HostPool("kv", pages, 0)]  # the anchor of the pages holds nothing
    made += [replace(pool, pages=pages) for pool in objects.context]
    made += [replace(pool, pages=tails) for pool in objects.tail]
    kept = {"tokens of context": pages * _PAGE}
    if objects.tail:
        kept["windows (a prefix resumes where it has one)"] = tails
    places = {name: place for place, name in enumerate(_ORDER)}
    staged = (min(pool.pages, _STAGED_PAGES) * pool.page_bytes for pool in made)
    return ct.HostTier(
        "HiCache",
        tuple(sorted(made, key=lambda pool: places.get(pool.name, len(_ORDER)))),
        wish.ranks,
        kept,
        gpu_bytes=sum(staged) if wish.layout == "page_first" else 0,
    )


def find_objects(
    engine: "SglangEngine", deployment: ct.Deployment, retention: int | None, chunk: int | None
) -> ct.Offloaded:
    """A page of every pool; raises ``ConfigError`` for pages that HiCache does not have."""
    if chunk is not None:
        raise ConfigError("LMCache's chunks are known behind vLLM alone.")
    if deployment.model.kind != "flat" and deployment.block_tokens not in (None, _PAGE):
        raise ConfigError(
            f"HiCache keeps these models in pages of {_PAGE} tokens, not "
            f"{deployment.block_tokens}: leave cache.block_tokens out."
        )
    return ct.objects_of(engine.rule(deployment).layout)


def _flat_tier(
    engine: "SglangEngine", deployment: ct.Deployment, full_tokens: int, wish: ct.HostWish
) -> ct.HostTier:
    """V3.2: tokens by the ratio or the size, and a page more; keys have a page more again."""
    layout = engine.rule(deployment).layout
    page, (kv, keys) = layout.groups[0].block_tokens, ct.objects_of(layout).context
    cell = kv.page_bytes // page
    ratio = wish.ratio or _fitting_ratio(cell + keys.page_bytes // page, full_tokens, page, wish)
    tokens = wish.size_bytes // cell if wish.size_bytes else int(full_tokens * float(ratio))
    pages = tokens // page + 1
    made = (replace(kv, pages=pages), replace(keys, pages=pages + 1))
    kept = {"tokens of context": pages * page}
    return ct.HostTier("HiCache", made, wish.ranks, kept)


def _fitting_ratio(cell: int, full_tokens: int, page: int, wish: ct.HostWish) -> Fraction:
    """What SGLang takes where neither ratio nor size is given: 2, or as much as fits."""
    if wish.memory_bytes is None:
        return _RATIO
    budget = int((wish.memory_bytes - _KEPT_FREE) // wish.ranks * _SHARE)
    held = cell * (full_tokens + page)
    return min(_RATIO, Fraction(budget * (1 - _SLACK) / held))


def _refusal(tier: ct.HostTier, wish: ct.HostWish) -> str:
    """Every pool must fit into a rank's share of what is free, 10 GiB kept."""
    if wish.memory_bytes is None:
        return ""
    free = wish.memory_bytes
    for pool in tier.pools:
        share = (free - _KEPT_FREE) // wish.ranks
        if pool.total_bytes > share:
            room = (wish.memory_bytes - _KEPT_FREE) / (tier.node_bytes or 1)
            ratio = max(math.floor(float(wish.ratio or _RATIO) * room * 10) / 10, 0)
            change = "--hicache-size" if wish.size_bytes else f"--hicache-ratio to {ratio:g}"
            return (
                f"SGLang refuses to start: its host pool {pool.name} takes "
                f"{pool.total_bytes / 1e9:.2f} GB of every rank, and pools before it leave "
                f"{max(share, 0) / 1e9:.2f} GB: lower {change}."
            )
        free -= pool.total_bytes * wish.ranks
    return ""
