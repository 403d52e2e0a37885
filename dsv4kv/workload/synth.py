"""Synthetic requests: lengths, arrivals and shared prefixes drawn from stated distributions."""

import math
from collections.abc import Iterator

import numpy as np

from dsv4kv.config.bench import Lengths, Synthetic
from dsv4kv.workload.request import Request


def synthesize(settings: Synthetic, seed: int) -> Iterator[Request]:
    """Yield ``settings.requests`` requests; the same settings and seed give the same ones.

    Inputs, outputs, arrivals and prefixes have a random stream each: changing one of them leaves
    the others, and asking for more requests goes on where fewer ended.
    """
    inputs, outputs, arrivals, walks = np.random.default_rng(seed).spawn(4)
    prefixes = _PrefixTree(settings)
    arrival_s = 0.0
    for _ in range(settings.requests):
        if settings.arrival_rate is not None:
            arrival_s += arrivals.exponential(1 / settings.arrival_rate)
        input_tokens = draw_length(settings.input, inputs)
        yield Request(
            arrival_s=round(arrival_s, 6),
            input_tokens=input_tokens,
            output_tokens=draw_length(settings.output, outputs),
            prefix_hashes=prefixes.hash_blocks(input_tokens, walks),
            hash_block_tokens=settings.hash_block_tokens,
        )


def draw_length(lengths: Lengths, rng: np.random.Generator) -> int:
    """Draw a token count; ``mean`` is that of the distribution before the cut to low..high."""
    match lengths.kind:
        case "fixed":
            return lengths.mean
        case "uniform":
            return int(rng.integers(lengths.low, lengths.high, endpoint=True))
        case "lognormal":
            mu = math.log(lengths.mean) - lengths.sigma**2 / 2
            drawn = rng.lognormal(mu, lengths.sigma)
            return round(min(max(drawn, lengths.low), lengths.high))


class _PrefixTree:
    """Names the blocks of prompts that begin with a random walk down a tree of shared text.

    The root is empty; each of ``prefix_depth`` levels adds ``prefix_tokens`` tokens from one of
    ``prefix_branches`` children. What follows the walk is each prompt's own.
    """

    def __init__(self, settings: Synthetic) -> None:
        self._settings = settings
        self._shared: dict[tuple[tuple[int, ...], int], int] = {}
        self._next_id = 0

    def hash_blocks(self, input_tokens: int, rng: np.random.Generator) -> tuple[int, ...]:
        """Walk anew and return one id per block of the prompt, the last perhaps partial.

        A block inside the walk is known by the path that leads to its last token and by where it
        ends: equal ids mean equal tokens and equal history. A prompt shorter than the walk is cut.
        """
        walk = self._walk(rng)
        block_tokens, level_tokens = self._settings.hash_block_tokens, self._settings.prefix_tokens
        ids = []
        for start in range(0, input_tokens, block_tokens):
            end = min(start + block_tokens, input_tokens)
            levels = -(-end // level_tokens)
            if levels > len(walk):
                ids.append(self._fresh_id())
                continue
            key = (walk[:levels], end)
            if key not in self._shared:
                self._shared[key] = self._fresh_id()
            ids.append(self._shared[key])
        return tuple(ids)

    def _walk(self, rng: np.random.Generator) -> tuple[int, ...]:
        branches, depth = self._settings.prefix_branches, self._settings.prefix_depth
        return tuple(rng.integers(branches, size=depth).tolist()) if branches else ()

    def _fresh_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1
