"""vLLM's sizing rules by version.

The number that vLLM prints is no capacity: it is what a pool of blocks holds of requests of
``max_model_len``, each with its reserve for tokens in flight, times ``max_model_len``.
Source: vLLM 0.20.2 to 0.33.0; a refusal of 0.22 (vllm#44376), logs of 0.26 and 0.33.

Blocks of all groups, reported as what each pool costs a request. A block costs the same whichever
group it belongs to; what it is larger than its group's pages is shared among them.

How vLLM splits buckets of layers into groups, and what a block of all groups costs. All groups
draw their blocks from one pool, so a block costs the same in each.
Source: vLLM 0.20 to 0.33, ``kv_cache_utils.py`` and ``kv_cache_planning.py``.

vLLM's start-up lines on the size of the cache, word for word, without their prefixes.
Source: vLLM 0.26.0 and 0.33.0, ``gpu_worker.py``, ``kv_cache_utils.py``, ``kv_cache_planning.py``.

What vLLM takes where nothing is given.
Source: vLLM 0.20 to 0.33: ``EngineArgs.get_batch_defaults``, ``VllmConfig.max_concurrent_batches``
and ``use_v2_model_runner``, ``config/cache.py``, ``envs.py``, ``dsa_indexer_uses_fp4``.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from dsv4kv.engines.contract import (
    DRAFT,
    EVENLY,
    V4_ONLY,
    Capacity,
    Deployment,
    Loaded,
    Loading,
    Plan,
    PoolCost,
    layers_of,
)
from dsv4kv.engines.defaults import (
    GIB,
    MIB,
    UNMEASURED,
    Default,
    Defaults,
    Given,
    LogitsRoom,
    Machine,
)
from dsv4kv.engines.overhead import UNKNOWN, Overhead
from dsv4kv.engines.vllm.overhead import overhead_of
from dsv4kv.engines.vllm.pages import Group, Page, build_buckets, stride_bytes
from dsv4kv.errors import ConfigError

_LARGE = 70 * GIB
_LARGEST = 160 * GIB


@dataclass(frozen=True)
class Batches:
    """What a range of versions batches by default.

    Attributes:
        largest_tokens: ``max_num_batched_tokens`` on a GPU of 160 GiB or more.
        small_gb10: A DGX Spark counts as a small GPU, whatever its memory.
        overlap_stages: With pipeline stages, too, a step is scheduled while others run.
    """

    largest_tokens: int = 8192
    small_gb10: bool = False
    overlap_stages: bool = False


def vllm_defaults(batches: Batches, machine: Machine, given: Given, *, counted: bool) -> Defaults:
    """Every setting that nobody gave; ``counted`` is whether steps that overlap are."""
    tokens, requests, of = _size_batches(batches, machine)
    step = given.get("step_tokens") or tokens
    limit = min(requests, step)
    overlap, why = 1, "this vLLM counts the tokens of one step"
    if counted:
        overlap, why = _overlap(batches, machine)
    return {
        "memory_fraction": Default(Fraction(92, 100), "vLLM's gpu_memory_utilization"),
        "reserve": UNMEASURED,
        "step_tokens": Default(tokens, f"vLLM's max_num_batched_tokens on {of}"),
        "overlap": Default(overlap, why),
        "request_limit": Default(limit, f"vLLM's max_num_seqs on {of}, of every replica"),
        "logits_limit": Default(512 * MIB, "vLLM's VLLM_SPARSE_INDEXER_MAX_LOGITS_MB"),
    }


def _size_batches(batches: Batches, machine: Machine) -> tuple[int, int, str]:
    """Tokens of a step and requests at once, of the API server, and on which GPUs."""
    small = machine.gpu.startswith("a100") or (batches.small_gb10 and machine.gpu == "gb10")
    if machine.memory_bytes >= _LARGEST and batches.largest_tokens > 8192:
        return batches.largest_tokens, 1024, "GPUs of 160 GiB or more"
    if machine.memory_bytes >= _LARGE and not small:
        return 8192, 1024, "GPUs of 70 GiB or more"
    return 2048, 256, f"{machine.gpu}" if small else "GPUs below 70 GiB"


def _overlap(batches: Batches, machine: Machine) -> tuple[int, str]:
    if machine.pp == 1:
        return 2, "vLLM schedules a step while one runs (async_scheduling)"
    if batches.overlap_stages:
        return machine.pp + 1, "a step in every stage of the pipeline, and one scheduled"
    return machine.pp, "a step in every stage of the pipeline"


_Kind = tuple[str, str]  # pool and layer type


def costs_of(
    groups: Sequence[Group], unit_bytes: int, deployment: Deployment
) -> tuple[PoolCost, ...]:
    """Costs by pool; they add up to the bytes of all blocks of a request of whole blocks."""
    full, *others = groups
    return (*_context_costs(full, unit_bytes), *_window_costs(others, unit_bytes, deployment))


def _context_costs(full: Group, unit_bytes: int) -> list[PoolCost]:
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
    groups: Sequence[Group], unit_bytes: int, deployment: Deployment
) -> list[PoolCost]:
    """Windows and states: the blocks of steady decode, and what tokens in flight add."""
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


def _share(total_bytes: int, group: Group) -> dict[_Kind, int]:
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


Grouping = Literal["tuples", "patterns"]
Packing = Literal["tuples", "slots", "widest"]


def split_buckets(buckets: Sequence[Group], grouping: Grouping, *, pad: bool) -> list[Group]:
    """The groups of a model: the full-context bucket whole, the others in nearly equal parts.

    Args:
        buckets: Full context first.
        grouping: How the parts' size is found: ``tuples`` up to 0.28, ``patterns`` from 0.29.
        pad: Window and state pages take the size of the next larger full-context page, so that
            they can share its place (up to 0.26).

    Raises:
        ConfigError: A window or state page larger than every full-context page, when padding.
    """
    full, *others = buckets
    if grouping == "tuples":
        divisor = closest_divisor([bucket.repeats for bucket in buckets], full.repeats)
        tuples = [_layer_tuples(_padded(bucket, full) if pad else bucket) for bucket in others]
        counts = [-(-len(bucket.rows) // divisor) for bucket in tuples]
    else:
        tuples, (_, *counts) = others, _part_counts(buckets)
    parts = [
        replace(bucket, rows=bucket.rows[i::count])
        for bucket, count in zip(tuples, counts, strict=True)
        for i in range(count)
    ]
    return [full, *parts]


def closest_divisor(counts: Sequence[int], lowest: int) -> int:
    """The d, from ``lowest`` up, that pads the counts to multiples of d with least padding.

    Of several, the largest.
    """
    return min(
        range(max(lowest, 1), max(*counts, lowest) + 1),
        key=lambda d: (sum(-count % d for count in counts), -d),
    )


def block_bytes(groups: Sequence[Group], packing: Packing, full: Group) -> int:
    """Bytes of one block over all held layers, whichever group it belongs to.

    Args:
        groups: With this rank's pages, full context first.
        packing: The rule.
        full: The full-context group of the whole model, whose page sizes ``tuples`` falls back to.
    """
    if packing == "widest":
        return max(group.page_bytes for group in groups)
    if packing == "tuples":
        sizes = groups[0].sizes or full.sizes
        return sum(sizes) * max(group.repeats for group in groups)
    slots: Counter[int] = Counter()
    for group in groups:
        slots |= group.sizes
    return sum(size * count for size, count in slots.items())


def _layer_tuples(bucket: Group) -> Group:
    """The same pages in rows of one page of each size; padded alike, a layer's two become two."""
    by_size: dict[int, list[Page]] = {}
    for page in bucket.pages:
        by_size.setdefault(page.page_bytes, []).append(page)
    return replace(bucket, rows=tuple(zip(*by_size.values(), strict=True)))


def _part_counts(buckets: Sequence[Group]) -> list[int]:
    """Buckets of equally many pages of each size repeat a pattern; mixed ones stay whole."""
    balanced = [bucket for bucket in buckets if len(set(bucket.sizes.values())) == 1]
    lowest = max((bucket.repeats for bucket in balanced if len(bucket.sizes) > 1), default=0)
    if not lowest:
        return _state_parts(buckets)
    divisor = closest_divisor([bucket.repeats for bucket in balanced], lowest)
    return [-(-bucket.repeats // divisor) if bucket in balanced else 1 for bucket in buckets]


def _state_parts(buckets: Sequence[Group]) -> list[int]:
    """Without a pattern, windows and states fill what a block must hold anyway."""
    anchor = max(
        bucket.page_bytes if bucket.whole else bucket.pages[0].page_bytes for bucket in buckets
    )
    return [
        1 if bucket.whole else -(-len(bucket.pages) // (anchor // bucket.pages[0].page_bytes))
        for bucket in buckets
    ]


def _padded(bucket: Group, full: Group) -> Group:
    rows = tuple(tuple(_pad(page, full) for page in row) for row in bucket.rows)
    return replace(bucket, rows=rows)


def _pad(page: Page, full: Group) -> Page:
    larger = [size for size in full.sizes if size >= page.page_bytes]
    if not larger:
        raise ConfigError(
            f"this vLLM keeps a {page.pool} page of {page.page_bytes:,} B in the place of a page "
            f"of compressed KV, of which the largest has {max(full.sizes):,} B: "
            "it needs a CSA layer, and blocks of 256 tokens or more."
        )
    return replace(page, page_bytes=min(larger))


GIB = 2**30
_DOCS = "https://docs.vllm.ai/en/latest/configuration/conserving_memory/"


def size_lines(
    available_bytes: int, tokens: int, context: int, concurrency: float, *, one_line: bool
) -> tuple[str, ...]:
    """The memory, and the number that stands for it."""
    size = f"GPU KV cache size: {tokens:,} tokens"
    most = f"Maximum concurrency for {context:,} tokens per request: {concurrency:.2f}x"
    memory = f"Available KV cache memory: {_gib(available_bytes)} GiB"
    return (memory, f"{size}, {most}") if one_line else (memory, size, most)


def refusal_lines(
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


@dataclass(frozen=True)
class Release:
    """Rules of a range of versions.

    Attributes:
        newest: The version they are called after.
        oldest: The first version that has them.
        grouping: How window groups are cut.
        packing: What makes the bytes of a block.
        weighted: A request's need is weighted by each group's bytes, against the full group's;
            otherwise its blocks are counted.
        batches_counted: Every batch that runs at once has its tokens in flight.
        one_line: Tokens and concurrency are logged in one line.
        null_block: The check at start keeps one block back.
        seen_in_logs: Compared with published start-up logs.
        kinds: Generations of models it serves.
        batches: What is batched by default.
    """

    newest: str
    oldest: str
    grouping: Grouping = "tuples"
    packing: Packing = "slots"
    weighted: bool = True
    batches_counted: bool = True
    one_line: bool = False
    null_block: bool = False
    seen_in_logs: bool = False
    kinds: tuple[str, ...] = V4_ONLY
    batches: Batches = field(default_factory=Batches)


@dataclass(frozen=True)
class Layout:
    """The blocks of one rank.

    Attributes:
        groups: Of the whole model.
        held: The same groups with this rank's layers only.
        unit_bytes: Bytes of one block.
    """

    groups: tuple[Group, ...]
    held: tuple[Group, ...]
    unit_bytes: int

    @property
    def weighed(self) -> list[Group]:
        """What vLLM weighs a request by: a group without a layer here as in the whole model."""
        pairs = zip(self.held, self.groups, strict=True)
        return [held if held.rows else group for held, group in pairs]

    def blocks(self, tokens: int, in_flight_tokens: int) -> int:
        """Blocks that a request really takes, over all groups."""
        return sum(group.blocks(tokens, in_flight_tokens) for group in self.groups)


@dataclass(frozen=True)
class VllmEngine:
    """One range of vLLM's versions."""

    release: Release

    @property
    def name(self) -> str:
        """As users write it."""
        return f"vllm:{self.release.newest}"

    @property
    def seen_in_logs(self) -> bool:
        """Whether published logs agree with the rules."""
        return self.release.seen_in_logs

    logits_room: LogitsRoom = "profiled"
    unit: str = "block"
    shares_limits: bool = False

    def defaults(self, machine: Machine, given: Given) -> Defaults:
        """What vLLM takes where nothing is given."""
        counted = self.release.batches_counted
        return vllm_defaults(self.release.batches, machine, given, counted=counted)

    def overhead(self, deployment: Deployment, step_tokens: int, plan: Plan) -> Overhead:
        """Workspace and buffers of the version that was read."""
        if self.release.newest != "0.33":
            return UNKNOWN
        backend = str(plan.given.get("attention_backend") or "")
        return overhead_of(deployment, step_tokens, flashinfer="FLASHINFER" in backend.upper())

    def loading(self, arch: str | None) -> Loading:
        """An even share: copies of small matrices are not counted."""
        del arch
        return EVENLY

    def stage_layers(self, layers: int, stages: int) -> tuple[int, ...]:
        """Those left over go to the stages before the last (``get_pp_indices``)."""
        size, extra = divmod(layers, stages)
        return tuple(size + (stages - 1 - extra <= s < stages - 1) for s in range(stages))

    def starved(self, loaded: Loaded) -> str:
        """The refusal before any block is counted (``kv_cache_planning.py``)."""
        del loaded
        return (
            "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` "
            "when initializing the engine"
        )

    def layout(self, deployment: Deployment) -> Layout:
        """Groups and bytes of a block; raises ``ConfigError`` for what vLLM does not serve."""
        # neither context nor load decides the layout: searches ask for thousands of both
        key = replace(deployment, max_context_tokens=1, in_flight_tokens=1, concurrency=None)
        return _lay_out(self.release, key)

    def costs(self, deployment: Deployment) -> tuple[PoolCost, ...]:
        """Every pool's share of the blocks that one request takes."""
        layout = self.layout(deployment)
        return costs_of(layout.held, layout.unit_bytes, deployment)

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
        weights = [group.page_bytes for group in layout.weighed]
        need = sum(
            group.blocks(tokens, flight) * weight
            for group, weight in zip(layout.groups, weights, strict=True)
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
        lines = refused or size_lines(
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
        """The lines of a start that fails, or none."""
        context = deployment.max_context_tokens
        checked = available_bytes
        if self.release.null_block:
            checked -= self.layout(deployment).unit_bytes
        if checked > 0 and self.needed_bytes(deployment, context) <= checked:
            return ()
        fitting, refused = 0, context
        while refused - fitting > 1:
            middle = (fitting + refused) // 2
            if self.needed_bytes(deployment, middle) <= checked:
                fitting = middle
            else:
                refused = middle
        needed = self.needed_bytes(deployment, context)
        return refusal_lines(available_bytes, checked, needed, context, fitting)

    def needed_bytes(self, deployment: Deployment, tokens: int) -> int:
        """What the check at start asks for one request; not what the log counts with."""
        layout = self.layout(deployment)
        unit = (
            layout.unit_bytes
            if self.release.grouping == "patterns"
            else block_bytes(layout.weighed, "tuples", layout.groups[0])
        )
        return unit * layout.blocks(tokens, deployment.in_flight_tokens)


@lru_cache(maxsize=256)
def _lay_out(release: Release, deployment: Deployment) -> Layout:
    layers = layers_of(deployment, f"vllm:{release.newest}", release.kinds)
    buckets = build_buckets(deployment, layers)
    groups = split_buckets(buckets, release.grouping, pad=release.weighted)
    held = [group.on_this_rank() for group in groups]
    unit = block_bytes(held, release.packing, groups[0])
    if not unit:
        raise ConfigError("this rank holds no layer with a cache: give it at least one layer.")
    stride = stride_bytes(deployment)
    return Layout(tuple(groups), tuple(held), -(-unit // stride) * stride)


RELEASES: Sequence[Release] = (
    Release("0.22", "0.20", packing="tuples", batches_counted=False, seen_in_logs=True),
    Release("0.25", "0.23", batches_counted=False),
    Release("0.26", "0.26", seen_in_logs=True),
    Release("0.27", "0.27", packing="widest", weighted=False),
    Release(
        "0.28",
        "0.28",
        packing="widest",
        weighted=False,
        one_line=True,
        batches=Batches(largest_tokens=16_384, overlap_stages=True),
    ),
    Release(
        "0.33",
        "0.29",
        grouping="patterns",
        packing="widest",
        weighted=False,
        one_line=True,
        null_block=True,
        seen_in_logs=True,
        kinds=("v4", "v41", "flat"),
        batches=Batches(largest_tokens=16_384, small_gb10=True, overlap_stages=True),
    ),
)
V0_22, V0_25, V0_26, V0_27, V0_28, V0_33 = (VllmEngine(release) for release in RELEASES)
