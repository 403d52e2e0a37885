"""Times of steps that are linear in what a step has: layers, bytes, operations, tokens."""

from collections.abc import Callable
from typing import NamedTuple

Counts = tuple[int, ...]
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
)
"""What takes time; one rank is the one with the most to do, and all wait for it."""
NOTHING: Counts = (0,) * len(COUNTS)


class Stretch(NamedTuple):
    """Steps in which the same requests decode a token each."""

    rows: int  # requests
    contexts: int  # tokens that they see in the first step, summed over them
    steps: int  # steps at most, and at least one
    copies_s: float  # time that is added to the time of what was counted,
    idle_s: float  # and then this one
    until_s: float  # no step begins then or later


class LinearTimes:
    """Seconds of a step: whole numbers of everything in ``COUNTS`` times their rates."""

    def __init__(
        self,
        rates: tuple[float, ...],
        copy_bytes_per_s: float,
        layers: int,
        draft_passes: int,
        groups: int,
        state_bytes: int,
        sends: bool,
        weight_bytes: Callable[[int], int],
        mflop: Callable[[int, int], int],
    ) -> None:
        """Functions give weights and operations of a rank by tokens of all (and the fullest)."""
        self.rates = rates  # seconds of one of each
        # copies from one place of the GPUs' memory to another
        self.copy_bytes_per_s = copy_bytes_per_s
        self._layers, self._draft_passes, self._groups = layers, draft_passes, groups
        self._state_bytes, self._sent = layers * state_bytes, layers * sends
        self._weight_bytes, self._mflop = weight_bytes, mflop
        self._weighed: dict[tuple[int, int, int], tuple[int, int]] = {}

    def step(
        self, rows: int, tokens: int, contexts: int, prompt: int, fullest: int, prefix: int
    ) -> Counts:
        """What takes time in a step; a chunk's kernels take as long as to launch, or to run."""
        key = (tokens, prompt, fullest)
        if key not in self._weighed:
            own = fullest + -(-tokens // self._groups)
            together = prompt + tokens
            self._weighed[key] = (self._weight_bytes(together), self._mflop(together, own))
        weight_bytes, mflop = self._weighed[key]
        ranked = -(-rows // self._groups)
        seen = contexts if ranked == rows else contexts * ranked // rows
        drafts = self._draft_passes * (rows > 0)
        if not prompt:
            return self._layers, drafts, weight_bytes, seen, 0, mflop, 0, 0, 0
        states, sent = fullest * self._state_bytes, fullest * self._sent
        counts: Counts = (0, drafts, weight_bytes, seen, 0, mflop, states, sent, prefix)
        if self.seconds(counts) < self._layers * self.rates[4]:
            return 0, 0, 0, 0, self._layers, 0, 0, 0, 0
        return counts

    def seconds(self, counts: Counts) -> float:
        total = 0.0
        for count, rate in zip(counts, self.rates):  # noqa: B905 (as many; strict is slow here)
            total += count * rate
        return total

    def decode(self, counts: Counts, stretch: Stretch) -> tuple[int, Counts]:
        rows, contexts, steps, copies_s, idle_s, until_s = stretch
        layers, drafts, weights, seen, prompts, mflop, states, sent, prefix = counts
        first = self.step(rows, rows, contexts, 0, 0, 0)
        step_layers, step_drafts, step_weights, step_mflop = first[0], first[1], first[2], first[5]
        rates, ranked = self.rates, -(-rows // self._groups)
        taken = 0
        while True:
            taken += 1
            layers += step_layers
            drafts += step_drafts
            weights += step_weights
            seen += contexts if ranked == rows else contexts * ranked // rows
            mflop += step_mflop
            if taken == steps:
                break
            contexts += rows
            now_s = layers * rates[0] + drafts * rates[1] + weights * rates[2] + seen * rates[3]
            now_s = now_s + prompts * rates[4] + mflop * rates[5] + states * rates[6]
            now_s = now_s + sent * rates[7] + prefix * rates[8]
            if idle_s + (now_s + copies_s) >= until_s:
                break
        return taken, (layers, drafts, weights, seen, prompts, mflop, states, sent, prefix)
