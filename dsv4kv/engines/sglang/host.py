"""SGLang's HiCache: a host pool for every pool of the GPU, so many times as large.

Source: SGLang 0.5.23, ``hybrid_pool_assembler.py``, ``memory_pool_host.py``,
``hicache_auto_size.py``, ``pool_host``, ``kv_cache_hook.py``.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from dsv4kv.engines.contract import Capacity, Deployment
from dsv4kv.engines.host import HostPool, HostTier, HostWish, Offloaded, Sent
from dsv4kv.engines.sglang import flat
from dsv4kv.engines.sglang.pools import Pools
from dsv4kv.engines.sglang.sizing import SglangEngine
from dsv4kv.errors import ConfigError
from dsv4kv.model.formats import PageLayout

_SINCE = "sglang:0.5.23"
_PAGE = 256
_KEPT_FREE = 10 * 2**30  # HICACHE_HOST_MEMORY_RESERVE_BYTES
_STAGED_PAGES = 64  # _WRITE_BACK_STAGING_PAGE_CHUNK
_SCALE_BYTES = 4  # of an FP4 key
_LAYOUTS = ("page_first", "layer_first", "page_first_direct")
_RATIO = Fraction(2)
_SHARE, _SLACK = 0.8, 0.05  # hicache_host_memory_fraction; what auto-sizing leaves of it


def size_hicache(
    engine: SglangEngine, deployment: Deployment, capacity: Capacity, wish: HostWish
) -> HostTier:
    """The host pools of one rank; raises ``ConfigError`` for what SGLang refuses whatever fits."""
    _check(engine, deployment, wish)
    sized = _flat_tier if deployment.model.kind == "flat" else _v4_tier
    return sized(engine, deployment, capacity.units, wish)


def size_hisparse(
    engine: SglangEngine, deployment: Deployment, capacity: Capacity, wish: HostWish
) -> HostTier:
    """HiSparse: all entries of V4's CSA layers; source ``managers/hisparse_coordinator.py``."""
    _check_version("HiSparse", engine)
    pools, entries = engine.pools(deployment), _PAGE // 4
    page = pools.csa * PageLayout(deployment.formats.main, entries).page_bytes
    pages = -(-(capacity.units // 4) // entries)
    kept = {"tokens of context, of which the GPU holds a part": capacity.units}
    tier = HostTier("HiSparse", (HostPool("dsv4_hisparse_c4", pages, page),), wish.ranks, kept)
    return replace(tier, refusal=_refusal(tier, wish))


def _check_version(name: str, engine: SglangEngine) -> None:
    if engine.name != _SINCE:
        raise ConfigError(f"{name} is sized as {_SINCE} sizes it, not {engine.name}: ask for it.")


def _check(engine: SglangEngine, deployment: Deployment, wish: HostWish) -> None:
    _check_version("HiCache", engine)
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


def _v4_tier(
    engine: SglangEngine, deployment: Deployment, full_tokens: int, wish: HostWish
) -> HostTier:
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
    windows = pools.sizes(full_tokens, 0).swa
    pages = int(-(-full_tokens // _PAGE) * float(wish.ratio))
    tails = int(-(-windows // _PAGE) * float(wish.ratio))
    made = _in_order(_window_pools(pools, tails), _context_pools(pools, pages))
    kept = {"tokens of context": pages * _PAGE}
    if not deployment.replays_windows:
        kept["windows (a prefix resumes where it has one)"] = tails
    staged = (min(pool.pages, _STAGED_PAGES) * pool.page_bytes for pool in made)
    tier = HostTier(
        "HiCache",
        tuple(made),
        wish.ranks,
        kept,
        notes=_notes(wish),
        gpu_bytes=sum(staged) if wish.layout == "page_first" else 0,
    )
    return replace(tier, refusal=_refusal(tier, wish))


def _window_pools(pools: Pools, pages: int) -> list[HostPool]:
    """Windows of every layer, drafts included, and the states of CSA layers that go with them."""
    deployment = pools.deployment
    if deployment.replays_windows:
        return []
    layers = pools.windows + deployment.draft_layers
    window = PageLayout(deployment.formats.window, _PAGE).page_bytes
    found = [HostPool("swa", pages, layers * window)]
    if pools.csa:
        row = 4 * pools.csa_ring * deployment.state_bytes * pools.csa
        model = deployment.model
        found += [
            HostPool("deepseek_v4_c4_state", pages, row * model.head_dim),
            HostPool("deepseek_v4_c4_indexer_state", pages, row * model.index_dim),
        ]
    return found


def _context_pools(pools: Pools, pages: int) -> list[HostPool]:
    """Entries and keys of every ratio; the anchor of the pages holds nothing."""
    formats = pools.deployment.formats
    layers = {ratio: pools.low.count(ratio) for ratio in (1, 2)} | {4: pools.csa, 128: pools.hca}
    found = [HostPool("kv", pages, 0)]
    for ratio, count in layers.items():
        if not count:
            continue
        entries, name = _PAGE // ratio, f"deepseek_v4_c{ratio}"
        page = PageLayout(formats.main, entries).page_bytes
        found.append(HostPool(name, pages, count * page))
        if ratio == 128:
            continue
        key, rows = formats.indexer.entry_bytes, count * entries
        apart = _splits_keys(pools.deployment)
        found.append(HostPool(f"{name}_indexer", pages, rows * (key - _SCALE_BYTES * apart)))
        if apart:
            found.append(HostPool(f"{name}_indexer_scale", pages, rows * _SCALE_BYTES))
    return found


def sent_of(engine: SglangEngine, deployment: Deployment, tokens: int) -> Sent:
    """What a rank sends of a prompt to the decode side: pages, windows, what is pending.

    Every page of every layer's buffer is a descriptor.

    Source: ``disaggregation/prefill.py``, ``get_contiguous_buf_infos`` and its like of
    ``deepseek_v4_memory_pool.py``.
    """
    if deployment.model.kind == "flat":
        return flat.sent_of(deployment, engine.layers(deployment), tokens)
    pools = engine.pools(deployment)
    page, window, pending = sent_parts(pools, tokens)
    pages = -(-tokens // _PAGE)
    tails = pages - max(0, tokens - deployment.model.window_tokens) // _PAGE
    keyed = pools.csa + len(pools.low)
    buffers = (2 + _splits_keys(deployment)) * keyed + pools.hca
    windows = pools.windows + deployment.draft_layers + 2 * pools.csa
    begun = pools.hca * bool(tokens % 128) + pools.low.count(2) * (tokens % 2)
    return Sent(pages * page + tails * window + pending, pages * buffers + tails * windows + begun)


def sent_parts(pools: Pools, tokens: int) -> tuple[int, int, int]:
    """Bytes of a page, of a page of windows, and of entries that a prompt's end has begun."""
    kept = replace(pools, deployment=replace(pools.deployment, replays_windows=False))
    rows = 1 if pools.deployment.online_state else 128
    pending = pools.hca * rows * pools.hca_row_bytes if tokens % 128 else 0
    if tokens % 2:
        pending += pools.low.count(2) * pools.pair_ring * pools.pair_row_bytes
    context, windows = _context_pools(pools, 1), _window_pools(kept, 1)
    return sum(x.page_bytes for x in context), sum(x.page_bytes for x in windows), pending


def paged_objects(engine: SglangEngine, deployment: Deployment) -> Offloaded:
    """A page of every pool; the anchor of the pages holds nothing.

    Raises:
        ConfigError: Pages that HiCache does not have.
    """
    if deployment.model.kind == "flat":
        tokens = deployment.block_tokens or flat.PAGE_TOKENS
        costs = flat.costs_of(deployment, engine.layers(deployment))
        pages = (int(cost.marginal_bytes) * tokens for cost in costs)
        pools = zip(("kv", "indexer"), pages, strict=True)
        return Offloaded(tuple(HostPool(name, 1, size) for name, size in pools))
    if deployment.block_tokens not in (None, _PAGE):
        raise ConfigError(
            f"HiCache keeps these models in pages of {_PAGE} tokens, not "
            f"{deployment.block_tokens}: leave cache.block_tokens out."
        )
    found = engine.pools(deployment)
    context = tuple(pool for pool in _context_pools(found, 1) if pool.page_bytes)
    return Offloaded(context, tuple(_window_pools(found, 1)))


def _splits_keys(deployment: Deployment) -> bool:
    """Whether values and scales of keys are pools of their own: FP4 on AMD's GPUs."""
    amd = (deployment.arch or "").startswith("gfx")
    return amd and deployment.formats.indexer.name == "mxfp4"


def _in_order(windows: Sequence[HostPool], context: Sequence[HostPool]) -> list[HostPool]:
    """As SGLang makes them, which decides which of them is one too many."""
    order = ("kv", "swa", "c4", "c4_indexer", "c4_indexer_scale", "c4_state", "c4_indexer_state")
    rank = {name: place for place, name in enumerate(order)}
    made = [*context, *windows]
    return sorted(made, key=lambda x: rank.get(x.name.removeprefix("deepseek_v4_"), len(order)))


def _flat_tier(
    engine: SglangEngine, deployment: Deployment, full_tokens: int, wish: HostWish
) -> HostTier:
    """V3.2: tokens by the ratio or the size, and a page more; keys have a page more again."""
    costs = flat.costs_of(deployment, engine.layers(deployment))
    cells = [int(cost.marginal_bytes) for cost in costs]
    page = deployment.block_tokens or flat.PAGE_TOKENS
    ratio = wish.ratio or _fitting_ratio(sum(cells), full_tokens, page, wish)
    tokens = wish.size_bytes // cells[0] if wish.size_bytes else int(full_tokens * float(ratio))
    pages = tokens // page + 1
    made = (
        HostPool("kv", pages, cells[0] * page),
        HostPool("indexer", pages + 1, cells[1] * page),
    )
    tier = HostTier("HiCache", made, wish.ranks, {"tokens of context": pages * page})
    return replace(tier, notes=_notes(wish), refusal=_refusal(tier, wish))


def _fitting_ratio(cell: int, full_tokens: int, page: int, wish: HostWish) -> Fraction:
    """What SGLang takes where neither ratio nor size is given: 2, or as much as fits."""
    if wish.memory_bytes is None:
        return _RATIO
    budget = int((wish.memory_bytes - _KEPT_FREE) // wish.ranks * _SHARE)
    held = cell * (full_tokens + page)
    return min(_RATIO, Fraction(budget * (1 - _SLACK) / held))


def _refusal(tier: HostTier, wish: HostWish) -> str:
    """Every pool must fit into a rank's share of what is free, 10 GiB kept."""
    free = wish.memory_bytes
    if free is None:
        return ""
    for pool in tier.pools:
        share = (free - _KEPT_FREE) // wish.ranks
        if pool.total_bytes > share:
            return (
                f"SGLang refuses to start: its host pool {pool.name} takes "
                f"{pool.total_bytes / 1e9:.2f} GB of every rank, of which "
                f"{max(share, 0) / 1e9:.2f} GB are left: lower --hicache-ratio."
            )
        free -= pool.total_bytes * wish.ranks
    return ""


def _notes(wish: HostWish) -> tuple[str, ...]:
    if wish.storage is None:
        return ()
    return (f"Beyond it, pages go to the storage backend {wish.storage}, which is not sized.",)
