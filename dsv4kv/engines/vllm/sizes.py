"""vLLM's sizes by version: blocks, costs by pool, start-up lines, defaults, and workspaces.

The number that vLLM prints is no capacity: it is what a pool of blocks holds of requests of
``max_model_len``, each with its reserve for tokens in flight, times ``max_model_len``. A block
costs the same whichever group it belongs to; what it is larger than its group's pages is shared
among them.
Source: vLLM 0.20.2 to 0.33.0 (``gpu_worker.py``, ``kv_cache_utils.py``, ``kv_cache_planning.py``;
``EngineArgs.get_batch_defaults``, ``VllmConfig.max_concurrent_batches``, ``use_v2_model_runner``,
``config/cache.py``, ``envs.py``); a refusal of 0.22 (vllm#44376), logs of 0.26 and 0.33.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod

from dsv4kv.engines.contract import (
    DRAFT,
    GIB,
    MIB,
    UNKNOWN,
    UNMEASURED,
    Capacity,
    Default,
    Defaults,
    Deployment,
    Engine,
    Given,
    Held,
    Machine,
    Overhead,
    PoolCost,
)
from dsv4kv.engines.host import HostTier, HostWish, Offloaded, Sent, sent_of
from dsv4kv.engines.names import chosen_rule
from dsv4kv.engines.rule import Group, Layout, Piece, Rule
from dsv4kv.engines.vllm import FAMILY, Release, host
from dsv4kv.engines.vllm.layout import BlockLayout, LayerGroup, Page, block_bytes, lay_out

_LARGE = 70 * GIB
_LARGEST = 160 * GIB


def _size_batches(release: Release, machine: Machine) -> tuple[int, int, str]:
    small = machine.gpu.startswith("a100") or (release.small_gb10 and machine.gpu == "gb10")
    if machine.memory_bytes >= _LARGEST and release.largest_tokens > 8192:
        return release.largest_tokens, 1024, "GPUs of 160 GiB or more"
    if machine.memory_bytes >= _LARGE and not small:
        return 8192, 1024, "GPUs of 70 GiB or more"
    return 2048, 256, f"{machine.gpu}" if small else "GPUs below 70 GiB"


def _overlap(release: Release, machine: Machine) -> tuple[int, str]:
    if machine.pp == 1:
        return 2, "vLLM schedules a step while one runs (async_scheduling)"
    if release.overlap_stages:
        return machine.pp + 1, "a step in every stage of the pipeline, and one scheduled"
    return machine.pp, "a step in every stage of the pipeline"


_Kind = tuple[str, str]  # pool and layer type


def _context_costs(full: LayerGroup, unit_bytes: int) -> list[PoolCost]:
    pages = _by_kind(full.pages)
    if not pages:  # a pipeline stage without compressed layers holds the blocks all the same
        return [PoolCost("main", "all", 0, padding_bytes=Fraction(unit_bytes, full.block_tokens))]
    costs = []
    for (pool, layer_type), held in pages.items():
        whole = Fraction(unit_bytes * sum(page.page_bytes for page in held), full.page_bytes)
        used = Fraction(sum(page.used_bytes for page in held), full.block_tokens)
        costs.append(
            PoolCost(
                pool,
                layer_type,
                len({page.layer for page in held}),
                marginal_bytes=used,
                padding_bytes=whole / full.block_tokens - used,
            )
        )
    return costs


def _window_costs(
    groups: Sequence[LayerGroup], unit_bytes: int, deployment: Deployment
) -> list[PoolCost]:
    context, steady = deployment.max_context_tokens, 1 + deployment.draft_tokens
    fixed: Counter[_Kind] = Counter()
    flight: Counter[_Kind] = Counter()
    layers: dict[_Kind, set[int]] = {}
    for group in groups:
        least = group.blocks(context, steady)
        more = max(0, group.blocks(context, deployment.in_flight_tokens) - least)
        fixed.update(_share(unit_bytes * least, group))
        flight.update(_share(unit_bytes * more, group))
        for kind, pages in _by_kind(group.pages).items():
            layers.setdefault(kind, set()).update(page.layer.index for page in pages)
    return [
        PoolCost(
            pool,
            layer_type,
            len(layers.get((pool, layer_type), ())),
            fixed_bytes=count,
            in_flight_bytes=flight[pool, layer_type],
        )
        for (pool, layer_type), count in fixed.items()
    ]


def _share(total_bytes: int, group: LayerGroup) -> dict[_Kind, int]:
    """Bytes by kind, in proportion to the pages, adding up exactly."""
    pages = _by_kind(group.pages)
    if not pages:
        return {("window", "all"): total_bytes}
    shares: dict[_Kind, int] = {}
    seen = given = 0
    for kind, held in pages.items():
        seen += sum(page.page_bytes for page in held)
        upto = total_bytes * seen // group.page_bytes
        shares[kind], given = upto - given, upto
    return shares


def _by_kind(pages: Sequence[Page]) -> dict[_Kind, list[Page]]:
    """Window pages of all layers but drafts are one kind; the others are kept by layer type."""
    kinds: dict[_Kind, list[Page]] = {}
    for page in pages:
        kind = page.layer.kind
        layer_type = kind if page.pool != "window" or kind == DRAFT else "all"
        kinds.setdefault((page.pool, layer_type), []).append(page)
    return kinds


_DOCS = "https://docs.vllm.ai/en/latest/configuration/conserving_memory/"


def _size_lines(
    available_bytes: int, tokens: int, context: int, concurrency: float, *, one_line: bool
) -> tuple[str, ...]:
    size = f"GPU KV cache size: {tokens:,} tokens"
    most = f"Maximum concurrency for {context:,} tokens per request: {concurrency:.2f}x"
    memory = f"Available KV cache memory: {_gib(available_bytes)} GiB"
    return (memory, f"{size}, {most}") if one_line else (memory, size, most)


def _refusal_lines(
    available_bytes: int, checked_bytes: int, needed_bytes: int, context: int, fitting: int
) -> tuple[str, ...]:
    """The memory, and the error that ends the start; ``fitting`` 0 where no length fits."""
    memory = f"Available KV cache memory: {_gib(available_bytes)} GiB"
    if checked_bytes <= 0:
        error = (
            "ValueError: No available memory for the cache blocks. "
            "Try increasing `gpu_memory_utilization` when initializing the engine "
            "(this flag also controls CPU memory reservation on the CPU backend, despite its "
            f"name). See {_DOCS} for more details."
        )
        return (memory, error)
    estimate = (
        f"Based on the available memory, the estimated maximum model length is {fitting}. "
        if fitting
        else ""
    )
    error = (
        f"ValueError: To serve at least one request with the model's max seq len ({context}), "
        f"({_gib(needed_bytes)} GiB KV cache is needed, which is larger than the available KV "
        f"cache memory ({_gib(checked_bytes)} GiB). {estimate}Try increasing "
        "`gpu_memory_utilization` (which also controls CPU memory on the CPU backend) or "
        f"decreasing `max_model_len` when initializing the engine. See {_DOCS} for more details."
    )
    return (memory, error)


def _gib(count: int) -> str:
    return f"{round(count / GIB, 2)}"


class VllmEngine(Engine):
    """A range of vLLM's versions."""

    family = FAMILY
    logits_room = "profiled"

    def __init__(self, release: Release) -> None:
        self.release = release
        self.name, self.seen_in_logs = f"vllm:{release.newest}", release.seen_in_logs

    def layout(self, deployment: Deployment) -> BlockLayout:
        """Groups and bytes of a block; raises ``ConfigError`` for what vLLM does not serve."""
        # neither context nor load decides the layout: searches ask for thousands of both
        key = replace(deployment, max_context_tokens=1, in_flight_tokens=1, concurrency=None)
        return lay_out(self.release, key)

    def rule(self, deployment: Deployment, flags: Given | None = None) -> Rule:
        """Groups of one kind are alike; a hit gives one block back for a draft to compute.

        V4.1's rings are never cached, its windows only with ``--no-swa-bounded-replay``.
        """
        layout, model = self.layout(deployment), deployment.model
        variant = FAMILY.rules[chosen_rule(FAMILY, model.kind, dict(flags or {}))]
        policy = replace(variant.policy, drops=deployment.draft_layers > 0)
        if deployment.bounded_replay is False:
            policy = replace(policy, replays=False)
        elif policy.replays:
            policy = replace(policy, drops=False)
        groups = tuple(
            _group(table, held, cached=not (table.ring or policy.replays))
            for table, held in zip(layout.groups, layout.held, strict=True)
        )
        window = model.window_tokens
        return Rule(Layout(groups, layout.unit_bytes, window), variant.retention, policy)

    def costs(self, deployment: Deployment) -> tuple[PoolCost, ...]:
        layout = self.layout(deployment)
        full, *others = layout.held
        unit = layout.unit_bytes
        return (*_context_costs(full, unit), *_window_costs(others, unit, deployment))

    def request_bytes(self, deployment: Deployment, tokens: int, *, in_flight: int) -> int:
        """Bytes of all blocks of a request; it can be more than vLLM counts up to 0.26."""
        layout = self.layout(deployment)
        return layout.unit_bytes * layout.blocks(tokens, in_flight)

    def shared_bytes(self, deployment: Deployment) -> int:
        """The block that stands for no block."""
        return self.layout(deployment).unit_bytes

    def blocks_counted(self, deployment: Deployment, tokens: int) -> int:
        """Blocks that vLLM counts for one request, its tokens in flight included."""
        layout, flight = self.layout(deployment), deployment.in_flight_tokens
        if not self.release.weighted:
            return layout.blocks(tokens, flight)
        weights = [table.page_bytes for table in layout.weighed]
        need = sum(
            table.blocks(tokens, flight) * weight
            for table, weight in zip(layout.groups, weights, strict=True)
        )
        return -(-need // weights[0])

    def capacity(self, deployment: Deployment, available_bytes: int) -> Capacity:
        """What vLLM makes of the memory, down to the line it logs."""
        layout, context = self.layout(deployment), deployment.max_context_tokens
        blocks = max(0, available_bytes) // layout.unit_bytes
        needed = self.blocks_counted(deployment, context)
        refused = self._refusal(deployment, available_bytes)
        concurrency = blocks / needed  # a float, as in vLLM: the line truncates its product
        printed = None if refused else int(concurrency * context)
        lines = refused or _size_lines(
            available_bytes, printed or 0, context, concurrency, one_line=self.release.one_line
        )
        return Capacity(
            cache_bytes=blocks * layout.unit_bytes,
            units=blocks,
            unit_bytes=Fraction(layout.unit_bytes),
            units_per_request=Fraction(needed),
            printed_tokens=printed,
            concurrency=Fraction(blocks, needed),
            log_lines=lines,
        )

    def _refusal(self, deployment: Deployment, available_bytes: int) -> tuple[str, ...]:
        context = deployment.max_context_tokens
        checked = available_bytes
        if self.release.null_block:
            checked -= self.layout(deployment).unit_bytes
        if checked > 0 and self.needed_bytes(deployment, context) <= checked:
            return ()
        fitting = bisect_right(
            range(1, context), checked, key=lambda tokens: self.needed_bytes(deployment, tokens)
        )
        needed = self.needed_bytes(deployment, context)
        return _refusal_lines(available_bytes, checked, needed, context, fitting)

    def needed_bytes(self, deployment: Deployment, tokens: int) -> int:
        """What the check at start asks for one request; not what the log counts with."""
        layout = self.layout(deployment)
        unit = (
            layout.unit_bytes
            if self.release.grouping == "patterns"
            else block_bytes(layout.weighed, "tuples", layout.groups[0])
        )
        return unit * layout.blocks(tokens, deployment.in_flight_tokens)

    def defaults(self, machine: Machine, given: Given) -> Defaults:
        release = self.release
        tokens, requests, of = _size_batches(release, machine)
        limit = min(requests, given.get("step_tokens") or tokens)
        overlap, why = 1, "this vLLM counts the tokens of one step"
        if release.batches_counted:
            overlap, why = _overlap(release, machine)
        return {
            "memory_fraction": Default(Fraction(92, 100), "vLLM's gpu_memory_utilization"),
            "reserve": UNMEASURED,
            "step_tokens": Default(tokens, f"vLLM's max_num_batched_tokens on {of}"),
            "overlap": Default(overlap, why),
            "request_limit": Default(limit, f"vLLM's max_num_seqs on {of}, of every replica"),
            "logits_limit": Default(512 * MIB, "vLLM's VLLM_SPARSE_INDEXER_MAX_LOGITS_MB"),
        }

    def overhead(
        self, deployment: Deployment, step_tokens: int, machine: Machine, given: Given
    ) -> Overhead:
        """Workspace and buffers of the version that was read."""
        if self.release.newest != "0.33":
            return UNKNOWN
        backend = str(given.get("attention_backend") or "")
        return overhead_of(deployment, step_tokens, flashinfer="FLASHINFER" in backend.upper())

    def stage_layers(self, layers: int, stages: int) -> tuple[int, ...]:
        """Those left over go to the stages before the last (``get_pp_indices``)."""
        size, extra = divmod(layers, stages)
        return tuple(size + (stages - 1 - extra <= s < stages - 1) for s in range(stages))

    def starved(self, free_bytes: int, weight_bytes: int, fraction: Fraction) -> str:
        """The refusal before any block is counted (``kv_cache_planning.py``)."""
        return (
            "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` "
            "when initializing the engine"
        )

    def host_tier(self, deployment: Deployment, capacity: Capacity, wish: HostWish) -> HostTier:
        return host.size_tier(self, deployment, capacity, wish)

    def objects(
        self, deployment: Deployment, retention: int | None, chunk_tokens: int | None
    ) -> Offloaded:
        return host.objects_of_vllm(self, deployment, retention, chunk_tokens)

    def sent(self, deployment: Deployment, tokens: int) -> Sent | None:
        """Sent by NIXL: of a window the blocks that it covers, and one more; whole pages.

        Source: ``kv_connector/v1/nixl/{base_scheduler,base_worker}.py``.
        """
        if self.name != host.SINCE or deployment.model.kind == "v41":
            return None
        return sent_of(self.rule(deployment).layout, tokens, clips=True)


def _group(table: LayerGroup, held: LayerGroup, *, cached: bool) -> Group:
    """A table as a rule has it, with the bytes of this rank's layers."""
    page = table.pages[0]
    storage = "window" if page.pool == "window" else f"{page.layer.kind} state"
    return Group(
        "context" if table.whole else storage,
        table.block_tokens,
        None if table.whole else (table.window_tokens or 1) - 1,
        cached or table.whole,
        table.ring,
        (Piece(storage, held.page_bytes, len(held.pages)),),
    )


# ---- workspaces
#
# One workspace is shared by all layers and is as large as the largest request for it, rounded up
# to 256 B a tensor. Of several backends FlashMLA's is known. Source: vLLM 0.33.0: flashmla.py,
# sparse_mla.py and attention.py of models/deepseek_v4, flash_mla_mega_attn.py of
# models/deepseek_v41, model_executor/layers/sparse_attn_indexer.py, v1/worker/workspace.py.

_GATHERED_PROMPTS = 4  # PREFILL_CHUNK_SIZE
_LONG_CONTEXT = 256 * 1024
_RADIX_BYTES = 1024 * 1024
_FLASHINFER_BYTES = 128 * 1024 * 1024  # _FLASHINFER_DSV4_WORKSPACE_BUFFER_SIZE
_TOPK_ALIGN = 128

_Tensor = tuple[int, ...]
"""Its shape, and the bytes of an element."""


def overhead_of(deployment: Deployment, step_tokens: int, *, flashinfer: bool = False) -> Overhead:
    """Workspace and buffers of one rank for a step of so many tokens, by backend."""
    if flashinfer:
        own = Held(
            "workspace of FlashInfer", _FLASHINFER_BYTES, "vLLM 0.33.0: flashinfer_sparse.py"
        )
        return Overhead((own,), (), UNKNOWN.unknown)
    reserve = [
        Held(
            "workspace of prompts",
            workspace_bytes(deployment, step_tokens),
            "vLLM 0.33.0: four prompts' KV in bf16, or keys of the indexer",
        ),
        Held(
            "top-k indices",
            step_tokens * deployment.model.index_topk * 4,
            "vLLM 0.33.0: topk_indices_buffer",
        ),
    ]
    if 128 in deployment.model.compress_ratios:
        reserve.append(
            Held(
                "indices of HCA entries",
                hca_index_bytes(deployment, step_tokens),
                "vLLM 0.33.0: two c128a buffers, for prompts and for decoding",
            )
        )
    return Overhead(tuple(reserve), (), UNKNOWN.unknown)


def workspace_bytes(deployment: Deployment, step_tokens: int) -> int:
    """Bytes of the one workspace."""
    model, context = deployment.model, deployment.max_context_tokens
    ratio = min(filter(None, model.compress_ratios))
    keys = context * (576 * 2 // 132) * (5 if context <= _LONG_CONTEXT else 2) // ratio
    key = deployment.formats.indexer
    wanted = [_sum([(keys, key.value_bytes, 1), (keys, key.scale_bytes, 1), (_RADIX_BYTES, 1)])]
    if model.kind != "flat":
        rows = -(-context // ratio) + model.window_tokens + step_tokens
        chosen = _align(model.index_topk + model.window_tokens, _TOPK_ALIGN)
        gathered = (_GATHERED_PROMPTS, rows, model.head_dim, 2)
        wanted.append(_sum([gathered, (step_tokens, chosen, 4), (step_tokens, 4)]))
    return max(wanted)


def hca_index_bytes(deployment: Deployment, step_tokens: int) -> int:
    """Bytes of two rows of indices and a length for every token of a step."""
    width = _align(-(-deployment.max_context_tokens // 128), _TOPK_ALIGN)
    return step_tokens * (2 * width + 1) * 4


def _sum(tensors: Iterable[_Tensor]) -> int:
    return sum(_align(prod(tensor), 256) for tensor in tensors)


def _align(value: int, step: int) -> int:
    return -(-value // step) * step
