"""Read a published Hugging Face ``config.json``.

Two dialects tell the layer pattern: ``compress_ratios`` (DeepSeek's own checkpoints, draft layers
appended) and ``layer_types`` with ``compress_rates`` (transformers). Multimodal wrappers nest the
language model under ``text_config``.
"""

from typing import Any

from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DefaultFormats, DSV4Config, Yarn

_SLIDING = "sliding_attention"
_FLAT_MODEL_TYPES = ("deepseek_v32",)

# our field: name in config.json
_OPTIONAL = {
    "head_dim": "head_dim",
    "rope_dim": "qk_rope_head_dim",
    "window_tokens": "sliding_window",
    "index_heads": "index_n_heads",
    "index_dim": "index_head_dim",
    "max_context_tokens": "max_position_embeddings",
    "norm_eps": "rms_norm_eps",
    "rope_theta": "rope_theta",
    "compress_rope_theta": "compress_rope_theta",
}


def config_from_huggingface(document: dict[str, Any], name: str) -> DSV4Config:
    """Turn a parsed config.json into a ``DSV4Config``.

    Raises:
        ConfigError: A needed key is missing, or the layer pattern cannot be told.
        pydantic.ValidationError: A value of the wrong type or out of range.
    """
    text = document.get("text_config", document)
    if not isinstance(text, dict):
        raise ConfigError("text_config is not an object.")
    fields: dict[str, Any] = {ours: text[key] for ours, key in _OPTIONAL.items() if key in text}
    fields |= {
        "name": name,
        "num_layers": _required(text, "num_hidden_layers"),
        "hidden_size": _required(text, "hidden_size"),
        "num_heads": _required(text, "num_attention_heads"),
        "index_topk": _required(text, "index_topk"),
        "source": "Hugging Face config.json",
    }
    if text.get("model_type") in _FLAT_MODEL_TYPES:
        fields |= _flat_fields(text)
    else:
        fields |= {"compress_ratios": _compress_ratios(text)}
    return DSV4Config(**fields, yarn=_yarn(text))


def _required(text: dict[str, Any], key: str) -> Any:
    if key not in text:
        raise ConfigError(f"{key} is missing: is this the config of a DeepSeek-V4 model?")
    return text[key]


def _flat_fields(text: dict[str, Any]) -> dict[str, Any]:
    layers = _required(text, "num_hidden_layers") + text.get("num_nextn_predict_layers", 0)
    return {
        "architecture": "flat",
        "compress_ratios": (1,) * layers,
        "head_dim": _required(text, "kv_lora_rank") + _required(text, "qk_rope_head_dim"),
        "formats": DefaultFormats(indexer="fp8"),
    }


def _compress_ratios(text: dict[str, Any]) -> tuple[int, ...]:
    if text.get("compress_ratios") is not None:
        return tuple(text["compress_ratios"])
    if "layer_types" not in text or "compress_rates" not in text:
        raise ConfigError(
            "neither compress_ratios nor layer_types with compress_rates: "
            "the layer pattern of the cache cannot be told."
        )
    rates: dict[str, int] = {_SLIDING: 0} | text["compress_rates"]
    unknown = sorted(set(text["layer_types"]) - set(rates))
    if unknown:
        raise ConfigError(
            f"layer_types has {', '.join(unknown)} without a rate in compress_rates."
        )
    drafts: int = text.get("num_nextn_predict_layers") or 0
    missing = max(0, text["num_hidden_layers"] + drafts - len(text["layer_types"]))
    ratios = [rates[kind] for kind in text["layer_types"]] + [0] * min(missing, drafts)
    return tuple(ratios)


def _yarn(text: dict[str, Any]) -> Yarn:
    scaling = text.get("rope_scaling") or {}
    keys = {"original_max_position": "original_max_position_embeddings"}
    names = [field for field in Yarn.model_fields if keys.get(field, field) in scaling]
    return Yarn(**{field: scaling[keys.get(field, field)] for field in names})
