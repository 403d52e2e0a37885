"""What the weights of the layers held cost a step: bytes read and parameters multiplied with."""

from collections.abc import Sequence
from dataclasses import dataclass

from dsv4kv.budget.lookup import find_weight_facts
from dsv4kv.budget.weights import (
    WeightFacts,
    Weights,
    count_layer,
    derive_weights,
    find_alike,
    scale_weights,
)
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.schema import LayerCacheSchema


@dataclass(frozen=True)
class WeightModel:
    """Weights of the layers held and of the output head.

    Attributes:
        dense_bytes: Read by every step.
        expert_bytes: Routed experts, all together.
        held_bytes: All that is in memory: with the embedding, which no step reads as a whole.
        experts: Routed experts of a layer.
        experts_per_token: Routed experts of a layer that a token passes.
        active_parameters: Parameters a token is multiplied with, without the embedding.
        source: How they are known, in words.
        expert_parameters: Active parameters of routed experts.
        expert_kind: Type of the routed experts: ``fp4``, ``nvfp4``, ``fp8`` or ``bf16``.
    """

    dense_bytes: int
    expert_bytes: int
    held_bytes: int
    experts: int
    experts_per_token: int
    active_parameters: int
    source: str
    expert_parameters: int = 0
    expert_kind: str = "fp4"

    @property
    def left_alone(self) -> float:
        """Share of the routed experts that one token does not choose.

        Tokens choose their experts independently, so n tokens leave this to the power of n.
        """
        return 1 - self.experts_per_token / self.experts

    def step_bytes(self, tokens: int) -> int:
        """Bytes that a step reads, by its tokens."""
        touched: float = 1 - self.left_alone**tokens
        return self.dense_bytes + round(self.expert_bytes * touched)


def find_weights(config: ReplayConfig, model: DSV4Config) -> tuple[WeightFacts, Weights]:
    """What the weights of a configuration are made of, and take.

    Raises:
        ConfigError: The sizes of the model's matrices are not known.
    """
    facts = find_weight_facts(config.model.preset, model)
    if facts is None:
        raise ConfigError(
            f"how large the weights of {model.name} are is not known, so a step cannot be timed: "
            "take v4-flash, v4-pro or v3.2, or the path of a whole config.json."
        )
    if config.cost.experts is not None:
        facts = facts.model_copy(update={"expert_dtype": config.cost.experts})
    weights = derive_weights(model, facts)
    if config.cost.weight_bytes is not None:
        weights = scale_weights(weights, config.cost.weight_bytes, "as given")
    return facts, weights


def build_weights(
    config: ReplayConfig, model: DSV4Config, schemas: Sequence[LayerCacheSchema]
) -> WeightModel:
    """Work out the weights of a configuration; raises as ``find_weights`` does."""
    facts, weights = find_weights(config, model)
    per_token = min(config.cost.experts_per_token, facts.n_routed_experts)
    alike = find_alike(facts, [schema.layer for schema in schemas])
    known = {spec: count_layer(model, facts, spec) for spec in dict.fromkeys(alike)}
    counts = [known[spec] for spec in alike]
    dense = sum(count for count, _ in counts) + facts.vocab_size * model.hidden_size
    routed = sum(count for _, count in counts) * per_token // facts.n_routed_experts
    parts = [_part(weights, schema) for schema in schemas]
    dense_bytes = round(sum(part[0] for part in parts) + weights.embedding.dense_bytes)
    expert_bytes = round(sum(part[1] for part in parts) + weights.embedding.expert_bytes)
    return WeightModel(
        dense_bytes=dense_bytes,
        expert_bytes=expert_bytes,
        held_bytes=dense_bytes + expert_bytes + round(weights.embedding.dense_bytes),
        experts=facts.n_routed_experts,
        experts_per_token=per_token,
        active_parameters=dense + routed,
        source=weights.source,
        expert_parameters=routed,
        expert_kind=facts.expert_kind,
    )


def _part(weights: Weights, schema: LayerCacheSchema) -> tuple[float, float]:
    draft = schema.layer.is_draft
    part = weights.draft if draft else weights.layers[schema.layer.layer_idx]
    return float(part.dense_bytes), float(part.expert_bytes)
