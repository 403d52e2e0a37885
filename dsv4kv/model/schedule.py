"""The layer schedule: which attention each layer runs and whose KV it reads."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config


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

    @cached_property
    def kind(self) -> str:
        """Its attention's, or ``draft``."""
        return DRAFT if self.is_draft else self.attn.value

    @cached_property
    def owns_kv(self) -> bool:
        """Whether it stores compressed KV of its own."""
        return self.ratio > 0 and self.kv_owner == self.layer_idx

    @cached_property
    def is_latent(self) -> bool:
        """Whether an entry is a latent, as in DeepSeek-V4.1.

        Groups of one token or two stand alone and have no position bias, and the indexer keys are
        projected from the latent.
        """
        return self.attn is AttentionType.CSA and self.ratio in (1, 2)

    @cached_property
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
