"""Virtual time, worked out from whole numbers of bytes, operations and steps.

Time is a function of the work done so far, never a sum of rounded times: a stretch of steps ends
at the same instant whether it was taken at once or step by step.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from dsv4kv.config.replay import CostSection, ReplayConfig
from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.schema import LayerCacheSchema
from dsv4kv.names import find_name
from dsv4kv.record.store import load_record
from dsv4kv.record.yardstick import COPIES, yardsticks
from dsv4kv.replay.costs import READS, Ints, StepTables
from dsv4kv.sizing.gpus import gpu_names, load_gpu
from dsv4kv.sizing.lookup import find_weight_facts
from dsv4kv.sizing.weights import Weights, count_layer, derive_weights, scale_weights


@dataclass(frozen=True)
class Rates:
    """Rates of all GPUs together.

    Attributes:
        bytes_per_s: Memory traffic.
        operations_per_s: Arithmetic.
        overhead_s: Of every step.
        source: Where the bandwidth comes from, in words.
    """

    bytes_per_s: float
    operations_per_s: float
    overhead_s: float
    source: str


def find_rates(cost: CostSection) -> Rates:
    """Work out the rates.

    Raises:
        ConfigError: Two bandwidths or none, an unknown GPU, a record without peaks.
        RecordError: The record cannot be read.
    """
    gbps, source = _bandwidth(cost)
    return Rates(
        bytes_per_s=gbps * 1e9 * cost.gpus,
        operations_per_s=cost.tflops * 1e12 * cost.gpus,
        overhead_s=cost.overhead_us / 1e6,
        source=source,
    )


def _bandwidth(cost: CostSection) -> tuple[float, str]:
    """GB/s of one GPU, and how that is known."""
    if cost.bandwidth_gbps is not None and cost.peaks is not None:
        raise ConfigError("cost.bandwidth_gbps and cost.peaks both give a bandwidth: keep one.")
    if cost.bandwidth_gbps is not None:
        return cost.bandwidth_gbps, "as given"
    if cost.peaks is not None:
        return _measured(cost.peaks)
    if cost.gpu is None:
        raise ConfigError(
            "no memory bandwidth is given: name a GPU (cost.gpu), a bandwidth "
            "(cost.bandwidth_gbps) or a run that measured one (cost.peaks)."
        )
    known = find_name(cost.gpu, gpu_names(), "GPU", ", or its bandwidth as cost.bandwidth_gbps")
    gpu = load_gpu(known)
    if gpu.bandwidth_gbps is None:
        raise ConfigError(
            f"the bandwidth of {gpu.name} is not in the catalogue: give cost.bandwidth_gbps."
        )
    share = f"{cost.bandwidth_share:.0%} of {gpu.bandwidth_gbps:,} GB/s, {gpu.source}"
    return gpu.bandwidth_gbps * cost.bandwidth_share, share


def _measured(path: str) -> tuple[float, str]:
    """The median of the fastest plain copy, reads and writes both counted."""
    for case in load_record(Path(path)).cases:
        for copy in yardsticks(case)[:1]:
            if copy.name in ("memcpy", *COPIES) and copy.samples_ns:
                return copy.bytes / median(copy.samples_ns), f"copy measured in {path}"
    raise ConfigError(
        f"{path} has no measured copy: take the record of a run with workload.data real."
    )


@dataclass(frozen=True, slots=True)
class Work:
    """Work of steps, in whole numbers.

    Attributes:
        steps: Steps.
        weight_bytes: Weights read.
        update_bytes: Moved to bring tokens into the cache.
        score_bytes: Moved to score keys.
        select_bytes: Moved to choose among the scores.
        attend_bytes: Moved to attend.
        gather_bytes: Moved by prompt chunks to read the cache.
        copy_bytes: Read and written by checkpoints.
        operations: Multiplications and additions.
    """

    steps: int = 0
    weight_bytes: int = 0
    update_bytes: int = 0
    score_bytes: int = 0
    select_bytes: int = 0
    attend_bytes: int = 0
    gather_bytes: int = 0
    copy_bytes: int = 0
    operations: int = 0

    @property
    def cache_bytes(self) -> int:
        """Bytes that the cache moves."""
        reads = self.score_bytes + self.select_bytes + self.attend_bytes + self.gather_bytes
        return self.update_bytes + reads + self.copy_bytes

    @property
    def moved_bytes(self) -> int:
        """All bytes."""
        return self.weight_bytes + self.cache_bytes

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.steps + other.steps,
            self.weight_bytes + other.weight_bytes,
            self.update_bytes + other.update_bytes,
            self.score_bytes + other.score_bytes,
            self.select_bytes + other.select_bytes,
            self.attend_bytes + other.attend_bytes,
            self.gather_bytes + other.gather_bytes,
            self.copy_bytes + other.copy_bytes,
            self.operations + other.operations,
        )


class VirtualClock:
    """Tells the time; it only ever goes forward.

    Attributes:
        done: Work done so far.
        idle_s: Time in which there was none.
    """

    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self.done = Work()
        self.idle_s = 0.0
        self._busy_s = 0.0

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        return self.idle_s + self._busy_s

    def after(self, work: Work) -> float:
        """The time at which work that begins now would end."""
        return self.idle_s + self._duration(self.done + work)

    def work(self, work: Work) -> None:
        """Do work."""
        self.done = self.done + work
        self._busy_s = self._duration(self.done)

    def wait_until(self, time_s: float) -> None:
        """Do nothing until then; nothing happens where that is past."""
        self.idle_s = max(self.idle_s, time_s - self._busy_s)
        while self.now_s < time_s:  # the sum may fall short of it by a rounding
            self.idle_s = math.nextafter(self.idle_s, math.inf)

    def _duration(self, work: Work) -> float:
        rates = self._rates
        return (
            work.steps * rates.overhead_s
            + work.moved_bytes / rates.bytes_per_s
            + work.operations / rates.operations_per_s
        )


Charge = Callable[[Work], float]
"""Returns the seconds that the cache's part of some work took, now that it is done."""


class MeasuredClock(VirtualClock):
    """Takes the cache's part of all work as it was measured.

    Overhead, weights and arithmetic stay as the model says: a cache computes no attention.
    """

    def __init__(self, rates: Rates, charge: Charge) -> None:
        super().__init__(rates)
        self._charge = charge
        self._measured_s = 0.0

    def work(self, work: Work) -> None:
        """Count work that has been done."""
        self._measured_s += self._charge(work)
        super().work(work)

    def _duration(self, work: Work) -> float:
        rates = self._rates
        return (
            self._measured_s
            + work.steps * rates.overhead_s
            + work.weight_bytes / rates.bytes_per_s
            + work.operations / rates.operations_per_s
        )


@dataclass(frozen=True)
class WeightModel:
    """Weights of the layers held and of the output head.

    Attributes:
        dense_bytes: Read by every step.
        expert_bytes: Routed experts, all together.
        held_bytes: All that lies in memory: with the embedding, which no step reads as a whole.
        experts: Routed experts of a layer.
        experts_per_token: Of which a token passes so many.
        active_parameters: Parameters a token is multiplied with, the embedding left out.
        source: How they are known, in words.
    """

    dense_bytes: int
    expert_bytes: int
    held_bytes: int
    experts: int
    experts_per_token: int
    active_parameters: int
    source: str

    def step_bytes(self, tokens: int) -> int:
        """Bytes that a step of so many tokens reads.

        Every token chooses its experts on its own and all alike: an expert is left alone by one
        token with probability 1 − k/E, by all with that to the power of the tokens.
        """
        untouched = (1 - self.experts_per_token / self.experts) ** tokens
        return self.dense_bytes + round(self.expert_bytes * (1 - untouched))


def build_weights(
    config: ReplayConfig, model: DSV4Config, schemas: Sequence[LayerCacheSchema]
) -> WeightModel:
    """Work out the weights of a configuration.

    Raises:
        ConfigError: The sizes of the model's matrices are not known.
    """
    facts = find_weight_facts(config.model.preset, model)
    if facts is None:
        raise ConfigError(
            f"how large the weights of {model.name} are is not known, so a step cannot be timed: "
            "take v4-flash, v4-pro or v3.2, or the path of a whole config.json."
        )
    weights = derive_weights(model, facts)
    if config.cost.weight_bytes is not None:
        weights = scale_weights(weights, config.cost.weight_bytes, "as given")
    per_token = min(config.cost.experts_per_token, facts.n_routed_experts)
    counts = [count_layer(model, facts, schema.layer) for schema in schemas]
    dense = sum(count for count, _ in counts) + facts.vocab_size * model.hidden_size
    routed = sum(count for _, count in counts)
    parts = [_part(weights, schema) for schema in schemas]
    dense_bytes = round(sum(part[0] for part in parts) + weights.embedding.dense_bytes)
    expert_bytes = round(sum(part[1] for part in parts) + weights.embedding.expert_bytes)
    return WeightModel(
        dense_bytes=dense_bytes,
        expert_bytes=expert_bytes,
        held_bytes=dense_bytes + expert_bytes + round(weights.embedding.dense_bytes),
        experts=facts.n_routed_experts,
        experts_per_token=per_token,
        active_parameters=dense + routed * per_token // facts.n_routed_experts,
        source=weights.source,
    )


def _part(weights: Weights, schema: LayerCacheSchema) -> tuple[float, float]:
    draft = schema.layer.is_draft
    part = weights.draft if draft else weights.layers[schema.layer.layer_idx]
    return float(part.dense_bytes), float(part.expert_bytes)


Span = tuple[int, int]
"""Tokens of a request before and after a part of its prompt is computed."""


_PER_WEIGHT = 2
"""A multiplication and an addition."""


class CostModel:
    """Turns tokens into work."""

    def __init__(self, tables: StepTables, weights: WeightModel) -> None:
        """``tables`` reach as far as the longest request."""
        self._tables = tables
        self._weights = weights
        operations = tables.operations + _PER_WEIGHT * weights.active_parameters
        reads = (tables.reads[kind] for kind in READS)
        each = (tables.updates, *reads, operations, tables.shared)
        self._sums: Ints = np.stack(each, axis=1).cumsum(axis=0)
        self._weight_bytes: dict[int, int] = {}

    def decode(self, lengths: Ints, steps: int) -> Work:
        """``steps`` steps in which requests of ``lengths`` int64[B] decode one token each."""
        sums = self._sums
        difference = sums.take(lengths + steps, axis=0) - sums.take(lengths, axis=0)
        weights = steps * self.weight_bytes(len(lengths))
        return _decoding(steps, weights, *difference.sum(axis=0).tolist())

    def speculate(self, before: Ints, taken: Ints) -> list[Work]:
        """Steps in which requests verify windows of tokens.

        Args:
            before: int64[steps, B]: tokens before each step.
            taken: int64[steps, B]: tokens each step takes.
        """
        after = before + taken
        difference = self._sums[after] - self._sums[before]
        difference[..., -1] = self._tables.shared[after]  # once, not for every token
        tokens, rows = taken.sum(axis=1).tolist(), difference.sum(axis=1).tolist()
        return [
            _decoding(1, self.weight_bytes(count), *row)
            for count, row in zip(tokens, rows, strict=True)
        ]

    def mixed(
        self, decoding: Work, decoded_tokens: int, spans: Sequence[Span], steps: int = 1
    ) -> Work:
        """Steps of decoding requests and prompt chunks; weights are read once a step.

        Args:
            decoding: Work of all decoding.
            decoded_tokens: Tokens that decode in each step.
            spans: What is computed of prompts: the same part of each in every step.
            steps: Steps.
        """
        updates, gathers = decoding.update_bytes, decoding.gather_bytes
        operations, tokens = decoding.operations, decoded_tokens
        for before, after in spans:
            size = (after - before) // steps
            updates += self._tables.chunks(before, after, steps)
            gathers += int(self._tables.visible[before + size : after + 1 : size].sum())
            operations += int(self._sums[after, -2] - self._sums[before, -2])
            tokens += size
        return replace(
            decoding,
            steps=steps,
            weight_bytes=steps * self.weight_bytes(tokens),
            update_bytes=updates,
            gather_bytes=gathers,
            operations=operations,
        )

    def weight_bytes(self, tokens: int) -> int:
        """Weights that a step of so many tokens reads."""
        if tokens not in self._weight_bytes:
            self._weight_bytes[tokens] = self._weights.step_bytes(tokens)
        return self._weight_bytes[tokens]


def _decoding(
    steps: int,
    weights: int,
    updates: int,
    scores: int,
    choices: int,
    attention: int,
    operations: int,
    shared: int,
) -> Work:
    return Work(
        steps, weights, updates, scores + shared, choices, attention, operations=operations
    )
