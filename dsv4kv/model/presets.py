"""Models by name: the shipped presets and published Hugging Face ``config.json`` files.

Read a published Hugging Face ``config.json``. Two dialects describe the layer pattern:
``compress_ratios`` (DeepSeek's own checkpoints, draft layers appended) and ``layer_types`` with
``compress_rates`` (transformers). Multimodal wrappers nest the language model under
``text_config``.
"""

from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DefaultFormats, DSV4Config, Positive, Yarn
from dsv4kv.reading import Unparsable, read_json
from dsv4kv.resources import shipped, shipped_names

_SLIDING = "sliding_attention"
_FLAT_MODEL_TYPES = ("deepseek_v32",)

# our field: name in config.json
_OPTIONAL = {
    "head_dim": "head_dim",
    "rope_dim": "qk_rope_head_dim",
    "window_tokens": "sliding_window",
    "num_hash_layers": "num_hash_layers",
    "index_heads": "index_n_heads",
    "index_dim": "index_head_dim",
    "max_context_tokens": "max_position_embeddings",
    "norm_eps": "rms_norm_eps",
    "rope_theta": "rope_theta",
    "compress_rope_theta": "compress_rope_theta",
}


class _PatternKeys(BaseModel):
    """Keys that are worked with before ``DSV4Config`` checks the outcome."""

    model_config = ConfigDict(frozen=True)

    num_hidden_layers: Positive
    num_nextn_predict_layers: Annotated[int, Field(ge=0)] | None = None
    compress_ratios: tuple[int, ...] | None = None
    layer_types: tuple[str, ...] | None = None
    compress_rates: dict[str, int] | None = None
    kv_lora_rank: Positive | None = None
    qk_rope_head_dim: Positive | None = None
    rope_scaling: dict[str, Any] | None = None


def config_from_huggingface(document: dict[str, Any], name: str) -> DSV4Config:
    """Turn a parsed config.json into a ``DSV4Config``.

    Raises:
        ConfigError: A needed key is missing, or the layer pattern cannot be derived.
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
    keys = _PatternKeys.model_validate(text)
    if text.get("model_type") in _FLAT_MODEL_TYPES:
        fields |= _flat_fields(keys)
    else:
        fields |= {"compress_ratios": _compress_ratios(keys)}
    return DSV4Config(**fields, yarn=_yarn(keys.rope_scaling or {}))


def _required(text: dict[str, Any], key: str) -> Any:
    if key not in text:
        raise ConfigError(f"{key} is missing: is this the config of a DeepSeek-V4 model?")
    return text[key]


def _flat_fields(keys: _PatternKeys) -> dict[str, Any]:
    if keys.kv_lora_rank is None or keys.qk_rope_head_dim is None:
        raise ConfigError("kv_lora_rank or qk_rope_head_dim is missing: V3.2 models have both.")
    layers = keys.num_hidden_layers + (keys.num_nextn_predict_layers or 0)
    return {
        "architecture": "flat",
        "compress_ratios": (1,) * layers,
        "head_dim": keys.kv_lora_rank + keys.qk_rope_head_dim,
        "formats": DefaultFormats(indexer="fp8"),
    }


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


def _yarn(scaling: dict[str, Any]) -> Yarn:
    keys = {"original_max_position": "original_max_position_embeddings"}
    names = [field for field in Yarn.model_fields if keys.get(field, field) in scaling]
    return Yarn(**{field: scaling[keys.get(field, field)] for field in names})


def preset_names() -> list[str]:
    """Names of the shipped presets, sorted."""
    return shipped_names("models")


def load_model(name: str) -> DSV4Config:
    """Load a shipped preset (``v4-flash``) or a Hugging Face config.json (by path, or folder).

    Raises:
        ConfigError: No such preset or file, or a file that does not describe such a model.
    """
    if name in preset_names():
        text = (shipped("configs") / "models" / f"{name}.yaml").read_text(encoding="utf-8")
        return DSV4Config(**yaml.safe_load(text))
    path = config_file(name)
    if path is None:
        raise ConfigError(
            f"no model {name!r}: give a preset ({', '.join(preset_names())}) "
            "or the path of a Hugging Face config.json."
        )
    try:
        return config_from_huggingface(read_config(path), name=_model_name(path))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except ValidationError as error:
        problems = "; ".join(f"{_where(e['loc'])}: {e['msg']}" for e in error.errors())
        raise ConfigError(f"{path}: {problems}.") from None


def _model_name(path: Path) -> str:
    """A checkpoint folder's name for its ``config.json``, else the file's own."""
    return path.resolve().parent.name if path.name == "config.json" else path.stem


def _where(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location) or "config"


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
