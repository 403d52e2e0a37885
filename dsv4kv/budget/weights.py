"""What the weights take on a GPU, derived from a model's config.json.

Counted are the matrices: attention, compressors, indexer, experts, router, hyper-connections,
embedding and output head. Norms and scales of blocks, together below 0.1 %, are not.
An engine may load more than an even share of them: see ``Loading``.
V4.1's engram tables are looked up row by row and lie in host memory by default (vLLM 0.33,
``EngramConfig.cpu_offload``): they are counted there, not on a GPU.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from math import ceil
from operator import add
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from dsv4kv.budget import quantised
from dsv4kv.budget.inputs import Inputs
from dsv4kv.budget.layout import Layout
from dsv4kv.engines.contract import EVENLY, Loading
from dsv4kv.engines.names import family_of
from dsv4kv.errors import ConfigError
from dsv4kv.files import shipped
from dsv4kv.model import presets as ps
from dsv4kv.model.config import AttentionType, DSV4Config, LayerSpec, Positive, build_schedule
from dsv4kv.units import format_bytes


class WeightFacts(BaseModel):
    """Sizes of the matrices, in the names of config.json; other keys of such a file are ignored.

    ``published_parameters`` are only compared with.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    vocab_size: Positive
    moe_intermediate_size: Positive
    n_routed_experts: Positive
    n_shared_experts: int = 1
    num_experts_per_tok: Positive = 6
    first_k_dense_replace: int = 0
    intermediate_size: Positive | None = None
    q_lora_rank: Positive
    o_lora_rank: Positive | None = None
    o_groups: Positive | None = None
    kv_lora_rank: Positive | None = None
    qk_nope_head_dim: Positive | None = None
    qk_rope_head_dim: Positive | None = None
    v_head_dim: Positive | None = None
    dspark_n_routed_experts: Positive | None = None
    engram_num_embeddings: tuple[Positive, ...] = ()
    engram_head_dim: Positive | None = None
    engram_max_ngram_size: Positive | None = None
    engram_n_heads: Positive | None = None
    expert_dtype: str | None = None
    quantization_config: dict[str, Any] = {}
    stored: quantised.Storage | None = None
    published_parameters: float | None = None
    source: str = "Hugging Face config.json"

    @property
    def storage(self) -> quantised.Storage:
        """Types of the matrices: as given, else as the file says; raises ``ConfigError``."""
        if self.stored is not None:
            return self.stored
        return quantised.read_storage(self.quantization_config, self.expert_dtype, self.source)

    def with_experts(self, kind: str) -> "WeightFacts":
        experts = quantised.KINDS[kind]
        stored = replace(self.storage, experts=experts, drafts=experts, assumed="", spared={})
        return self.model_copy(update={"stored": stored})

    def sparing(self, whole: bool) -> "WeightFacts":
        """As a layer has it that is not quantised, ``whole`` or its experts alone."""
        dense = quantised.BF16 if whole else self.storage.dense
        stored = replace(self.storage, experts=quantised.BF16, dense=dense)
        return self.model_copy(update={"stored": stored})


def count_layer(config: DSV4Config, facts: WeightFacts, spec: LayerSpec) -> tuple[int, int]:
    """Parameters of one layer: all but the routed experts, and the routed experts."""
    flat = spec.attn is AttentionType.DSA
    attention = _count_mla(config, facts) if flat else _count_attention(config, facts)
    dense = attention + _count_compressors(config, facts, spec)
    if facts.intermediate_size and spec.layer_idx < facts.first_k_dense_replace:
        return dense + 3 * config.hidden_size * facts.intermediate_size, 0
    expert = 3 * config.hidden_size * facts.moe_intermediate_size
    router = config.hidden_size * facts.n_routed_experts
    return dense + router + facts.n_shared_experts * expert, facts.n_routed_experts * expert


def find_alike(facts: WeightFacts, specs: Iterable[LayerSpec]) -> list[LayerSpec]:
    """For every layer the first one that has the same matrices."""
    first: dict[object, LayerSpec] = {}
    alike = []
    for spec in specs:
        owns, dense = spec.kv_owner == spec.layer_idx, spec.layer_idx < facts.first_k_dense_replace
        alike.append(first.setdefault((spec.attn, spec.ratio, spec.selects, owns, dense), spec))
    return alike


def _count_attention(config: DSV4Config, facts: WeightFacts) -> int:
    """V4: low-rank queries, one KV vector, grouped low-rank output."""
    hidden, heads = config.hidden_size, config.num_heads * config.head_dim
    low = (facts.o_groups or 1) * (facts.o_lora_rank or hidden)
    query = hidden * facts.q_lora_rank + facts.q_lora_rank * heads
    return query + hidden * config.head_dim + heads * (facts.o_lora_rank or hidden) + low * hidden


def _count_mla(config: DSV4Config, facts: WeightFacts) -> int:
    """V3.2: multi-head latent attention."""
    hidden, heads = config.hidden_size, config.num_heads
    nope, rope = facts.qk_nope_head_dim or 0, facts.qk_rope_head_dim or 0
    latent, value = facts.kv_lora_rank or 0, facts.v_head_dim or 0
    query = hidden * facts.q_lora_rank + facts.q_lora_rank * heads * (nope + rope)
    output = latent * heads * (nope + value) + heads * value * hidden
    return query + hidden * (latent + rope) + output


def _count_compressors(config: DSV4Config, facts: WeightFacts, spec: LayerSpec) -> int:
    """Compressor (KV and score projections) and indexer; V4's CSA projects two halves of each.

    V4.1's keys come from the latent, and more layers select than store them.
    """
    indexer = config.index_heads * (facts.q_lora_rank * config.index_dim + config.hidden_size)
    if spec.attn is AttentionType.DSA:
        return indexer + config.hidden_size * config.index_dim
    owns = spec.owns_kv
    if spec.ratio in (1, 2):
        projected = spec.ratio * config.hidden_size + config.index_dim
        return indexer * spec.selects + projected * config.head_dim * owns
    if not owns:
        return 0
    if spec.attn is AttentionType.HCA:
        return 2 * config.hidden_size * config.head_dim
    return indexer + 4 * config.hidden_size * (config.head_dim + config.index_dim)


_NOTHING = Fraction(0)


@dataclass(frozen=True)
class Part:
    """Bytes of a layer or of several."""

    dense_bytes: Fraction = _NOTHING  # all but routed experts; a replica's ranks share them
    expert_bytes: Fraction = _NOTHING
    copied_bytes: Fraction = _NOTHING  # the part of it that ``Loading.copies`` keeps on every rank
    widened_bytes: Fraction = _NOTHING  # what ``Loading.widens_output`` adds

    def scaled(self, factor: Fraction) -> "Part":
        return Part(*(size * factor for size in vars(self).values()))

    def __add__(self, other: "Part") -> "Part":
        return Part(*map(add, vars(self).values(), vars(other).values()))


@dataclass(frozen=True)
class Weights:
    """Weights of a whole model, layer by layer."""

    layers: tuple[Part, ...]
    draft: Part  # one draft layer
    embedding: Part  # the embedding; the output head is as large
    experts: int | None  # routed experts of a layer; None where they are not known to be whole
    parameters: int | None  # without draft layers; None where not known
    source: str
    host_bytes: int = 0  # tables in host memory, once for every node
    first: Part = Part()  # what comes with the embedding: projections of engrams
    drafting: tuple[Part, ...] = ()  # what draft layers have once, by how many there are
    expert_width: int = 0  # channels of an expert that tensor parallelism splits

    @property
    def total_bytes(self) -> int:
        """Bytes of one copy, without draft layers."""
        whole = sum(self.layers, self.embedding + self.embedding + self.first)
        return ceil(whole.dense_bytes + whole.expert_bytes)

    def drafts(self, layers: int) -> Part:
        drafting = self.drafting[min(layers, len(self.drafting)) - 1 :][:1] if layers else ()
        return sum(drafting, self.draft.scaled(Fraction(layers)))

    def rank_bytes(
        self, layout: Layout, layers: range, draft_layers: int, loading: Loading = EVENLY
    ) -> int:
        """Bytes on one rank of the stage that holds ``layers`` (and the drafts, if the last)."""
        parts = [self.layers[index] for index in layers]
        last = layers.stop == len(self.layers)
        if layers.start == 0:
            parts += [self.embedding, self.first]
        if last:
            parts += [self.embedding, self.drafts(draft_layers)]
        whole = sum(parts, Part())
        copied = whole.copied_bytes * loading.copies
        dense = whole.dense_bytes - copied + whole.widened_bytes * loading.widens_output
        held = copied + dense / layout.tp + loading.held_bytes
        if loading.draft_heads and draft_layers and last:
            held += self.embedding.dense_bytes / layout.tp * (1 + Fraction(1, layout.dp))
        share = Fraction(1, layout.expert_ranks)  # whole experts by EP, slices of them by TP
        if self.experts is not None:  # where EP does not divide them some ranks hold one more
            share *= Fraction(ceil(self.experts / layout.ep), self.experts) * layout.ep
        slices = layout.expert_ranks // layout.ep
        if slices > 1 and loading.expert_step and self.expert_width:
            width = -(-self.expert_width // (slices * loading.expert_step)) * loading.expert_step
            share *= Fraction(max(width * slices, self.expert_width), self.expert_width)
        return ceil(held + whole.expert_bytes * share)


_DSPARK_SOURCES, _MARKOV_RANK = 3, 256


def derive_weights(config: DSV4Config, facts: WeightFacts) -> Weights:
    """Work out the weights of a model from the sizes of its matrices."""
    schedule = build_schedule(config)
    alike = find_alike(facts, schedule)
    counts = {spec: count_layer(config, facts, spec) for spec in dict.fromkeys(alike)}
    parts = {spec: _weigh(config, facts, spec, count) for spec, count in counts.items()}
    draft = LayerSpec(len(schedule), schedule[0].attn, 0, len(schedule), is_draft=True)
    fewer = {"n_routed_experts": facts.dspark_n_routed_experts or facts.n_routed_experts}
    few = facts.model_copy(update=fewer)
    hidden, dense = config.hidden_size, facts.storage.dense.each
    spared = {
        place: _weigh(config, facts.sparing(whole), alike[place], counts[alike[place]])
        for place, whole in facts.storage.spared.items()
        if place < len(alike)
    }
    # MTP mixes the embedding with the hidden state, DSpark the states of three layers, and it has
    # two matrices of transitions; no rank has a part of them
    mtp = 2 * hidden**2 * dense
    dspark = (
        _DSPARK_SOURCES * hidden**2 * dense
        + 2 * facts.vocab_size * _MARKOV_RANK * quantised.BF16.each
    )
    embedding = facts.vocab_size * hidden
    channels, streams = facts.engram_head_dim or 0, (_STREAMS + 1) * hidden
    # what a token looks up in each engram table; their rows are fp8, with a scale byte for 32
    columns = ((facts.engram_max_ngram_size or 1) - 1) * (facts.engram_n_heads or 0) * channels
    host = sum(facts.engram_num_embeddings) * (channels + channels // 32)
    tables = f"; {format_bytes(host)} of engram tables in host memory, on no GPU" if host else ""
    return Weights(
        layers=tuple(spared.get(place, parts[spec]) for place, spec in enumerate(alike)),
        draft=_weigh(config, few, draft, count_layer(config, few, draft)),
        drafting=(Part(mtp, copied_bytes=mtp), Part(mtp, copied_bytes=mtp),
                  Part(dspark, copied_bytes=dspark)),
        embedding=Part(embedding * quantised.BF16.each),
        first=Part(len(facts.engram_num_embeddings) * columns * streams * dense),
        experts=facts.n_routed_experts,
        expert_width=facts.moe_intermediate_size,
        parameters=sum(sum(counts[spec]) for spec in alike) + 2 * embedding,
        source=f"derived from {facts.source}: {facts.storage.words}, bf16 embedding and head"
        f"{tables}",
        host_bytes=host,
    )  # fmt: skip


def scale_weights(weights: Weights, total_bytes: int, source: str) -> Weights:
    factor = Fraction(total_bytes, weights.total_bytes)
    return replace(
        weights,
        layers=tuple(part.scaled(factor) for part in weights.layers),
        draft=weights.draft.scaled(factor),
        drafting=tuple(part.scaled(factor) for part in weights.drafting),
        embedding=weights.embedding.scaled(factor),
        first=weights.first.scaled(factor),
        source=source,
    )


def spread_weights(config: DSV4Config, total_bytes: int) -> Weights:
    """Weights whose size alone is known: as if all were routed experts, layer by layer."""
    part = Part(expert_bytes=Fraction(total_bytes, config.num_layers))
    source = "as given; what data parallelism replicates is not known and counted as split"
    return Weights((part,) * config.num_layers, Part(), Part(), None, None, source)


_STREAMS = 4  # hc_mult
_MIXES = 2 * (2 + _STREAMS) * _STREAMS  # of them, before attention and before the experts


def _weigh(
    config: DSV4Config, facts: WeightFacts, spec: LayerSpec, count: tuple[int, int]
) -> Part:
    """A layer's bytes; copied is what has no heads to split by.

    Compressors, router and the indexer's weights are stored in bf16, hyper-connections in fp32.
    Source: SGLang 0.5.15, ``models/deepseek_v4.py``, ``dsv4/{compressor,indexer}.py``; vLLM 0.33,
    ``models/deepseek_v4{,1}/{attention,compressor}.py``.
    """
    storage, hidden, (dense, experts) = facts.storage, config.hidden_size, count
    each = storage.dense.each
    routed = experts * (storage.drafts if spec.is_draft else storage.experts).each
    if config.kind == "flat":
        return Part(dense * each, routed)
    indexed = spec.attn is AttentionType.CSA and (spec.selects or config.kind == "v4")
    scores = config.index_heads * config.index_dim * facts.q_lora_rank * indexed
    in_bf16 = _count_compressors(config, facts, spec) - scores + hidden * facts.n_routed_experts
    mixing = _MIXES * _STREAMS * hidden * 4  # in fp32, and not counted among the matrices
    output = config.num_heads * config.head_dim * (facts.o_lora_rank or hidden)
    return Part(
        (dense - in_bf16 - output) * each
        + output * storage.output.each
        + in_bf16 * quantised.BF16.each
        + mixing,
        routed,
        (hidden * (facts.q_lora_rank + config.head_dim) + scores) * each
        + in_bf16 * quantised.BF16.each
        + mixing,
        output * (quantised.BF16.each - storage.output.each),
    )


# ---- weights by name


def model_file(name: str) -> Path | None:
    """The config.json that a name is the path of; None for a known model or no file."""
    return None if name in ps.preset_names() else ps.config_file(name)


def find_weights(inputs: Inputs, config: DSV4Config) -> Weights:
    """The weights given, or derived from the model; ``ConfigError`` where neither is known."""
    family = family_of(inputs.engine)
    if family and family.offloads and inputs.weights is None:
        raise ConfigError(
            f"{family.title} has experts on the CPU, and how large the weights on its GPUs are is "
            "not known: give their size to budget with --weights."
        )
    own = model_file(inputs.model)
    try:
        if own is None:
            derived = _known_weights(config.name, inputs.checkpoint or inputs.model)
        else:
            facts = find_weight_facts(inputs.model, config)
            derived = derive_weights(config, facts) if facts else None
    except ConfigError:
        guessed = family is not None and family.slots and own is None  # which the answer says
        if inputs.weights is None and not guessed:
            raise
        derived = None if own else _known_weights(config.name, "")
    if inputs.weights is not None:
        if derived is None:
            return spread_weights(config, inputs.weights)
        return scale_weights(derived, inputs.weights, "as given, spread as derived")
    if derived is None:
        raise ConfigError(
            f"how large the weights of {config.name} are is not known: give --weights 150GiB, the "
            "size of the checkpoint."
        )
    return derived


def find_weight_facts(model: str, config: DSV4Config) -> WeightFacts | None:
    """The sizes behind the weights of a preset or a config.json; None where not known."""
    own = model_file(model)
    if own is None:
        return _known_facts(config.name)
    document = ps.read_config(own)
    text = document | document.get("text_config", {})
    if isinstance(text.get("quantization"), dict):  # MLX has its rules under this key
        text["quantization_config"] = {"quant_method": "mlx"} | text["quantization"]
    if ps.is_v41(text):
        text.setdefault("quantization_config", {"quant_method": "fp8", "expert_dtype": "fp4"})
    text["source"] = f"{own.parent.name}/{own.name}"
    try:
        return WeightFacts.model_validate(text)
    except ValidationError:
        return None


@cache
def _known_facts(name: str) -> WeightFacts | None:
    path = shipped("configs") / "weights" / f"{name}.yaml"
    if not path.is_file():
        return None
    return WeightFacts(**yaml.safe_load(path.read_text(encoding="utf-8")))


@cache
def _known_weights(name: str, checkpoint: str) -> Weights | None:
    """A preset's weights, as the name of a checkpoint says that they are stored."""
    facts, config = _known_facts(name), ps.load_model(name)
    if facts is None or not checkpoint:
        return None if facts is None else derive_weights(config, facts)
    stored = quantised.storage_of_name(checkpoint) or facts.storage

    def count(experts: int) -> int:
        pruned = facts.model_copy(update={"n_routed_experts": experts})
        return derive_weights(config, pruned).parameters or 0

    left = quantised.experts_of_name(checkpoint, facts.n_routed_experts, count)
    changes = {"n_routed_experts": left, "stored": stored}
    if changes != {"n_routed_experts": facts.n_routed_experts, "stored": facts.storage}:
        changes["source"] = f"the name {checkpoint[:100]}, {left} experts a layer"
    return derive_weights(config, facts.model_copy(update=changes))
