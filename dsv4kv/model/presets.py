"""Models by name: the shipped presets and published Hugging Face ``config.json`` files.

Read a published Hugging Face ``config.json``. Two dialects describe the layer pattern:
``compress_ratios`` (DeepSeek's own checkpoints, draft layers appended) and ``layer_types`` with
``compress_rates`` (transformers). Multimodal wrappers nest the language model under
``text_config``. A key that is not read here and that looks like the structure of a cache is an
error: a file of another kind would be sized, but wrongly.
"""

import re
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dsv4kv.errors import ConfigError
from dsv4kv.files import Unparsable, read_json, shipped, shipped_names
from dsv4kv.model.config import DefaultFormats, DSV4Config, Layers, Positive, Yarn

_SLIDING = "sliding_attention"
_FLAT_MODEL_TYPES = ("deepseek_v32",)
_V41_MODEL_TYPES = ("deepseek_v41", "deepseek_v41_text")

# our field: name in config.json
_OPTIONAL = {
    "head_dim": "head_dim",
    "rope_dim": "qk_rope_head_dim",
    "window_tokens": "sliding_window",
    "num_hash_layers": "num_hash_layers",
    "index_heads": "index_n_heads",
    "index_dim": "index_head_dim",
    "kv_owners": "kv_source_layer_ids",
    "index_sources": "index_source_layer_ids",
    "max_context_tokens": "max_position_embeddings",
    "norm_eps": "rms_norm_eps",
    "rope_theta": "rope_theta",
    "compress_rope_theta": "compress_rope_theta",
}


_CHECKPOINT = re.compile(r"(?:[\w.-]{1,99}/)?deepseek-?v[\w.-]{1,99}(?<!\.json)", re.IGNORECASE)

# A key like these decides what a cache holds, unless it is read or known not to.
_OF_A_CACHE = re.compile(
    r"_layer_ids?$|layer_types$|^compress|^index|^kv_|^candidate|sliding|window|head_dim$|cache"
)
_OF_NO_CACHE = {
    *("dspark_target_layer_ids", "engram_head_dim", "engram_layer_ids", "indexer_rope_interleave"),
    *("kv_lora_rank", "mlp_layer_types", "qk_nope_head_dim", "use_cache", "v_head_dim"),
}


class _PatternKeys(BaseModel):
    """Keys that are worked with before ``DSV4Config`` checks the outcome."""

    model_config = ConfigDict(frozen=True)

    num_hidden_layers: Layers
    num_nextn_predict_layers: Annotated[int, Field(ge=0, le=1024)] | None = None
    compress_ratios: tuple[int, ...] | None = None
    layer_types: tuple[str, ...] | None = None
    compress_rates: dict[str, int] | None = None
    kv_lora_rank: Positive | None = None
    qk_rope_head_dim: Positive | None = None
    rope_scaling: dict[str, Any] | None = None
    candidate_source_layer_id: int | None = None
    candidate_topk_blocks: int | None = None
    candidate_block_size: int | None = None
    use_index_cache: bool | None = None
    index_topk_freq: Positive | None = None
    index_topk_pattern: str | None = None
    index_skip_topk_offset: Positive | None = None


_NEEDED = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_attention_heads",
    "index_topk": "index_topk",
}
_READ = {*_OPTIONAL.values(), *_NEEDED.values(), *_PatternKeys.model_fields}


def config_from_huggingface(document: dict[str, Any], name: str) -> DSV4Config:
    """Turn a parsed config.json into a ``DSV4Config``.

    Raises ``ConfigError`` where a key is missing, the layer pattern cannot be derived, or a key
    is not known that looks like the structure of a cache; ``pydantic.ValidationError``.
    """
    text = document.get("text_config", document)
    if not isinstance(text, dict):
        raise ConfigError("text_config is not an object.")
    fields: dict[str, Any] = {
        ours: text[key] for ours, key in _OPTIONAL.items() if text.get(key) not in (None, [])
    }
    for ours, key in _NEEDED.items():
        if key not in text:
            raise ConfigError(f"{key} is missing: is this the config of a DeepSeek-V4 model?")
        fields[ours] = text[key]
    fields |= {"name": name, "source": "Hugging Face config.json"}
    keys = _PatternKeys.model_validate(text)
    if text.get("model_type") in _FLAT_MODEL_TYPES:
        fields |= _flat_fields(keys)
    else:
        fields["compress_ratios"] = _compress_ratios(keys)
        if (source := keys.candidate_source_layer_id) is not None and source >= 0:
            blocks, entries = keys.candidate_topk_blocks, keys.candidate_block_size
            fields["candidates"] = {"source": source, "blocks": blocks, "block_entries": entries}
    if is_v41(text):
        fields["formats"] = V41_FORMATS
    known = _READ | _OF_NO_CACHE
    unread = [key for key, value in text.items() if value is not None and key not in known]
    if unread := [key for key in unread if _OF_A_CACHE.search(key)]:
        raise ConfigError(
            f"{', '.join(unread)}: not known here, and by the name it may change what the cache "
            "holds. Take it out of the file if it does not."
        )
    scaling = dict(keys.rope_scaling or {})
    scaling["original_max_position"] = scaling.pop("original_max_position_embeddings", None)
    yarn = {key: scaling[key] for key in Yarn.model_fields if scaling.get(key) is not None}
    return DSV4Config(**fields, yarn=yarn)


def is_v41(text: dict[str, Any]) -> bool:
    """Whether a config.json is one of DeepSeek-V4.1."""
    return text.get("model_type") in _V41_MODEL_TYPES


V41_FORMATS = DefaultFormats(main="fp4", window="fp8_group32", indexer="mxfp4")
"""What DeepSeek-V4.1 is served with on the GPUs it was made for."""


def _flat_fields(keys: _PatternKeys) -> dict[str, Any]:
    if keys.kv_lora_rank is None or keys.qk_rope_head_dim is None:
        raise ConfigError("kv_lora_rank or qk_rope_head_dim is missing: V3.2 models have both.")
    layers = keys.num_hidden_layers + (keys.num_nextn_predict_layers or 0)
    return {
        "architecture": "flat",
        "compress_ratios": (1,) * layers,
        "head_dim": keys.kv_lora_rank + keys.qk_rope_head_dim,
        "formats": DefaultFormats(indexer="fp8"),
        "index_sources": _selecting_layers(keys),
    }


def _selecting_layers(keys: _PatternKeys) -> tuple[int, ...] | None:
    """IndexCache in V3.2: the layers that select, all others take what the last one selected.

    Source: vLLM 0.33.0 (models/deepseek_v32/attention.py), SGLang 0.5.23 (model_config.py).
    """
    pattern, every = keys.index_topk_pattern, keys.index_topk_freq or 1
    if pattern is None and every == 1:
        return None
    layers = range(keys.num_hidden_layers)
    if pattern is not None:
        return tuple(n for n in layers if pattern[n : n + 1] != "S")
    first = (keys.index_skip_topk_offset or 2) - 1
    return tuple(n for n in layers if max(n - first, 0) % every == 0)


def _compress_ratios(keys: _PatternKeys) -> tuple[int, ...]:
    if keys.compress_ratios is not None:
        return keys.compress_ratios
    if keys.layer_types is None or keys.compress_rates is None:
        raise ConfigError(
            "neither compress_ratios nor layer_types with compress_rates: "
            "the layer pattern of the cache cannot be derived."
        )
    rates = {_SLIDING: 0} | keys.compress_rates
    unknown = sorted(set(keys.layer_types) - set(rates))
    if unknown:
        raise ConfigError(
            f"layer_types has {', '.join(unknown)} without a rate in compress_rates."
        )
    drafts = keys.num_nextn_predict_layers or 0
    missing = max(0, keys.num_hidden_layers + drafts - len(keys.layer_types))
    return (*(rates[kind] for kind in keys.layer_types), *[0] * min(missing, drafts))


def preset_names() -> list[str]:
    """Names of the shipped presets, sorted."""
    return shipped_names("models")


def preset_named(text: str) -> str | None:
    """The preset that a model's name or path means; None where it means none."""
    name = re.sub(r"[^a-z0-9.]+", "-", text.lower())
    ends = r"(-|\.[a-z]|$)"
    found = (p for p in preset_names() if re.search(rf"(^|[-a-z]){re.escape(p)}{ends}", name))
    return next(found, None)


def preset_of(name: str) -> str:
    """The preset that a name as ``deepseek-ai/DeepSeek-V4-Pro`` means, else the name."""
    is_checkpoint = _CHECKPOINT.fullmatch(name) and not config_file(name)
    return (preset_named(name) or name) if is_checkpoint else name


def load_model(name: str) -> DSV4Config:
    """Load a preset (``v4-flash``, ``deepseek-ai/DeepSeek-V4-Flash``) or a config.json, by path.

    Raises ``ConfigError`` where there is none, or a file does not describe such a model.
    """
    name = preset_of(name)
    if name in preset_names():
        return _read_preset(name)
    path = config_file(name)
    if path is None:
        raise ConfigError(
            f"no model {name!r}: give a preset ({', '.join(preset_names())}) "
            "or the path of a Hugging Face config.json."
        )
    try:
        # a checkpoint folder's name for its config.json, else the file's own
        stem = path.resolve().parent.name if path.name == "config.json" else path.stem
        return config_from_huggingface(read_config(path), name=stem)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except ValidationError as error:
        found = [(".".join(map(str, e["loc"])) or "config", e["msg"]) for e in error.errors()]
        problems = "; ".join(f"{where}: {problem}" for where, problem in found)
        raise ConfigError(f"{path}: {problems}.") from None


@cache
def _read_preset(name: str) -> DSV4Config:
    text = (shipped("configs") / "models" / f"{name}.yaml").read_text(encoding="utf-8")
    return DSV4Config(**yaml.safe_load(text))


def config_file(name: str) -> Path | None:
    """The ``config.json`` that a name is the path of, or the folder of; None if there is none."""
    path = Path(name) / "config.json" if Path(name).is_dir() else Path(name)
    return path if path.exists() else None


def read_config(path: Path) -> dict[str, Any]:
    """Read a Hugging Face ``config.json``; raises ``ConfigError``, without the path."""
    try:
        document = read_json(path)
    except Unparsable as error:
        raise ConfigError(f"not JSON: {error}: give a Hugging Face config.json.") from None
    except OSError as error:
        raise ConfigError(f"cannot be read ({error.strerror}).") from None
    if not isinstance(document, dict):
        raise ConfigError("a Hugging Face config.json is a JSON object.")
    return document
