"""What the model is, as far as its cache can tell."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[int, Field(gt=0)]


class Yarn(BaseModel):
    """YaRN stretching of the rotary frequencies (no magnitude scaling)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    factor: float = 16.0
    original_max_position: Positive = 65536
    beta_fast: float = 32.0
    beta_slow: float = 1.0


class DefaultFormats(BaseModel):
    """The formats the model is served with when a configuration names none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    main: str = "fp8_ds_mla"
    window: str = "fp8_ds_mla"
    indexer: str = "mxfp4"


class DSV4Config(BaseModel):
    """Facts of a model that decide its cache.

    ``compress_ratios`` has one number per layer, draft layers last: 0 is sliding window only,
    128 is HCA, smaller ones are CSA. With ``architecture`` ``flat`` (DeepSeek-V3.2) every layer
    keeps one entry per token, without window or compressor state.
    Source: DeepSeek-V4 technical report, arXiv:2606.19348, and the published config.json files.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    name: str
    architecture: Literal["v4", "flat"] = "v4"
    num_layers: Positive
    hidden_size: Positive
    num_heads: Positive
    head_dim: Positive = 512
    rope_dim: Positive = 64
    window_tokens: Positive = 128
    compress_ratios: tuple[Literal[0, 1, 2, 4, 128], ...]
    kv_owners: tuple[int, ...] | None = None
    """Layers that own compressed KV and indexer keys; others read the nearest owner before them
    (DeepSeek-V4.1). Null: every compressed layer owns its own."""
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
        return self
