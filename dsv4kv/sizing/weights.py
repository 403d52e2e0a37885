"""What the weights take on a GPU, derived from a model's config.json.

Counted are the matrices: attention, compressors, indexer, experts, router, embedding and output
head. Left out are norms, scales of 128 x 128 blocks and hyper-connections, together below 0.1 %.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

from dsv4kv.model.config import DSV4Config
from dsv4kv.model.schedule import LayerSpec, build_schedule
from dsv4kv.sizing.layout import Layout
from dsv4kv.sizing.parameters import WeightFacts, count_layer

_EXPERT_BYTES = {
    "fp4": Fraction(17, 32),  # MXFP4: 4 bits, one scale byte for 32
    "nvfp4": Fraction(9, 16),  # 4 bits, one scale byte for 16
    "fp8": Fraction(1),
    "bf16": Fraction(2),
}
_BF16_BYTES = 2


@dataclass(frozen=True)
class Part:
    """Weights that lie together: what all ranks of a replica share, and the routed experts."""

    dense_bytes: Fraction
    expert_bytes: Fraction

    def scaled(self, factor: Fraction) -> "Part":
        """The same part at another size."""
        return Part(self.dense_bytes * factor, self.expert_bytes * factor)

    def __add__(self, other: "Part") -> "Part":
        return Part(self.dense_bytes + other.dense_bytes, self.expert_bytes + other.expert_bytes)


@dataclass(frozen=True)
class Weights:
    """Weights of a whole model, layer by layer.

    Attributes:
        layers: One part per layer of the model.
        draft: One draft layer.
        embedding: The embedding; the output head is as large.
        experts: Routed experts of a layer; None where they are not known to be whole.
        parameters: How many there are, draft layers left out; None where that is not known.
        source: How the bytes are known, in words.
    """

    layers: tuple[Part, ...]
    draft: Part
    embedding: Part
    experts: int | None
    parameters: int | None
    source: str

    @property
    def total_bytes(self) -> int:
        """Bytes of one copy, draft layers left out."""
        whole = sum(self.layers, self.embedding + self.embedding)
        return ceil(whole.dense_bytes + whole.expert_bytes)

    def rank_bytes(self, layout: Layout, layers: range, draft_layers: int) -> int:
        """Bytes on one rank of the stage that holds ``layers`` (and the drafts, if the last)."""
        parts = [self.layers[index] for index in layers]
        if layers.start == 0:
            parts.append(self.embedding)
        if layers.stop == len(self.layers):
            parts += [self.embedding, *[self.draft] * draft_layers]
        whole = sum(parts, Part(Fraction(0), Fraction(0)))
        return ceil(whole.dense_bytes / layout.tp + whole.expert_bytes * self._share(layout))

    def _share(self, layout: Layout) -> Fraction:
        """Share of the routed experts on one rank: whole experts by EP, slices of them by TP.

        Where EP does not divide the experts some ranks hold one more; these count.
        """
        if self.experts is None:
            return Fraction(1, layout.expert_ranks)
        held = ceil(self.experts / layout.ep)
        return Fraction(held, self.experts) * layout.ep / layout.expert_ranks


def derive_weights(config: DSV4Config, facts: WeightFacts) -> Weights:
    """Work out the weights of a model from the sizes of its matrices."""
    schedule = build_schedule(config)
    counts = [count_layer(config, facts, spec) for spec in schedule]
    draft = LayerSpec(len(schedule), schedule[0].attn, 0, len(schedule), is_draft=True)
    drafted, experts = count_layer(config, facts, draft)
    # a draft layer also mixes the embedding with the hidden state: two square matrices
    drafted += 2 * config.hidden_size**2
    embedding = facts.vocab_size * config.hidden_size
    return Weights(
        layers=tuple(_weigh(facts, *count) for count in counts),
        draft=_weigh(facts, drafted, experts),
        embedding=Part(Fraction(embedding * _BF16_BYTES), Fraction(0)),
        experts=facts.n_routed_experts,
        parameters=sum(map(sum, counts)) + 2 * embedding,
        source=f"derived from {facts.source}: {facts.expert_kind} experts, "
        f"{facts.dense_dtype} elsewhere, bf16 embedding and head",
    )


def scale_weights(weights: Weights, total_bytes: int, source: str) -> Weights:
    """The same weights, taking so many bytes altogether."""
    factor = Fraction(total_bytes, weights.total_bytes)
    return replace(
        weights,
        layers=tuple(part.scaled(factor) for part in weights.layers),
        draft=weights.draft.scaled(factor),
        embedding=weights.embedding.scaled(factor),
        source=source,
    )


def spread_weights(config: DSV4Config, total_bytes: int) -> Weights:
    """Weights of which only the size is known: as if all were routed experts, layer by layer."""
    nothing = Part(Fraction(0), Fraction(0))
    part = Part(Fraction(0), Fraction(total_bytes, config.num_layers))
    source = "as given; what data parallelism replicates is not known and counted as split"
    return Weights((part,) * config.num_layers, nothing, nothing, None, None, source)


def _weigh(facts: WeightFacts, dense: int, experts: int) -> Part:
    return Part(
        dense * _EXPERT_BYTES[facts.dense_dtype], experts * _EXPERT_BYTES[facts.expert_kind]
    )
