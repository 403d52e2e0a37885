"""What a sizing question names: its model, GPU, formats and weights."""

from functools import cache
from pathlib import Path

import yaml
from pydantic import ValidationError

from dsv4kv.budget import weights as wt
from dsv4kv.budget.gpus import Gpu, load_gpu, plain_memory
from dsv4kv.budget.inputs import DEFAULT_GPU, Inputs
from dsv4kv.budget.quantised import experts_of_name, storage_of_name
from dsv4kv.engines.names import family_of
from dsv4kv.errors import ConfigError, find_name
from dsv4kv.files import shipped
from dsv4kv.model import presets as ps
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.plan import CacheFormats, choose_formats
from dsv4kv.units import format_bytes


def find_model(name: str) -> DSV4Config:
    """A preset, or a config.json; raises ``ConfigError`` with the nearest names."""
    name = ps.preset_of(name)
    if _model_file(name):
        return ps.load_model(name)
    otherwise = ", or the path of a Hugging Face config.json"
    return ps.load_model(find_name(name, ps.preset_names(), "model", otherwise))


def _model_file(name: str) -> Path | None:
    """The config.json that a name is the path of; None for a known model or no file."""
    return None if name in ps.preset_names() else ps.config_file(name)


def find_gpu(inputs: Inputs) -> Gpu:
    """The GPU named, or the memory given; raises ``ConfigError``."""
    if inputs.hbm is None:
        return load_gpu(inputs.gpu or DEFAULT_GPU)
    if inputs.gpu is not None:
        raise ConfigError(
            f"--gpu {inputs.gpu} and --hbm {format_bytes(inputs.hbm)} both give a GPU's memory: "
            "keep one."
        )
    return plain_memory(inputs.hbm)


def find_formats(inputs: Inputs, config: DSV4Config) -> CacheFormats:
    """Formats of the entries on one rank; raises ``ConfigError`` with the choices."""
    return choose_formats(config, inputs.main_format, inputs.window_format, inputs.indexer_format)


def find_weights(inputs: Inputs, config: DSV4Config) -> wt.Weights:
    """The weights given, or derived from the model; ``ConfigError`` where neither is known."""
    family = family_of(inputs.engine)
    if family and family.offloads and inputs.weights is None:
        raise ConfigError(
            f"{family.title} has experts on the CPU, and how large the weights on its GPUs are is "
            "not known: give their size to budget with --weights."
        )
    own = _model_file(inputs.model)
    try:
        if own is None:
            derived = _known_weights(config.name, inputs.checkpoint or inputs.model)
        else:
            facts = find_weight_facts(inputs.model, config)
            derived = wt.derive_weights(config, facts) if facts else None
    except ConfigError:
        if inputs.weights is None:
            raise
        derived = None if own else _known_weights(config.name, "")
    if inputs.weights is not None:
        if derived is None:
            return wt.spread_weights(config, inputs.weights)
        return wt.scale_weights(derived, inputs.weights, "as given, spread as derived")
    if derived is None:
        raise ConfigError(
            f"how large the weights of {config.name} are is not known: give --weights 150GiB, the "
            "size of the checkpoint."
        )
    return derived


def find_weight_facts(model: str, config: DSV4Config) -> wt.WeightFacts | None:
    """The sizes behind the weights of a preset or a config.json; None where not known."""
    own = _model_file(model)
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
        return wt.WeightFacts.model_validate(text)
    except ValidationError:
        return None


@cache
def _known_facts(name: str) -> wt.WeightFacts | None:
    path = shipped("configs") / "weights" / f"{name}.yaml"
    if not path.is_file():
        return None
    return wt.WeightFacts(**yaml.safe_load(path.read_text(encoding="utf-8")))


@cache
def _known_weights(name: str, checkpoint: str) -> wt.Weights | None:
    """A preset's weights, as the name of a checkpoint says that they are stored."""
    facts, config = _known_facts(name), ps.load_model(name)
    if facts is None or not checkpoint:
        return None if facts is None else wt.derive_weights(config, facts)
    stored = storage_of_name(checkpoint) or facts.storage

    def count(experts: int) -> int:
        pruned = facts.model_copy(update={"n_routed_experts": experts})
        return wt.derive_weights(config, pruned).parameters or 0

    left = experts_of_name(checkpoint, facts.n_routed_experts, count)
    changes = {"n_routed_experts": left, "stored": stored}
    if changes != {"n_routed_experts": facts.n_routed_experts, "stored": facts.storage}:
        changes["source"] = f"the name {checkpoint[:100]}, {left} experts a layer"
    return wt.derive_weights(config, facts.model_copy(update=changes))
