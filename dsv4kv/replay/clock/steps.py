"""How long a step of a deployment takes, by its weights and a few coefficients of its GPU."""

from collections.abc import Sequence
from dataclasses import dataclass

from dsv4kv.budget import weights as wt
from dsv4kv.budget.gpus import load_gpu
from dsv4kv.budget.layout import Layout, LayoutWish, candidate_layouts
from dsv4kv.budget.lookup import find_weight_facts
from dsv4kv.config.replay import CostSection, ReplayConfig
from dsv4kv.core.clock import LinearTimes
from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.plan import LayerCacheSchema
from dsv4kv.replay.clock.coefficients import (
    BORROWED,
    CONSTANTS,
    Coefficients,
    MeasuredOn,
    find_calibration,
    find_coefficients,
)


@dataclass(frozen=True)
class WeightModel:
    """Weights of the layers held and of the output head."""

    dense_bytes: int  # read by every step
    expert_bytes: int  # routed experts, all together
    held_bytes: int  # all that is in memory: with the embedding, which no step reads as a whole
    experts: int  # routed experts of a layer
    experts_per_token: int  # routed experts of a layer that a token passes
    active_parameters: int  # parameters a token is multiplied with, without the embedding
    source: str  # how they are known, in words
    expert_parameters: int = 0  # active parameters of routed experts
    expert_kind: str = "fp4"  # type of the routed experts: ``fp4``, ``nvfp4``, ``fp8`` or ``bf16``

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


def find_weights(config: ReplayConfig, model: DSV4Config) -> tuple[wt.WeightFacts, wt.Weights]:
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
        facts = facts.with_experts(config.cost.experts)
    weights = wt.derive_weights(model, facts)
    if config.cost.weight_bytes is not None:
        weights = wt.scale_weights(weights, config.cost.weight_bytes, "as given")
    return facts, weights


def build_weights(
    config: ReplayConfig, model: DSV4Config, schemas: Sequence[LayerCacheSchema]
) -> WeightModel:
    """Work out the weights of a configuration; raises as ``find_weights`` does."""
    facts, weights = find_weights(config, model)
    per_token = min(facts.num_experts_per_tok, facts.n_routed_experts)
    alike = wt.find_alike(facts, [schema.layer for schema in schemas])
    known = {spec: wt.count_layer(model, facts, spec) for spec in dict.fromkeys(alike)}
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
        expert_kind=facts.storage.experts.name,
    )


def _part(weights: wt.Weights, schema: LayerCacheSchema) -> tuple[float, float]:
    draft = schema.layer.is_draft
    part = weights.draft if draft else weights.layers[schema.layer.layer_idx]
    return float(part.dense_bytes), float(part.expert_bytes)


@dataclass(frozen=True)
class Deployment:
    """A model on GPUs."""

    layers: int  # layers of it
    state_bytes: int  # of a token's hidden state, in bf16
    weights: WeightModel  # what they cost
    layout: Layout  # how it is spread
    draft_passes: int  # passes of the draft layer in each step
    all_to_all: bool  # whether tokens go to the experts' ranks and back through DeepEP
    bytes_per_s: float  # memory bandwidth of one GPU on the datasheet

    def weight_bytes(self, tokens: int) -> int:
        """Weight bytes that one rank reads in all its layers, by the tokens of all ranks."""
        layout, weights = self.layout, self.weights
        share = layout.expert_ranks / (layout.tp * layout.dp)  # of the tokens, to one copy
        touched: float = 1 - weights.left_alone ** (tokens * share)
        own = weights.expert_bytes * touched / layout.expert_ranks
        return round(weights.dense_bytes / layout.tp + own)

    def mflop(self, tokens: int, fullest: int) -> int:
        """10^6 operations of a rank's matrices, for tokens of all and of the fullest."""
        layout, weights = self.layout, self.weights
        dense = weights.active_parameters - weights.expert_parameters
        together = min(tokens, fullest * layout.expert_ranks // layout.tp)
        routed = together * weights.expert_parameters / layout.expert_ranks
        return round(2 * (fullest * dense / layout.tp + routed) / 1e6)


class ModelTimes:
    """Times of a deployment's steps by a few coefficients.

    ``client_s`` are from sending a request to its being scheduled, and back. ``held_out`` is the
    error on points that were not fitted.
    """

    def __init__(self, deployment: Deployment, coefficients: Coefficients) -> None:
        self._made, self.coefficients, self.layout = deployment, coefficients, deployment.layout
        error = coefficients.held_out  # of points without a pipeline
        self.held_out = error.widened(BORROWED) if self.layout.pp > 1 else error
        self.source = coefficients.source
        self.client_s = coefficients.client_ms / 1e3
        split, leaves_host = self.layout.tp > 1, self.layout.tp > coefficients.host_gpus
        context_ns = coefficients.split_context_ns if split else coefficients.context_ns
        apart = coefficients.across_hosts if leaves_host else 1.0
        rates = (
            apart * coefficients.decode_layer_us / 1e6,
            coefficients.draft_us / 1e6,
            1 / (coefficients.bandwidth_share * deployment.bytes_per_s),
            context_ns / 1e12,
            apart * coefficients.prompt_layer_us / 1e6,
            1e6 / (coefficients.tflops * 1e12),
            coefficients.state_passes / deployment.bytes_per_s,
            coefficients.all_to_all_ns / 1e9,
            coefficients.prefix_ns / 1e12,
        )
        self.timer = LinearTimes(
            rates,
            deployment.bytes_per_s * self.layout.gpus,
            deployment.layers,
            deployment.draft_passes,
            self.layout.dp * self.layout.pp,
            deployment.state_bytes,
            deployment.all_to_all,
            deployment.weight_bytes,
            deployment.mflop,
        )

    def decode_s(self, rows: int, context: int, draft_tokens: int = 0) -> float:
        """Seconds of a step in which ``rows`` requests of ``context`` tokens decode."""
        tokens = rows * (1 + draft_tokens)
        return self.timer.seconds(self.timer.step(rows, tokens, tokens * context, 0, 0, 0))

    def prompt_s(self, tokens: int, prefix: int = 0, ranks: int = 1) -> float:
        """Seconds of a chunk of a prompt after a prefix, one on each of ``ranks``."""
        counts = self.timer.step(0, 0, 0, ranks * tokens, tokens, tokens * prefix)
        return self.timer.seconds(counts)

    def constants(self) -> list[tuple[str, float, str]]:
        """The numbers that times depend on: name, value, unit."""
        rows = CONSTANTS.items()
        return [(name, getattr(self.coefficients, key), unit) for key, (name, unit) in rows]

    def by(self, coefficients: Coefficients) -> "ModelTimes":
        """The same deployment by other coefficients."""
        return ModelTimes(self._made, coefficients)


def open_times(
    config: ReplayConfig,
    model: DSV4Config,
    schemas: Sequence[LayerCacheSchema],
    weights: WeightModel,
) -> ModelTimes:
    """Times of steps by coefficients: calibrated, or the GPU's.

    Raises:
        ConfigError: An unknown GPU, a layout the model cannot have, a file that cannot be read,
            or nothing known of the deployment.
    """
    cost, gpu = config.cost, load_gpu(config.cost.gpu)
    if gpu.bandwidth_gbps is None:
        raise ConfigError(
            f"the bandwidth of {gpu.name} is not in the catalogue, so a step cannot be timed."
        )
    deployment = Deployment(
        layers=len(schemas),
        state_bytes=2 * model.hidden_size,
        weights=weights,
        layout=find_layout(cost, model),
        draft_passes=config.scheduler.speculative.draft_tokens,
        all_to_all=cost.all_to_all,
        bytes_per_s=gpu.bandwidth_gbps * 1e9,
    )
    if cost.calibration is None:
        return ModelTimes(deployment, find_coefficients(gpu, weights.expert_kind))
    here = MeasuredOn(gpu=gpu.name, model=model.name, layout=deployment.layout.label)
    return ModelTimes(deployment, find_calibration(cost.calibration).used_on(here))


def find_layout(cost: CostSection, model: DSV4Config) -> Layout:
    """How the GPUs are used; raises ``ConfigError`` where the model cannot be spread so."""
    wish = LayoutWish(cost.gpus, cost.tp, cost.dp, cost.pp, cost.ep)
    return candidate_layouts(model, wish, cost.gpus)[0]
