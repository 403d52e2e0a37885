"""Virtual time, worked out from whole numbers of layers, bytes, operations and tokens.

Time is a function of the work done so far, never a sum of rounded times.
"""

import math
from collections.abc import Callable, Sequence

from dsv4kv.core.served import Served

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

    def prompt_s(self, before: int, after: int, chunk_tokens: int) -> float:
        """Seconds that the chunks of a prompt from one token to another would take, alone."""
        total = 0.0
        for begin in range(before, after, chunk_tokens):
            tokens = min(chunk_tokens, after - begin)
            total += self.seconds(self.step(0, 0, 0, tokens, tokens, tokens * begin))
        return total

    def decode(
        self,
        counts: Counts,  # so far
        rows: int,  # requests that decode a token each
        contexts: int,  # tokens that they see in the first step, summed over them
        steps: int,  # at most, and at least one
        copies_s: float,  # of all copies so far, added to the counted time
        idle_s: float,  # added to both
        until_s: float,  # no step begins then or later
    ) -> tuple[int, Counts]:
        """Take equal decode steps; returns how many, and the counts behind them."""
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


Span = tuple[int, int]  # tokens of a request before and after a part of its prompt is computed


class VirtualClock:
    """Virtual time and the work done so far; time only ever goes forward."""

    def __init__(self, timer: LinearTimes) -> None:
        self.idle_s = 0.0  # time in which there was no work
        self._busy_s = 0.0
        self.steps = self.copy_bytes = 0
        self._timer, self._counts = timer, list(NOTHING)

    @property
    def now_s(self) -> float:
        return self.idle_s + self._busy_s

    @property
    def _copies_s(self) -> float:
        return self.copy_bytes / self._timer.copy_bytes_per_s

    @property
    def counts(self) -> Counts:
        return tuple(self._counts)

    def step(
        self, rows: int, tokens: int, contexts: int, chunks: Sequence[tuple[Served, Span]]
    ) -> None:
        """Take a step: ``rows`` requests decode ``tokens``, which see ``contexts`` together."""
        self.steps += 1
        prompt, fullest, prefix = _prompts(chunks)
        counts = self._timer.step(rows, tokens, contexts, prompt, fullest, prefix)
        for place, count in enumerate(counts):
            if count:  # most are 0 in a step that only decodes
                self._counts[place] += count
        self._busy_s = self._duration()

    def decode(self, rows: int, contexts: int, steps: int, until_s: float) -> int:
        """Take up to ``steps`` steps of ``rows`` requests, none at ``until_s`` or later.

        ``contexts`` are the tokens that they see in the first one. Returns the steps taken.
        """
        taken, counts = self._timer.decode(
            self.counts, rows, contexts, steps, self._copies_s, self.idle_s, until_s
        )
        self._counts = list(counts)
        self.steps += taken
        self._busy_s = self._duration()
        return taken

    def copy(self, moved_bytes: int) -> None:
        if moved_bytes:
            self.copy_bytes += moved_bytes
            self._busy_s = self._duration()

    def wait_until(self, time_s: float) -> None:
        """Do nothing until then; nothing happens where that is past."""
        self.idle_s = max(self.idle_s, time_s - self._busy_s)
        while self.now_s < time_s:  # the sum may fall short of it by a rounding
            self.idle_s = math.nextafter(self.idle_s, math.inf)

    def _duration(self) -> float:
        return self._timer.seconds(self.counts) + self._copies_s


def _prompts(chunks: Sequence[tuple[Served, Span]]) -> tuple[int, int, int]:
    """Prompt tokens of all ranks, of the rank with the most, and tokens before these, summed."""
    if not chunks:
        return 0, 0, 0
    if len(chunks) == 1:
        before, after = chunks[0][1]
        return after - before, after - before, (after - before) * before
    seen: dict[int, tuple[int, int]] = {}
    for served, (before, after) in chunks:
        tokens, prefix = seen.get(served.rank, (0, 0))
        size = after - before
        seen[served.rank] = tokens + size, prefix + size * before
    fullest, prefix = max(seen.values(), key=lambda each: each[0])
    return sum([tokens for tokens, _ in seen.values()]), fullest, prefix
