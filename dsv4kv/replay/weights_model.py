"""What the weights cost a step: bytes of the experts it touches, arithmetic of those it uses."""

from collections.abc import Sequence
from dataclasses import dataclass

from dsv4kv.config.replay import ReplayConfig
from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.schema import LayerCacheSchema
from dsv4kv.sizing.lookup import find_weight_facts
from dsv4kv.sizing.parameters import count_layer
from dsv4kv.sizing.weights import Weights, derive_weights, scale_weights


@dataclass(frozen=True)
class WeightModel:
    """Weights of the layers held and of the output head.

    Attributes:
        dense_bytes: Read by every step.
        expert_bytes: Routed experts, all together.
        held_bytes: All that lies in memory: with the embedding, which no step reads as a whole.
        experts: Routed experts of a layer.
        experts_per_token: Of which a token passes so many.
        active_parameters: Parameters a token is multiplied with, the embedding left out.
        source: How they are known, in words.
    """

    dense_bytes: int
    expert_bytes: int
    held_bytes: int
    experts: int
    experts_per_token: int
    active_parameters: int
    source: str

    def step_bytes(self, tokens: int) -> int:
        """Bytes that a step of so many tokens reads.

        Every token chooses its experts on its own and all alike: an expert is left alone by one
        token with probability 1 − k/E, by all with that to the power of the tokens.
        """
        untouched = (1 - self.experts_per_token / self.experts) ** tokens
        return self.dense_bytes + round(self.expert_bytes * (1 - untouched))


def build_weights(
    config: ReplayConfig, model: DSV4Config, schemas: Sequence[LayerCacheSchema]
) -> WeightModel:
    """Work out the weights of a configuration.

    Raises:
        ConfigError: The sizes of the model's matrices are not known.
    """
    facts = find_weight_facts(config.model.preset, model)
    if facts is None:
        raise ConfigError(
            f"how large the weights of {model.name} are is not known, so a step cannot be timed: "
            "take v4-flash, v4-pro or v3.2, or the path of a whole config.json."
        )
    weights = derive_weights(model, facts)
    if config.cost.weight_bytes is not None:
        weights = scale_weights(weights, config.cost.weight_bytes, "as given")
    per_token = min(config.cost.experts_per_token, facts.n_routed_experts)
    counts = [count_layer(model, facts, schema.layer) for schema in schemas]
    dense = sum(count for count, _ in counts) + facts.vocab_size * model.hidden_size
    routed = sum(count for _, count in counts)
    parts = [_part(weights, schema) for schema in schemas]
    dense_bytes = round(sum(part[0] for part in parts) + weights.embedding.dense_bytes)
    expert_bytes = round(sum(part[1] for part in parts) + weights.embedding.expert_bytes)
    return WeightModel(
        dense_bytes=dense_bytes,
        expert_bytes=expert_bytes,
        held_bytes=dense_bytes + expert_bytes + round(weights.embedding.dense_bytes),
        experts=facts.n_routed_experts,
        experts_per_token=per_token,
        active_parameters=dense + routed * per_token // facts.n_routed_experts,
        source=weights.source,
    )


def _part(weights: Weights, schema: LayerCacheSchema) -> tuple[float, float]:
    draft = schema.layer.is_draft
    part = weights.draft if draft else weights.layers[schema.layer.layer_idx]
    return float(part.dense_bytes), float(part.expert_bytes)
