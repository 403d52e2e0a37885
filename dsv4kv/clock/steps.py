"""What a step is, what of it takes time, and how much.

Counts are whole numbers and time is their sum with rates as weights: a stretch of steps ends at
the same instant whether it was taken at once or step by step, and from measured times the rates
follow by least squares.
"""

from dataclasses import dataclass
from operator import mul
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dsv4kv.clock.coefficients import BORROWED, CONSTANTS, Coefficients, HeldOut
from dsv4kv.clock.weights import WeightModel
from dsv4kv.core.clock import NOTHING, Counts
from dsv4kv.sizing.layout import Layout

Ints = NDArray[np.int64]

COUNTS = (
    "decode_layers",  # layers that decode passes go through
    "draft_passes",
    "weight_bytes",  # read by one rank
    "context_tokens",  # that the tokens decoded on one rank see
    "prompt_layers",  # layers of prompt chunks that are launched more slowly than computed
    "mflop",  # on one rank
    "state_bytes",  # hidden states of the prompt tokens of one rank, once a layer
    "sent_tokens",  # of prompts on one rank, for each layer, to the experts of others
    "prefix_tokens",  # that the prompt tokens of one rank see before their chunk
    "measured_ps",  # of steps that were looked up
)
"""What takes time; one rank is the one with the most to do, and all wait for it."""

assert len(COUNTS) == len(NOTHING)
_NONE = np.zeros(1, dtype=np.int64)


class Steps(NamedTuple):
    """``n`` steps of a server that differ by the contexts alone.

    Attributes:
        rows: Requests that decode, on all ranks.
        tokens: int64[n], or [1] where all are alike: tokens that they verify in each step, one a
            request and its drafts.
        contexts: int64[n]: tokens that these see, summed over them.
        prompt: Tokens of prompt chunks in each step, on all ranks.
        fullest: Of which on the rank that has the most.
        prefixes: int64[n]: tokens before their chunk, summed over those of that rank.
    """

    rows: int = 0
    tokens: Ints = _NONE
    contexts: Ints = _NONE
    prompt: int = 0
    fullest: int = 0
    prefixes: Ints = _NONE


class StepTimes(Protocol):
    """Times of steps by one source.

    Attributes:
        source: Where they come from, in words.
        client_s: From sending a request to its being waited for by the scheduler, and back.
        copy_bytes_per_s: What copying from one place of a GPU's memory to another moves, all
            GPUs together.
    """

    source: str
    client_s: float
    copy_bytes_per_s: float

    @property
    def held_out(self) -> HeldOut:
        """How far times of points that were not looked at were off, by what was timed."""

    @property
    def extrapolated(self) -> list[str]:
        """What was timed outside of what was measured, as phrases; the error is wider for it."""

    def constants(self) -> list[tuple[str, float, str]]:
        """The numbers that times depend on: name, value, unit."""

    def count(self, steps: Steps) -> Ints:
        """int64[n, COUNTS] of every step."""

    def step(
        self, rows: int, tokens: int, contexts: int, prompt: int, fullest: int, prefix: int
    ) -> Counts:
        """What takes time in one step, whose values are as ``Steps`` has them."""

    def seconds(self, counts: Counts) -> float:
        """Time of what was counted."""


def decode_s(times: StepTimes, rows: int, context: int, draft_tokens: int = 0) -> float:
    """Seconds of a step in which so many requests of a context decode."""
    tokens = rows * (1 + draft_tokens)
    return _seconds(times, Steps(rows, np.array([tokens]), np.array([tokens * context])))


def prompt_s(times: StepTimes, tokens: int, prefix: int = 0) -> float:
    """Seconds of a chunk of one prompt after a prefix, alone."""
    chunk = Steps(prompt=tokens, fullest=tokens, prefixes=np.array([tokens * prefix]))
    return _seconds(times, chunk)


def _seconds(times: StepTimes, steps: Steps) -> float:
    return times.seconds(tuple(times.count(steps).sum(axis=0).tolist()))


@dataclass(frozen=True)
class Deployment:
    """A model on GPUs.

    Attributes:
        layers: Layers of it.
        state_bytes: Of a token's hidden state, in bf16.
        weights: What they cost.
        layout: How it is spread.
        draft_passes: Passes of the draft layer in each step.
        all_to_all: Whether tokens go to the experts' ranks and back through DeepEP.
        bytes_per_s: Memory bandwidth of one GPU on the datasheet.
    """

    layers: int
    state_bytes: int
    weights: WeightModel
    layout: Layout
    draft_passes: int
    all_to_all: bool
    bytes_per_s: float

    def rows_per_rank(self, rows: int) -> int:
        """Requests on the fullest rank, where stages of a pipeline work on parts of a batch."""
        return -(-rows // (self.layout.dp * self.layout.pp))

    def weight_bytes(self, tokens: int) -> int:
        """Weights that one rank reads of all its layers for so many tokens of all ranks."""
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
    """Times by a few coefficients; see ``StepTimes``."""

    def __init__(self, deployment: Deployment, coefficients: Coefficients) -> None:
        self._made, layout = deployment, deployment.layout
        self._coefficients = coefficients
        self._weighed: dict[tuple[int, int, int], tuple[int, int]] = {}
        error = coefficients.held_out  # of points without a pipeline
        self.held_out = error.widened(BORROWED) if layout.pp > 1 else error
        self.source = coefficients.source
        self.client_s = coefficients.client_ms / 1e3
        self.copy_bytes_per_s = deployment.bytes_per_s * layout.gpus
        context_ns = coefficients.split_context_ns if layout.tp > 1 else coefficients.context_ns
        self._rates = (
            coefficients.decode_layer_us / 1e6,
            coefficients.draft_us / 1e6,
            1 / (coefficients.bandwidth_share * deployment.bytes_per_s),
            context_ns / 1e12,
            coefficients.prompt_layer_us / 1e6,
            1e6 / (coefficients.tflops * 1e12),
            coefficients.state_passes / deployment.bytes_per_s,
            coefficients.all_to_all_ns / 1e9,
            coefficients.prefix_ns / 1e12,
            0.0,
        )

    @property
    def layout(self) -> Layout:
        """How the model is spread over the GPUs."""
        return self._made.layout

    @property
    def extrapolated(self) -> list[str]:
        """See ``StepTimes``: coefficients have no nodes to be outside of."""
        return []

    def constants(self) -> list[tuple[str, float, str]]:
        """See ``StepTimes``."""
        rows = CONSTANTS.items()
        return [(name, getattr(self._coefficients, key), unit) for key, (name, unit) in rows]

    def count(self, steps: Steps) -> Ints:
        """See ``StepTimes``; a chunk takes decoding requests through its own pass.

        No graph holds a chunk's kernels: it takes as long as they take to launch, or to run.
        """
        made, alone = self._made, not steps.prompt
        n = max(len(steps.contexts), len(steps.prefixes))
        counts = np.zeros((n, len(COUNTS)), dtype=np.int64)
        counts[:, 0] = made.layers * alone
        counts[:, 1] = made.draft_passes * (steps.rows > 0)
        counts[:, [2, 5]] = [self._weigh(steps, tokens) for tokens in steps.tokens.tolist()]
        counts[:, 3] = self._seen(steps)
        counts[:, 6] = steps.fullest * made.layers * made.state_bytes
        counts[:, 7] = steps.fullest * made.layers * made.all_to_all
        counts[:, 8] = steps.prefixes
        if steps.prompt:
            launched = counts @ self.rates < made.layers * self._rates[4]
            counts[launched] = 0
            counts[launched, 4] = made.layers
        return counts

    def step(
        self, rows: int, tokens: int, contexts: int, prompt: int, fullest: int, prefix: int
    ) -> Counts:
        """See ``StepTimes``; the same as ``count``, without arrays."""
        made = self._made
        key = tokens, prompt, fullest
        if key not in self._weighed:
            own = fullest + made.rows_per_rank(tokens)
            together = prompt + tokens
            self._weighed[key] = made.weight_bytes(together), made.mflop(together, own)
        weight_bytes, mflop = self._weighed[key]
        ranked = made.rows_per_rank(rows)
        seen = contexts if ranked == rows else contexts * ranked // rows
        drafts = made.draft_passes * (rows > 0)
        if not prompt:
            return made.layers, drafts, weight_bytes, seen, 0, mflop, 0, 0, 0, 0
        chunk = fullest * made.layers
        states, sent = chunk * made.state_bytes, chunk * made.all_to_all
        counts = 0, drafts, weight_bytes, seen, 0, mflop, states, sent, prefix, 0
        if self.seconds(counts) < made.layers * self._rates[4]:
            return 0, 0, 0, 0, made.layers, 0, 0, 0, 0, 0
        return counts

    def _weigh(self, steps: Steps, tokens: int) -> tuple[int, int]:
        """Bytes of weights and operations of a step that verifies so many tokens."""
        made, together = self._made, steps.prompt + tokens
        own = steps.fullest + made.rows_per_rank(tokens)
        return made.weight_bytes(together), made.mflop(together, own)

    def _seen(self, steps: Steps) -> Ints:
        """int64[n]: tokens that those decoded on one rank see in each step."""
        rows = self._made.rows_per_rank(steps.rows)
        return steps.contexts if rows == steps.rows else steps.contexts * rows // steps.rows

    def seconds(self, counts: Counts) -> float:
        """See ``StepTimes``."""
        total: float = sum(map(mul, counts, self._rates))
        return total

    @property
    def coefficients(self) -> Coefficients:
        """What it times by."""
        return self._coefficients

    @property
    def rates(self) -> NDArray[np.float64]:
        """float64[COUNTS]: seconds of one of everything that is counted."""
        return np.array(self._rates)

    def by(self, coefficients: Coefficients) -> "ModelTimes":
        """The same deployment by other coefficients."""
        return ModelTimes(self._made, coefficients)
