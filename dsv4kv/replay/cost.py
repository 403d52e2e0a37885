"""What steps cost: decoding stretches in one go, prompt chunks one by one."""

from collections.abc import Sequence

import numpy as np

from dsv4kv.replay.bytes_model import Ints, StepBytes
from dsv4kv.replay.clock import Work
from dsv4kv.replay.weights_model import WeightModel

Span = tuple[int, int]
"""Tokens of a request before and after a part of its prompt is computed."""


class CostModel:
    """Turns tokens into work."""

    def __init__(self, step_bytes: StepBytes, operations: Ints, weights: WeightModel) -> None:
        """``operations`` int64[n] are those of the token that makes a request n tokens long."""
        self._bytes = step_bytes
        self._weights = weights
        each = (step_bytes.updates, step_bytes.gathers, operations)
        self._sums: Ints = np.stack(each, axis=1).cumsum(axis=0)
        self._weight_bytes: dict[int, int] = {}

    def decode(self, lengths: Ints, steps: int) -> Work:
        """``steps`` steps in which requests of ``lengths`` int64[B] decode one token each."""
        sums = self._sums
        difference = sums.take(lengths + steps, axis=0) - sums.take(lengths, axis=0)
        updates, gathers, operations = difference.sum(axis=0).tolist()
        weights = steps * self.weight_bytes(len(lengths))
        return Work(steps, weights, updates, gathers, 0, operations)

    def speculate(self, before: Ints, taken: Ints) -> list[Work]:
        """Steps in which requests verify windows of tokens.

        Args:
            before: int64[steps, B]: tokens before each step.
            taken: int64[steps, B]: tokens each step takes.
        """
        after = before + taken
        updates, _, operations = np.moveaxis(self._sums[after] - self._sums[before], 2, 0)
        columns = (taken, updates, self._bytes.gathers[after], operations)
        rows = zip(*(column.sum(axis=1).tolist() for column in columns), strict=True)
        return [
            Work(1, self.weight_bytes(tokens), update, gather, 0, operation)
            for tokens, update, gather, operation in rows
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
            updates += self._bytes.chunks(before, after, steps)
            gathers += int(self._bytes.visible[before + size : after + 1 : size].sum())
            operations += int(self._sums[after, 2] - self._sums[before, 2])
            tokens += size
        weights = steps * self.weight_bytes(tokens)
        return Work(steps, weights, updates, gathers, 0, operations)

    def weight_bytes(self, tokens: int) -> int:
        """Weights that a step of so many tokens reads."""
        if tokens not in self._weight_bytes:
            self._weight_bytes[tokens] = self._weights.step_bytes(tokens)
        return self._weight_bytes[tokens]
