"""How long a step of a deployment takes: by its weights and its GPU's coefficients.

Coefficients come with their source and their error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dsv4kv.budget import weights as wt
from dsv4kv.budget.gpus import Gpu, load_gpu
from dsv4kv.budget.layout import Layout, LayoutWish, candidate_layouts
from dsv4kv.budget.weights import find_weight_facts
from dsv4kv.choices import listed
from dsv4kv.config.replay import CostSection, ReplayConfig
from dsv4kv.core.clock import LinearTimes
from dsv4kv.errors import ConfigError, first_problem
from dsv4kv.files import load_yaml, read_document, user_calibrations
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.plan import LayerCacheSchema

_MOST_BYTES = 2**20
BORROWED = 1.5
"""An unmeasured GPU's error, for a measured one's: what leaving out a whole GPU added was less."""

_Time = Annotated[float, Field(ge=0, le=1e6)]  # times end within what a clock can show
_Rate = Annotated[float, Field(ge=1e-3, le=1e9)]
MOST_FACTOR = 1e3
"""An error beyond this one says nothing more."""
_Factor = Annotated[float, Field(ge=1, le=MOST_FACTOR)]


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class HeldOut(_Frozen):
    """How far times were off on points that the coefficients were not fitted on.

    Nine of ten lay between a time divided by its factor and multiplied with it.
    """

    ttft: _Factor  # factor of times to the first token, and of waiting
    tpot: _Factor  # factor of times per output token, and of steps
    throughput: _Factor  # factor of tokens a second, and of whole requests

    def widened(self, factor: float) -> "HeldOut":
        """The same where less is known."""
        return HeldOut(**{name: min(value * factor, MOST_FACTOR) for name, value in self})

    def of(self, latency: str) -> float:
        """The factor of a latency of a replay."""
        names = {"queueing": "ttft", "ttft": "ttft", "tpot": "tpot"}
        return float(getattr(self, names.get(latency, "throughput")))


class MeasuredOn(_Frozen):
    """The deployment that coefficients were calibrated on."""

    gpu: str  # of the catalogue
    model: str  # that was served
    layout: str  # how it was spread over the GPUs


class Coefficients(_Frozen):
    """What a step takes: physical, none below 0, linear in what ``core.clock.COUNTS`` counts."""

    decode_layer_us: _Time
    """Of every layer of a decode pass, whatever the batch: launches, norms, exchange, in µs."""
    draft_us: _Time  # of every pass of the draft layer, in µs
    bandwidth_share: _Rate  # part of the datasheet's bandwidth at which weights are read
    context_ns: _Time
    """Of 1,000 tokens of context that a decoded token sees, on a rank with all heads, in ns."""
    split_context_ns: _Time
    """The same where tensor parallelism splits the heads: the KV is one head's and is not."""
    prompt_layer_us: _Time
    """To launch a layer of a prompt chunk, in µs: a chunk takes no less, and longer ones more."""
    state_passes: _Time
    """How often a rank moves the hidden states of a prompt through its memory in every layer: what
    no parallelism divides, norms, hyper-connections, indexer, reductions."""
    all_to_all_ns: _Time
    """Of every token of a prompt and layer, where experts are reached through DeepEP, in ns."""
    tflops: _Rate  # what matrices get out of one GPU, in 10^12 operations a second
    prefix_ns: _Time  # of 1,000 tokens before its chunk that a prompt token sees, in ns
    host_gpus: Annotated[int, Field(ge=1)] = 8  # of one host
    across_hosts: _Factor = 1.0  # factor of a layer where tensor parallelism leaves a host
    client_ms: _Time
    """From sending a request to its being scheduled, and back: client, HTTP, tokenizer, in ms."""
    held_out: HeldOut  # the error on held-out points
    source: str  # points that they were fitted on
    measured_on: MeasuredOn | None = None  # the deployment that they were fitted on, if it was one

    def used_on(self, other: MeasuredOn) -> "Coefficients":
        """The same for a deployment, which may be another one: then with more error."""
        pairs = [(was, getattr(other, name)) for name, was in self.measured_on or ()]
        if not (changed := [f"{now}, calibrated with {was}" for was, now in pairs if was != now]):
            return self
        return self.model_copy(
            update={
                "held_out": self.held_out.widened(BORROWED),
                "source": f"not calibrated for this deployment ({'; '.join(changed)}), so with "
                f"{BORROWED:g} times the error: {self.source}",
            }
        )


CONSTANTS = {
    "decode_layer_us": ("a layer of decoding", "µs"),
    "draft_us": ("a pass of the draft layer", "µs"),
    "bandwidth_share": ("share of the bandwidth", ""),
    "context_ns": ("1,000 tokens of context", "ns"),
    "split_context_ns": ("… with split heads", "ns"),
    "prompt_layer_us": ("to launch a layer of a prompt chunk", "µs"),
    "state_passes": ("hidden states of prompts moved", "times a layer"),
    "all_to_all_ns": ("… and of a token by DeepEP", "ns"),
    "tflops": ("matrices", "TFLOP/s"),
    "prefix_ns": ("1,000 tokens of prefix", "ns"),
}
"""Coefficients of steps in words, and their units."""

_RELATIVES = {"sm_100": "b200", "sm_103": "b300", "sm_90": "h200"}
_EXPERTS = {"fp4": ("fp4", "nvfp4"), "nvfp4": ("nvfp4", "fp4")}


def find_coefficients(gpu: Gpu, experts: str) -> Coefficients:
    """Coefficients of a GPU for a type of experts, or of its nearest relative, with more error."""
    own = _known(gpu, experts)
    if own is not None:
        return own
    relative = gpu if gpu.clock else load_gpu(_RELATIVES.get(gpu.arch or "", "h200"))
    found = _known(relative, experts) or Coefficients(**next(iter(relative.clock.values())))
    scale = (gpu.bf16_tflops or 0) / (relative.bf16_tflops or 1) or 1.0
    return found.model_copy(
        update={
            "tflops": found.tflops * scale,
            "held_out": found.held_out.widened(BORROWED),
            "source": f"no points of {gpu.name} with {experts} experts: as {relative.name}, "
            f"matrices by the datasheets; {found.source}",
        }
    )


def _known(gpu: Gpu, experts: str) -> Coefficients | None:
    for kind in _EXPERTS.get(experts, (experts,)):
        if kind in gpu.clock:
            return Coefficients(**gpu.clock[kind])
    return None


def find_calibration(name: str) -> Coefficients:
    """What ``dsv4kv replay calibrate`` stored by a name, or in a file; raises ``ConfigError``."""
    path, folder = Path(name), user_calibrations()
    known = sorted(each.stem for each in folder.glob("*.yaml")) if folder else []
    if folder and name in known:  # before a file that happens to be here
        path = folder / f"{name}.yaml"
    elif not path.suffix and not path.exists():
        raise ConfigError(
            f"cost.calibration is {name!r}, which is no file and no stored calibration: "
            f"{listed(known) if known else 'there is none yet'}; replay calibrate makes one."
        )
    try:
        (document,) = load_yaml(read_document(path, _MOST_BYTES).decode())
        return Coefficients(**document)
    except (OSError, TypeError, ValueError) as error:
        why = first_problem(error.errors()) if isinstance(error, ValidationError) else error
        raise ConfigError(
            f"cost.calibration: {path} has no coefficients of a clock: {why}. Give a file that "
            f"has {', '.join(Coefficients.model_fields)}."
        ) from error


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


def find_weights(config: ReplayConfig, model: DSV4Config) -> tuple[wt.WeightFacts, wt.Weights]:
    """Formats and bytes of the weights; ``ConfigError`` where the matrices are not known."""
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
    layers = (schema.layer for schema in schemas)
    parts = [weights.draft if n.is_draft else weights.layers[n.layer_idx] for n in layers]
    parts.append(weights.embedding)
    dense_bytes = round(sum(float(part.dense_bytes) for part in parts))
    expert_bytes = round(sum(float(part.expert_bytes) for part in parts))
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
    """Times of a deployment's steps by a few coefficients."""

    def __init__(self, deployment: Deployment, coefficients: Coefficients) -> None:
        self._made, self.coefficients, self.layout = deployment, coefficients, deployment.layout
        error = coefficients.held_out  # of points without a pipeline
        # the error on points that were not fitted
        self.held_out = error.widened(BORROWED) if self.layout.pp > 1 else error
        self.source = coefficients.source
        # from sending a request to its being scheduled, and back
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
    """Times of steps by coefficients: calibrated, or the GPU's; raises ``ConfigError``."""
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
