"""The few numbers that time a step on one kind of GPU, with their source and their error."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from dsv4kv.budget.gpus import Gpu, load_gpu
from dsv4kv.choices import listed
from dsv4kv.errors import ConfigError
from dsv4kv.files import load_yaml, read_document, user_calibrations

_MOST_BYTES = 2**20
BORROWED = 1.5
"""An unmeasured GPU's error, for a measured one's: what leaving out a whole GPU added was less."""

_Time = Annotated[float, Field(ge=0)]
_Rate = Annotated[float, Field(gt=0)]
_Factor = Annotated[float, Field(ge=1)]


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
        return HeldOut(**{name: value * factor for name, value in self})

    def of(self, latency: str) -> float:
        """The factor of a latency of a replay."""
        names = {"queueing": "ttft", "ttft": "ttft", "tpot": "tpot"}
        return float(getattr(self, names.get(latency, "throughput")))


class MeasuredOn(_Frozen):
    """The deployment that coefficients were calibrated on."""

    gpu: str  # of the catalogue
    model: str  # that was served
    layout: str  # how it was spread over the GPUs

    def differences(self, other: "MeasuredOn") -> list[str]:
        """What differs of another one, in words."""
        pairs = ((was, getattr(other, name)) for name, was in self)
        return [f"{now}, calibrated with {was}" for was, now in pairs if was != now]


class Coefficients(_Frozen):
    """What a step takes: physical, none below 0, linear in what ``steps.COUNTS`` counts."""

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
        if self.measured_on is None or not (changed := self.measured_on.differences(other)):
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
    """Coefficients that ``dsv4kv replay calibrate`` stored by a name, or in a file.

    Raises:
        ConfigError: There are none, or the file has no coefficients.
    """
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
        raise ConfigError(
            f"cost.calibration: {path} has no coefficients of a clock: {error}. Give a file that "
            f"has {', '.join(Coefficients.model_fields)}."
        ) from error
