"""How many drafts are accepted: drawn once, the same for a request however steps are grouped."""

import numpy as np

from dsv4kv.replay.bytes_model import Ints

_DRAWS = 2**14
_STRIDE = 7919  # a prime: requests begin at different places of the draws


class Drafts:
    """Kept tokens of every verification step of every request.

    Attributes:
        window: Tokens of a step: one and its drafts.
    """

    def __init__(self, draft_tokens: int, acceptance: float, seed: int) -> None:
        """A draft is accepted with probability ``acceptance`` if all before it were."""
        self.window = 1 + draft_tokens
        draws = np.random.default_rng(seed).random((_DRAWS, draft_tokens))
        accepted = np.logical_and.accumulate(draws < acceptance, axis=1).sum(axis=1)
        self._kept = 1 + accepted.astype(np.int64)

    def kept(self, numbers: Ints, steps_done: Ints, steps: int) -> Ints:
        """int64[steps, B]: tokens that stay of the next steps of requests, by their numbers."""
        first = numbers * _STRIDE + steps_done
        kept: Ints = self._kept[(first + np.arange(steps)[:, None]) % _DRAWS]
        return kept
