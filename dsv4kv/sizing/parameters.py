"""How many parameters a layer has, from the sizes of its matrices in config.json."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from dsv4kv.model.config import DSV4Config, Positive
from dsv4kv.model.schedule import AttentionType, LayerSpec


class WeightFacts(BaseModel):
    """Sizes of the matrices, in the names of config.json; other keys of such a file are ignored.

    Attributes:
        published_parameters: What the model is said to have; only compared with.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    vocab_size: Positive
    moe_intermediate_size: Positive
    n_routed_experts: Positive
    n_shared_experts: int = 1
    first_k_dense_replace: int = 0
    intermediate_size: Positive | None = None
    q_lora_rank: Positive
    o_lora_rank: Positive | None = None
    o_groups: Positive | None = None
    kv_lora_rank: Positive | None = None
    qk_nope_head_dim: Positive | None = None
    qk_rope_head_dim: Positive | None = None
    v_head_dim: Positive | None = None
    expert_dtype: Literal["fp4", "fp8", "bf16"] | None = None
    quantization_config: dict[str, Any] = {}
    published_parameters: float | None = None
    source: str = "Hugging Face config.json"

    @property
    def dense_dtype(self) -> str:
        """Type of every matrix but experts, embedding and head."""
        return "fp8" if self.quantization_config.get("quant_method") == "fp8" else "bf16"

    @property
    def expert_kind(self) -> str:
        """Type of the routed experts."""
        if self.quantization_config.get("moe_quant_algo") == "NVFP4":
            return "nvfp4"
        return self.expert_dtype or self.dense_dtype


def count_layer(config: DSV4Config, facts: WeightFacts, spec: LayerSpec) -> tuple[int, int]:
    """Parameters of one layer: everything but routed experts, and those."""
    flat = spec.attn is AttentionType.DSA
    attention = _count_mla(config, facts) if flat else _count_attention(config, facts)
    dense = attention + _count_compressors(config, facts, spec)
    if facts.intermediate_size and spec.layer_idx < facts.first_k_dense_replace:
        return dense + 3 * config.hidden_size * facts.intermediate_size, 0
    expert = 3 * config.hidden_size * facts.moe_intermediate_size
    router = config.hidden_size * facts.n_routed_experts
    return dense + router + facts.n_shared_experts * expert, facts.n_routed_experts * expert


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
    return (
        query
        + hidden * (latent + rope)
        + latent * heads * (nope + value)
        + (heads * value * hidden)
    )


def _count_compressors(config: DSV4Config, facts: WeightFacts, spec: LayerSpec) -> int:
    """Compressor (KV and score projections) and indexer; CSA projects two halves."""
    indexer = config.index_heads * (facts.q_lora_rank * config.index_dim + config.hidden_size)
    if spec.attn is AttentionType.DSA:
        return indexer + config.hidden_size * config.index_dim
    if not spec.owns_kv:
        return 0
    if spec.attn is AttentionType.HCA:
        return 2 * config.hidden_size * config.head_dim
    return indexer + 4 * config.hidden_size * (config.head_dim + config.index_dim)
