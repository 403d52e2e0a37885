"""The baseline that savings are told against: grouped-query attention with 8 KV heads.

A model of 61 layers that stores, per token and layer, keys and values of 8 heads of 128 channels
in bf16: 8 x 128 x 2 x 2 = 4,096 B, 249,856 B over all layers. Source: the baseline of the
DeepSeek-V4 report, arXiv:2606.19348. The rest of it is DeepSeek-V3.2's, for comparison only.
"""

from dsv4kv.model.config import DSV4Config
from dsv4kv.model.formats import EntryFormat
from dsv4kv.model.presets import load_model
from dsv4kv.model.schema import CacheFormats, choose_formats

GQA8 = "gqa8"
_KV_HEADS, _HEAD_DIM = 8, 128
_NO_KEYS = EntryFormat("none", "bf16", 0)


def gqa8_config() -> DSV4Config:
    """The baseline as a model that keeps one uncompressed entry per token and layer."""
    source = "GQA-8 baseline of arXiv:2606.19348"
    return load_model("v3.2").model_copy(
        update={"name": GQA8, "max_context_tokens": 1_048_576, "source": source}
    )


def gqa8_formats(config: DSV4Config, tp: int) -> CacheFormats:
    """Entry of one token on one rank: tensor parallelism splits the 8 heads, no further."""
    dims = 2 * _HEAD_DIM * (_KV_HEADS // min(tp, _KV_HEADS))
    window = choose_formats(config).window
    return CacheFormats(EntryFormat("bf16", "bf16", dims), window, _NO_KEYS)


def kv_heads(config: DSV4Config) -> int:
    """KV heads that tensor parallelism can split: DeepSeek's models have one."""
    return _KV_HEADS if config.name == GQA8 else 1
