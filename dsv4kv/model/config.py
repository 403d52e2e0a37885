"""The model as its cache needs it: sizes, formats, rotary frequencies, and its layers."""

import functools
import math
import struct
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dsv4kv.errors import ConfigError

Positive = Annotated[int, Field(gt=0, lt=2**31)]
Layers = Annotated[int, Field(gt=0, le=1024)]
NonNegative = Annotated[int, Field(ge=0)]


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Yarn(_Frozen):
    """YaRN stretching of the rotary frequencies (no magnitude scaling)."""

    factor: float = 16.0
    original_max_position: Positive = 65536
    beta_fast: float = 32.0
    beta_slow: float = 1.0


class DefaultFormats(_Frozen):
    """The formats the model is served with when a configuration names none."""

    main: str = "fp8_ds_mla"
    window: str = "fp8_ds_mla"
    indexer: str = "mxfp4"


class Candidates(_Frozen):
    """Blocks of entries that one layer's indexer selects first, for the index layers after it."""

    source: NonNegative
    blocks: Positive
    block_entries: Positive


class DSV4Config(_Frozen):
    """Facts of a model that decide its cache.

    ``compress_ratios`` has one number per layer, draft layers last: 0 is sliding window only,
    128 is HCA, smaller ones are CSA. With ``architecture`` ``flat`` (DeepSeek-V3.2) every layer
    keeps one entry per token, without window or compressor state.
    Source: DeepSeek-V4 technical report, arXiv:2606.19348, and the published config.json files.
    """

    name: str
    architecture: Literal["v4", "flat"] = "v4"
    num_layers: Layers
    hidden_size: Positive
    num_heads: Positive
    head_dim: Positive = 512
    rope_dim: Positive = 64
    window_tokens: Positive = 128
    compress_ratios: tuple[Literal[0, 1, 2, 4, 128], ...]
    kv_owners: tuple[int, ...] | None = None
    """Layers that own compressed KV and indexer keys; others read the nearest owner before them
    (DeepSeek-V4.1). Null: every compressed layer owns its own."""
    index_sources: tuple[int, ...] | None = None
    """Layers whose indexer selects the top k; the layers after them take what it selected. Null:
    every layer with indexer keys selects its own."""
    candidates: Candidates | None = None
    """What narrows the choice of the later index layers; null: every visible entry is scored."""
    num_hash_layers: NonNegative = 0
    """Layers, from the first on, that route tokens to experts by a table of token ids; the others
    score the experts."""
    index_heads: Positive = 64
    index_dim: Positive = 128
    index_topk: Positive
    max_context_tokens: Positive = 1_048_576
    norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    compress_rope_theta: float = 160_000.0
    yarn: Yarn = Yarn()
    formats: DefaultFormats = DefaultFormats()
    source: str = ""

    @property
    def num_draft_layers(self) -> int:
        """Draft (MTP) layers after the model's own."""
        return len(self.compress_ratios) - self.num_layers

    @functools.cached_property
    def kind(self) -> Literal["v4", "v41", "flat"]:
        """Generation by its cache: V4.1 compresses by 1 and 2, V3.2 (flat) not at all."""
        if self.architecture == "flat":
            return "flat"
        return "v41" if {1, 2} & set(self.compress_ratios) else "v4"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.num_draft_layers < 0:
            raise ValueError(
                f"compress_ratios has {len(self.compress_ratios)} entries for "
                f"{self.num_layers} layers: it needs one per layer, then one per draft layer"
            )
        for owner in self.kv_owners or ():
            if not 0 <= owner < self.num_layers or self.compress_ratios[owner] == 0:
                raise ValueError(f"kv_owners names layer {owner}, which has no compressed KV")
        for index in self.index_sources or ():
            if not 0 <= index < self.num_layers or self.compress_ratios[index] == 0:
                raise ValueError(f"index_sources names layer {index}, which has no compressed KV")
        return self


Precision = Literal["float32", "float64"]
"""What position × frequency is formed in: float32 as engines do, or float64."""


@functools.cache
def inverse_frequencies(config: DSV4Config, ratio: int, precision: Precision) -> tuple[float, ...]:
    """Angle per position of each of the ``rope_dim / 2`` interleaved pairs, in radians.

    Layers without compression (ratio 0) rotate plainly with θ = 10,000; everything in a
    compressed layer, its window included, uses θ = 160,000 with YaRN. Every step is rounded to
    the precision: in float32 the bits equal the engines', which at position 2^20 decide about
    0.06 radians.
    Source: DeepSeek-V4 reference inference code and config.json (rope_scaling); vLLM 0.33.0
    (deepseek_scaling_rope.py) and SGLang 0.5.23 (dsv4/rope.py) for the steps.
    """
    theta = config.compress_rope_theta if ratio else config.rope_theta
    to, dim = _ROUNDED[precision], config.rope_dim
    plain = [to(1 / to(theta ** to(2 * i / dim))) for i in range(dim // 2)]
    return tuple(_stretch(plain, theta, dim, config.yarn, precision) if ratio else plain)


def _stretch(
    plain: list[float], theta: float, dim: int, yarn: Yarn, precision: Precision
) -> list[float]:
    """Divide slow frequencies by the factor, keep fast ones, blend linearly in between."""

    def pair_of(rotations: float) -> float:
        span = yarn.original_max_position / (rotations * 2 * math.pi)
        return dim * math.log(span) / (2 * math.log(theta))

    to = _ROUNDED[precision]
    low = max(math.floor(pair_of(yarn.beta_fast)), 0)
    high = min(math.ceil(pair_of(yarn.beta_slow)), dim - 1)
    stretched = []
    for i, frequency in enumerate(plain):
        kept = to(1 - min(max(to((i - low) / max(high - low, 0.001)), 0.0), 1.0))
        slow = to(to(frequency / yarn.factor) * to(1 - kept))
        stretched.append(to(slow + to(frequency * kept)))
    return stretched


def _to_float32(value: float) -> float:
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


_ROUNDED: dict[Precision, Callable[[float], float]] = {"float32": _to_float32, "float64": float}


# ---- the layer schedule: which attention each layer runs and whose KV it reads ------------------


class AttentionType(StrEnum):
    """Attention of a layer."""

    SWA = "swa"
    """Sliding window only."""
    CSA = "csa"
    """Compressed sparse attention: overlapping compression and a top-k indexer."""
    HCA = "hca"
    """Heavily compressed attention: 128 tokens an entry, all entries read."""
    DSA = "dsa"
    """DeepSeek-V3.2's sparse attention: one uncompressed entry per token."""


HCA_RATIO = 128
DRAFT = "draft"


@dataclass(frozen=True)
class LayerSpec:
    """One layer of the model."""

    layer_idx: int  # index in the whole model; a pipeline stage does not start at 0
    attn: AttentionType  # attention type
    ratio: int  # tokens per compressed entry; 0 without compressed KV
    kv_owner: int  # layer whose compressed KV and indexer keys this one reads
    is_draft: bool = False  # a draft (MTP) layer
    # experts are chosen by a table of token ids, not by scores of the hidden state
    routes_by_id: bool = False
    # whether its indexer selects the top k; else it takes what a layer before selected
    selects: bool = True
    kind: str = field(init=False, repr=False, compare=False)  # its attention's, or ``draft``
    # whether it stores compressed KV of its own
    owns_kv: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Say once what every layout asks."""
        object.__setattr__(self, "kind", DRAFT if self.is_draft else self.attn.value)
        object.__setattr__(self, "owns_kv", self.ratio > 0 and self.kv_owner == self.layer_idx)

    @functools.cached_property
    def is_latent(self) -> bool:
        """Whether an entry is a latent, as in DeepSeek-V4.1.

        Groups of one token or two stand alone and have no position bias, and the indexer keys are
        projected from the latent.
        """
        return self.attn is AttentionType.CSA and self.ratio in (1, 2)

    @functools.cached_property
    def overlaps(self) -> bool:
        """Whether an entry also pools the group before its own (CSA of DeepSeek-V4)."""
        return self.attn is AttentionType.CSA and not self.is_latent


def chooses_candidates(config: DSV4Config, spec: LayerSpec) -> bool:
    """Whether a layer's indexer chooses the candidate blocks of the layers after it."""
    return config.candidates is not None and spec.layer_idx == config.candidates.source


def scores_candidates(config: DSV4Config, spec: LayerSpec) -> bool:
    """Whether a layer's indexer scores nothing but candidate blocks: of the keys that it reads."""
    source = config.candidates.source if config.candidates else None
    return source is not None and spec.layer_idx > source == spec.kv_owner


def build_schedule(
    config: DSV4Config,
    *,
    layers: Collection[int] | None = None,
    stage: int = 0,
    stages: int = 1,
    draft_layers: bool = False,
) -> tuple[LayerSpec, ...]:
    """Specs of the layers held, in model order; raises ``ConfigError`` where there are none.

    layers: only these indices; None holds all. stages: pipeline stages that split the layers,
    earlier ones take the remainder; the draft layers belong to the last. Where the owner of a
    layer's KV is not held, the first held reader keeps the copy.
    """
    if not 0 <= stage < stages <= config.num_layers:
        raise ConfigError(
            f"stage {stage} of {stages} cannot be: stages count from 0 and "
            f"{config.name} has {config.num_layers} layers to split."
        )
    size, extra = divmod(config.num_layers, stages)
    start = stage * size + min(stage, extra)
    held = range(start, start + size + (stage < extra))
    if draft_layers and stage == stages - 1:
        held = range(held.start, len(config.compress_ratios))
    chosen = [index for index in held if layers is None or index in layers]
    if layers is not None and (unknown := sorted(set(layers) - set(held))):
        raise ConfigError(
            f"layers {unknown} are not among {held.start}..{held.stop - 1} of {config.name}"
            f"{f' (stage {stage} of {stages})' if stages > 1 else ''}."
        )
    if not chosen:
        raise ConfigError("no layer is left to hold: name at least one layer.")
    return _with_owners(config, chosen)


def keyed_layers(specs: Iterable[LayerSpec]) -> frozenset[int]:
    """Layers whose indexer keys a held layer selects by; other keys are never written or read.

    V4's engines leave the indexer of a layer out that takes another one's selection (IndexCache),
    and keep its pages. Source: vllm#49085, sglang#32771, neither of them released.
    """
    return frozenset(spec.kv_owner for spec in specs if spec.selects)


def _with_owners(config: DSV4Config, chosen: list[int]) -> tuple[LayerSpec, ...]:
    keeper: dict[int, int] = {}  # owner in the model -> layer that holds its KV here
    specs = []
    for index in chosen:
        ratio = config.compress_ratios[index]
        owner = keeper.setdefault(_owner(config, index), index) if ratio else index
        by_id = index < config.num_hash_layers
        is_draft = index >= config.num_layers
        selects = is_draft or config.index_sources is None or index in config.index_sources
        attention = AttentionType.CSA
        if config.architecture == "flat":
            attention = AttentionType.DSA
        elif ratio in (0, HCA_RATIO):
            attention = AttentionType.HCA if ratio else AttentionType.SWA
        specs.append(LayerSpec(index, attention, ratio, owner, is_draft, by_id, selects))
    return tuple(specs)


def _owner(config: DSV4Config, index: int) -> int:
    if config.kv_owners is None:
        return index
    ratio = config.compress_ratios[index]
    before = [o for o in config.kv_owners if o <= index and config.compress_ratios[o] == ratio]
    if not before:
        raise ConfigError(f"layer {index} of {config.name} reads KV, but no layer before owns it.")
    return max(before)
