"""Which layers an engine has to store, and what it refuses to."""

from dataclasses import dataclass
from functools import lru_cache

from dsv4kv.errors import ConfigError
from dsv4kv.model.schedule import AttentionType, build_schedule
from dsv4kv.sizing.deployment import Deployment

DRAFT = "draft"
_V4_RATIOS = {0, 4, 128}


@dataclass(frozen=True)
class Layer:
    """One layer of the model: its index, its type (``swa``, ``csa``, ``hca``, ``draft``)."""

    index: int
    kind: str
    held: bool


@lru_cache(maxsize=256)
def layers_of(deployment: Deployment, engine: str) -> tuple[Layer, ...]:
    """Every layer of the model and the drafts of this rank, in model order.

    Raises:
        ConfigError: A model whose layout the engine's V4 rules do not describe, or an unknown
            layer.
    """
    model = deployment.model
    others = sorted(set(model.compress_ratios) - _V4_RATIOS)
    if model.architecture != "v4" or others or model.kv_owners is not None:
        raise ConfigError(
            f"the rules of {engine} are those of DeepSeek-V4 (layers of ratio 0, 4 and 128, each "
            f"with its own cache), which {model.name} is not: choose a V4 model, or the engine "
            "dsv4kv."
        )
    wanted = None if deployment.layers is None else set(deployment.layers)
    held = {spec.layer_idx for spec in build_schedule(model, layers=wanted)}
    own = [
        Layer(spec.layer_idx, AttentionType(spec.attn).value, spec.layer_idx in held)
        for spec in build_schedule(model)
    ]
    drafts = range(model.num_layers, model.num_layers + deployment.draft_layers)
    return (*own, *(Layer(index, DRAFT, held=True) for index in drafts))
