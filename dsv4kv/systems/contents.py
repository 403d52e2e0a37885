"""What a model would compute, in a form that can be worked out from tokens alone.

A token's KV depends on all tokens before it, as a model's does, and the next token on that KV: a
row that is stale, shifted or somebody else's shows in every token after it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsv4kv.model.schedule import LayerSpec, RouterMode

Tokens = NDArray[np.int32]
Kv = NDArray[np.uint64]

KV_WORDS = 16
"""Words of a token's KV, 8 bytes each; the first stands for the token and all before it."""

EXPERTS, TOP_K = 256, 6  # n_routed_experts and num_experts_per_tok of DeepSeek-V4-Flash
_VOCABULARY = 129_280  # and its vocab_size
_FACTOR = 6364136223846793005  # of Knuth's MMIX generator: odd, so it has an inverse
_INVERSE = pow(_FACTOR, -1, 2**64)


@dataclass(frozen=True)
class Model:
    """Stands for a model: its KV, its next token, and the experts it routes to.

    Attributes:
        layers: Those that route, in order.
    """

    layers: tuple[LayerSpec, ...]

    def compute(self, tokens: Tokens, before: Kv | None) -> Kv:
        """KV of tokens int32[T], uint64[T, words]; ``before`` is the KV of the last before them.

        The first word is h' = a · h + t + 1 modulo 2^64, for all tokens at once.
        """
        count = len(tokens)
        powers = np.cumprod(np.full(count, _FACTOR, dtype=np.uint64))
        inverse = np.cumprod(np.full(count, _INVERSE, dtype=np.uint64))
        start = np.uint64(0) if before is None else before[0]
        history = powers * (start + np.cumsum((tokens.astype(np.uint64) + np.uint64(1)) * inverse))
        spread: Kv = history[:, None] * np.arange(1, 2 * KV_WORDS, 2, dtype=np.uint64)
        return spread

    def next_token(self, last: Kv) -> int:
        """The token after one whose KV is ``last``, uint64[words]."""
        return int(np.bitwise_xor.reduce(last >> np.uint64(20))) % _VOCABULARY

    def route(self, tokens: Tokens, kv: Kv) -> NDArray[np.int16]:
        """Experts of tokens: int16[T, layers, k], by token id or by history as layers route."""
        places = np.arange(1, len(self.layers) * TOP_K + 1, dtype=np.uint64)
        factors = places.reshape(len(self.layers), TOP_K) * np.uint64(_FACTOR)
        hashed = np.array([spec.router is RouterMode.HASH for spec in self.layers])
        source = np.where(hashed, tokens.astype(np.uint64)[:, None] + np.uint64(1), kv[:, :1])
        experts = (source[:, :, None] * factors) >> np.uint64(40)
        chosen: NDArray[np.int16] = (experts % np.uint64(EXPERTS)).astype(np.int16)
        return chosen
