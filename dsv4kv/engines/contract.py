"""Engines that size caches: inputs and results, in exact integers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple

from dsv4kv.engines.rule import EVERYWHERE, Family, Group, Layout, Policy, Rule
from dsv4kv.errors import ConfigError
from dsv4kv.model.config import AttentionType, DSV4Config, LayerSpec, build_schedule
from dsv4kv.model.plan import CacheFormats

MIB, GIB = 2**20, 2**30

LogitsRoom = Literal["share", "profiled", "headroom"]
"""Where the indexer's logits of a step are allocated: in a GPU's usable share as needed, there
at their limit before the cache is sized, or in what the share leaves free."""


@dataclass(frozen=True)
class Machine:
    """The GPUs of a deployment when its engine starts; ``dp`` counts replicas in one server."""

    gpu: str
    memory_bytes: int  # as the driver reports it, by which engines choose their defaults
    tp: int = 1
    dp: int = 1
    pp: int = 1
    kind: str = "v4"
    arch: str | None = None


class Default(NamedTuple):
    """A default value, its reason, and what nine in ten are within, where it is an estimate."""

    value: Any
    reason: str
    spread: int = 0


Given = Mapping[str, Any]
"""Given settings by the name of the input."""
Defaults = dict[str, Default]
"""By the name of the input; ``step_tokens`` and ``request_limit`` as the engine takes them."""

SHARE, RESERVE = Fraction(9, 10), 4 * GIB
"""The toolkit's own usable share of a GPU, and its reserve for all but weights and cache."""
UNMEASURED = Default(RESERVE, "activations, graphs, communication: this toolkit's guess", 3 * GIB)


class Held(NamedTuple):
    """Memory held for one purpose, and the version and file that say so."""

    what: str
    size_bytes: int
    source: str


class Overhead(NamedTuple):
    """Memory known to be held in the usable share and in the headroom; names of the unknown."""

    reserve: tuple[Held, ...]
    headroom: tuple[Held, ...]
    unknown: tuple[str, ...]


UNKNOWN = Overhead((), (), (
    "activations of a step", "workspaces of experts", "CUDA graphs", "buffers of NCCL and DeepEP",
    "CUDA context",
))  # fmt: skip


@dataclass(frozen=True)
class Deployment:
    """One replica of a model on one rank (GPU): what an engine sizes."""

    model: DSV4Config
    formats: CacheFormats
    max_context_tokens: int
    # tokens one request may have in flight: step tokens times concurrent batches (up to vLLM 0.25,
    # of one batch)
    in_flight_tokens: int
    layers: tuple[int, ...] | None = None  # that this rank holds, without drafts; None for all
    draft_layers: int = 0
    concurrency: int | None = None  # requests to be served concurrently; None without a limit
    block_tokens: int | None = None  # tokens of context in a block; None takes the engine's own
    state_bytes: int = 4  # of an element of the compressor state: 4 or 2 (bfloat16)
    online_state: bool = False  # HCA keeps its state as a running softmax
    draft_tokens: int = 0
    window_ratio: float | None = None  # SGLang's ``swa_full_tokens_ratio``
    arch: str | None = None  # what the GPU's kernels are compiled for: ``sm_90``
    # In SGLang, a running request's slots out of the window are ``freed`` or ``kept``, or it has
    # windows of its ``own`` (V4.1's encoder replay)
    window_slots: str | None = None
    # V4.1 recomputes windows behind a hit (vLLM), or runs late layers on a prompt's last window
    # alone (SGLang); None is the version's own
    bounded_replay: bool | None = None
    prefix_cache: bool = True
    overlap: bool = True
    role: str | None = None
    hisparse_ratio: int = 1  # compressed entries of CSA layers for one on the GPU
    extra_slots: int = 0
    stage: int = 0
    cache_dtype: str = "auto"
    unified_slots: bool = False  # llama.cpp's have the whole context each


class Start(NamedTuple):
    """A rank when its engine starts."""

    deployment: Deployment
    step_tokens: int
    machine: Machine
    given: Given


@dataclass(frozen=True)
class PoolCost:
    """What one kind of storage costs on one rank, over all layers of one type."""

    pool: str  # ``main``, ``indexer``, ``window``, ``state`` or ``tables``
    layer_type: str  # ``swa``, ``csa``, ``hca``, ``dsa``, ``draft`` or ``all``
    layers: int
    fixed_bytes: int = 0  # per request, whatever its length, in steady decode
    in_flight_bytes: int = 0  # per request on top, reserved for the tokens in flight
    marginal_bytes: Fraction = Fraction(0)  # per token of context, useful bytes only
    padding_bytes: Fraction = Fraction(0)  # per token on top, lost in full pages
    shared_bytes: int = 0  # held once, however many requests run


@dataclass(frozen=True)
class Capacity:
    """What fits into the memory an engine is given."""

    cache_bytes: int
    units: int  # blocks (or, for SGLang, full tokens) that fit
    unit_bytes: Fraction  # bytes of one of them, over all layers
    units_per_request: Fraction  # of one request of ``max_context_tokens``, reserve included
    printed_tokens: int | None  # that the engine prints; None where it prints none
    concurrency: Fraction  # requests of ``max_context_tokens`` that it counts to fit
    log_lines: tuple[str, ...]  # the lines the engine logs, word for word, without prefixes
    note: str = ""  # which of several pools binds, in a sentence


@dataclass(frozen=True)
class Loading:
    """What an engine loads of V4 beyond an even share of the checkpoint."""

    # every tensor parallel rank holds a copy of what heads cannot split: projections to the
    # query's latent and KV head, compressors, indexer, router, hyper-connections
    copies: bool = False
    widens_output: bool = False  # the first of the output's two projections is unpacked to bf16
    draft_heads: bool = False  # drafts have an own embedding and head when the cache is sized
    expert_step: int = 0  # slices of experts are padded to a multiple of this many channels
    held_bytes: int = 0  # tables and buffers of every rank that are there before a step runs


EVENLY = Loading()


# ---- outside the GPU: what engines keep in host memory, and send of prompts


@dataclass(frozen=True)
class HostWish:
    """The host memory that is asked for."""

    tier: str
    ratio: Fraction | None = None
    size_bytes: int | None = None  # memory that the tier is given, as its engine counts it
    memory_bytes: int | None = None  # memory that is free on a node before the engine starts
    layout: str = "page_first"
    storage: str | None = None
    ranks: int = 1
    tp: int = 1
    replica_ranks: int = 1
    node_replicas: int = 1
    retention: int | None = 0  # tokens between kept windows; None keeps every block's
    chunk_tokens: int | None = None


@dataclass(frozen=True)
class HostPool:
    """One pool of one rank."""

    name: str
    pages: int
    page_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.pages * self.page_bytes


@dataclass(frozen=True)
class Sent:
    """What a rank of a prefill side sends of a prompt, in pages of layers' buffers."""

    bytes: int
    descriptors: int


@dataclass(frozen=True)
class HostTier:
    """What one rank or replica keeps in host memory."""

    name: str
    pools: tuple[HostPool, ...]
    copies: int  # ranks or replicas of a node that have such pools, each its own
    keeps: dict[str, int]  # what the pools hold, in words and counts
    holder: str = "rank"  # whose the pools are: ``rank``, ``replica`` or ``server``
    notes: tuple[str, ...] = ()
    gpu_bytes: int = 0  # what it takes of a GPU outside the cache
    refusal: str = ""  # why the engine does not start with it; empty where it does

    @property
    def holder_bytes(self) -> int:
        return sum(pool.total_bytes for pool in self.pools)

    @property
    def node_bytes(self) -> int:
        return self.copies * self.holder_bytes


@dataclass(frozen=True)
class Offloaded:
    """What a tier keeps of a prompt; a pool's ``pages`` are objects, moved one at a time."""

    context: tuple[HostPool, ...]  # of ``blocks`` blocks, which are kept and found together
    tail: tuple[HostPool, ...] = ()  # windows and states at a place to resume at
    blocks: int = 1
    ends_inside: bool = False  # the windows and states at its end are in ``context``

    @property
    def context_bytes(self) -> int:
        return sum(pool.total_bytes for pool in self.context)

    @property
    def tail_bytes(self) -> int:
        return sum(pool.total_bytes for pool in self.tail)

    def operations(self, contexts: int, tails: int) -> int:
        pages = (sum(pool.pages for pool in pools) for pools in (self.context, self.tail))
        return sum(count * each for count, each in zip((contexts, tails), pages, strict=True))


def objects_of(layout: Layout, align: int = 1) -> Offloaded:
    """Objects of a block of context, and of a boundary's windows and states.

    In one pool for all groups a block is an object, its bytes a multiple of ``align``; in separate
    pools every part of a block is one.
    """
    full, *others = layout.groups
    behind = [group for group in others if group.cached and not group.ring]
    if not layout.unit_bytes:
        context, places = (
            tuple(HostPool(each.name, 1, each.block_bytes) for g in groups for each in g.pieces)
            for groups in ([full], behind)
        )
        return Offloaded(context, places)
    size = -(-layout.unit_bytes // align) * align
    tail = sum(group.needed for group in behind)
    pools = (HostPool("windows and states", tail, size),) if tail else ()
    return Offloaded((HostPool("context", 1, size),), pools)


def sent_of(layout: Layout, tokens: int, *, clips: bool = False) -> Sent:
    """Bytes of a prompt that a rank sends: whole blocks, and those that a window covers.

    With ``clips`` as many blocks of a window as it may ever cover.
    """
    size = descriptors = 0
    for group in layout.groups:
        grain, blocks = group.block_tokens, -(-tokens // group.block_tokens)
        if group.seen_tokens is not None and clips:
            blocks = min(blocks, -(-(group.seen_tokens + 1) // grain) + 1)
        elif group.seen_tokens is not None:
            blocks -= max(0, tokens - group.seen_tokens) // grain
        size += blocks * group.block_bytes
        descriptors += blocks * group.buffers
    return Sent(size, descriptors)


# ---- engines


def rope_bytes(deployment: Deployment) -> int:
    """Angles of all positions in float32: one table for windows alone, one for the others."""
    model = deployment.model
    return 2 * model.max_context_tokens * model.rope_dim * 4


class Engine(ABC):
    """One version of an engine: pure functions of a deployment, which raise ``ConfigError``."""

    family: ClassVar[Family]
    name: str
    seen_in_logs: bool = False  # sizes were checked against published logs, too
    own: ClassVar[bool] = False  # it is this toolkit's cache
    logits_room: ClassVar[LogitsRoom] = "share"
    unit: ClassVar[str] = "block"  # what ``Capacity`` counts: ``block``, ``full token``
    block_tokens: ClassVar[int] = 128
    holds_chunks: bool = False  # a request holds windows of its prompt's last chunk
    shares_limits: ClassVar[bool] = False  # step tokens and limit are of all replicas
    shares_rest: ClassVar[bool] = False  # its share is of what weights and a step leave
    counts_batches: bool = True  # every step that overlaps has its tokens in flight

    @abstractmethod
    def costs(self, deployment: Deployment) -> tuple[PoolCost, ...]:
        """Every pool's fixed, in-flight and marginal bytes."""

    @abstractmethod
    def request_bytes(self, deployment: Deployment, tokens: int, *, in_flight: int) -> int:
        """Bytes of whole blocks that a request takes, with the reserve for tokens in flight."""

    @abstractmethod
    def capacity(self, deployment: Deployment, available_bytes: int) -> Capacity:
        """What fits into ``available_bytes`` of one rank."""

    def shared_bytes(self, deployment: Deployment) -> int:
        """Bytes held once, before any request."""
        return 0

    def blocks(self, deployment: Deployment, units: int) -> tuple[int, int | None]:
        """Blocks of context, and pages of windows where these have a pool of their own."""
        return units, None

    def decode_pool_tokens(self, deployment: Deployment, requests: int) -> int | None:
        """The smallest pool of a decode side whose requests are never retracted."""
        return None

    def rule(self, deployment: Deployment, flags: Given | None = None) -> Rule:
        """How prefixes are kept and found; ``flags`` are settings that choose a variant."""
        self.costs(deployment)  # says what the engine does not serve
        model = deployment.model
        block = deployment.block_tokens or self.block_tokens
        groups = [Group("context", block)]
        if model.kind != "flat":
            groups += [Group("window", block, model.window_tokens), Group("csa state", block, 8)]
        return Rule(Layout(tuple(groups), 0, model.window_tokens), EVERYWHERE, Policy())

    def defaults(self, machine: Machine, given: Given) -> Defaults:
        own = "this toolkit's"
        return {
            "memory_fraction": Default(SHARE, own),
            "reserve": UNMEASURED,
            "step_tokens": Default(8192, own),
            "overlap": Default(1, own),
            "logits_limit": Default(512 * MIB, "engines score a chunk in pieces, as vLLM does"),
        }

    def overhead(self, start: Start) -> Overhead:
        """Memory of a GPU that is neither weights nor cache, as far as it is known."""
        return UNKNOWN

    def reserve(self, start: Start) -> Default | None:
        """Bytes that a rank keeps for all but weights, cache and logits; None where not fitted."""
        return None

    def loading(self, deployment: Deployment, step_tokens: int) -> Loading:
        """Weights that it loads on a GPU beyond an even share of them."""
        return EVENLY

    def stage_layers(self, layers: int, stages: int) -> tuple[int, ...]:
        """Layers of every pipeline stage; the first stages take the remainder."""
        size, extra = divmod(layers, stages)
        return tuple(size + (stage < extra) for stage in range(stages))

    def starved(self, free_bytes: int, weight_bytes: int, fraction: Fraction) -> str:
        """The line it prints when weights leave nothing for a cache; empty where not known."""
        return ""

    def host_tier(self, deployment: Deployment, capacity: Capacity, wish: HostWish) -> HostTier:
        if not self.family.host_tiers:
            raise ConfigError(f"--host-tier {wish.tier}: {self.name} has none.")
        tier: HostTier = self.family.load("host").size_tier(self, deployment, capacity, wish)
        return tier

    def objects(
        self, deployment: Deployment, retention: int | None, chunk_tokens: int | None
    ) -> Offloaded:
        """Objects of a prompt in a lower tier; in chunks of LMCache where their size is given."""
        if not self.family.host_tiers:
            raise ConfigError(f"what {self.name} keeps beyond the GPU is not known.")
        find = self.family.load("host").find_objects
        kept: Offloaded = find(self, deployment, retention, chunk_tokens)
        return kept

    def sent(self, deployment: Deployment, tokens: int) -> Sent | None:
        """Bytes of a prompt that a prefill rank sends to decode; None where not known."""
        return None


class SlotEngine(Engine):
    """An engine whose slots are allocated whole at start: requests take nothing more.

    ``usual_step`` is the tokens of a step, unless given.
    """

    unit = "slot"
    usual_step: ClassVar[int] = 512

    @abstractmethod
    def slot_parts(self, deployment: Deployment, tokens: int) -> dict[str, int]:
        """Bytes of one slot of a context, by buffer."""

    host_bytes: ClassVar[int]

    @abstractmethod
    def saved_bytes(self, deployment: Deployment, tokens: int) -> int:
        """Bytes of a prompt that has lost its slot, of which ``host_bytes`` keep some."""

    @abstractmethod
    def note(self, deployment: Deployment) -> str:
        """What the slots are, in a sentence."""

    def slots(self, deployment: Deployment) -> int:
        return deployment.concurrency or 1

    def shared_bytes(self, deployment: Deployment) -> int:
        parts = self.slot_parts(deployment, deployment.max_context_tokens)
        return self.slots(deployment) * sum(parts.values())

    def request_bytes(self, deployment: Deployment, tokens: int, *, in_flight: int) -> int:
        return 0

    def blocks(self, deployment: Deployment, units: int) -> tuple[int, int | None]:
        """Blocks of all slots that are allocated, and the most that would be used."""
        blocks = -(-deployment.max_context_tokens // self.block_tokens)
        return min(units, self.slots(deployment)) * blocks, None

    def capacity(self, deployment: Deployment, available_bytes: int) -> Capacity:
        slot = sum(self.slot_parts(deployment, deployment.max_context_tokens).values())
        units = max(0, available_bytes) // slot
        return Capacity(
            cache_bytes=units * slot,
            units=units,
            unit_bytes=Fraction(slot),
            units_per_request=Fraction(1),
            printed_tokens=None,
            concurrency=Fraction(units),
            log_lines=(),
            note=self.note(replace(deployment, layers=None)),
        )


V4_ONLY = ("v4",)
_RATIOS = {"v4": {0, 4, 128}, "v41": {0, 1, 2}, "flat": {1}}


@lru_cache(maxsize=256)
def layers_of(
    deployment: Deployment, engine: str, kinds: tuple[str, ...] = V4_ONLY
) -> tuple[LayerSpec, ...]:
    """Every layer of the model and the drafts of this rank; ``ConfigError`` for other models."""
    model, kind = deployment.model, deployment.model.kind
    unlike = set(model.compress_ratios) - _RATIOS[kind]
    shared = (model.kv_owners is not None) != (kind == "v41")
    if kind not in kinds or unlike or shared:
        others = ", of V4.1 (ratio 0, 1 and 2, with owners) and of V3.2"
        raise ConfigError(
            f"the rules of {engine} describe DeepSeek-V4 (layers of ratio 0, 4 and 128, each "
            f"with its own cache){others if len(kinds) > 1 else ''}, which {model.name} is not: "
            "choose such a model, another version, or the engine dsv4kv."
        )
    drafts = range(model.num_layers, model.num_layers + deployment.draft_layers)
    swa = AttentionType.SWA
    return (*build_schedule(model), *(LayerSpec(n, swa, 0, n, is_draft=True) for n in drafts))


@lru_cache(maxsize=256)
def held_layers(
    deployment: Deployment, engine: str, kinds: tuple[str, ...] = V4_ONLY
) -> tuple[LayerSpec, ...]:
    """Layers of this rank, its drafts last; raises as ``layers_of``."""
    every = layers_of(deployment, engine, kinds)
    if deployment.layers is None:
        return every
    held = {spec.layer_idx for spec in build_schedule(deployment.model, layers=deployment.layers)}
    return tuple(layer for layer in every if layer.is_draft or layer.layer_idx in held)
