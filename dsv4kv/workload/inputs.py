"""What a model would hand its cache: deterministic data for every request and position.

A token's data is a function of its request, its position and whether it is a rejected draft, so
what an entry must be can be worked out from scratch at any time, without asking the cache.
"""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsv4kv.model.config import DSV4Config
from dsv4kv.ops.compressor import Compressor

_DISTINCT_TOKENS = 4099  # a prime: requests that start at other offsets rarely meet in phase
_STRIDE = 1009  # offset between consecutive requests, in tokens
_REJECTED_OFFSET = 2053  # offset of a rejected draft from the token that takes its place


@dataclass(frozen=True)
class CompressorInputs:
    """kv and score of tokens: float32[T, C] each."""

    kv: Tensor
    score: Tensor


@dataclass(frozen=True)
class StepInputs:
    """What a model hands its cache in one step.

    Attributes:
        window: Window values of the step's tokens, bf16[T, D].
        compressors: Their kv and score, by number of channels.
        topk: Entries that CSA layers read, int32[B, K], −1 for none; empty in a prompt chunk.
    """

    window: Tensor
    compressors: Mapping[int, CompressorInputs]
    topk: Tensor

    def of(self, compressor: Compressor) -> CompressorInputs:
        """Kv and score for one compressor."""
        return self.compressors[compressor.channels]


class InputBank:
    """Standard normal window values, kv and score rows, shared by all layers of one shape.

    Attributes:
        window: Values of every distinct token, and some of them again, bf16[distinct + chunk, D].
        compressors: kv and score of as many tokens, by number of channels.
    """

    def __init__(
        self, config: DSV4Config, compressors: list[Compressor], max_chunk: int, seed: int
    ) -> None:
        """Draw the data; a chunk of ``max_chunk`` tokens is always one contiguous slice."""
        generator = torch.Generator().manual_seed(seed)
        self._max_chunk = max_chunk
        self.window = self._draw(config.head_dim, generator).bfloat16()
        self.compressors: dict[int, CompressorInputs] = {}
        for compressor in compressors:
            if compressor.channels not in self.compressors:
                self.compressors[compressor.channels] = CompressorInputs(
                    self._draw(compressor.channels, generator),
                    self._draw(compressor.channels, generator),
                )

    def _draw(self, channels: int, generator: torch.Generator) -> Tensor:
        data = torch.randn(_DISTINCT_TOKENS, channels, generator=generator)
        repeats = -(-self._max_chunk // _DISTINCT_TOKENS)
        return torch.cat([data, data.repeat(repeats, 1)[: self._max_chunk]])

    def to(self, device: torch.device) -> "InputBank":
        """The same data on a device."""
        moved = copy(self)
        moved.window = self.window.to(device)
        moved.compressors = {
            channels: CompressorInputs(rows.kv.to(device), rows.score.to(device))
            for channels, rows in self.compressors.items()
        }
        return moved

    def take(self, rows: Tensor | slice, topk: Tensor) -> StepInputs:
        """The inputs of a step: rows int64[T] as ``rows`` numbers them, or one after another."""
        taken = {
            channels: CompressorInputs(every.kv[rows], every.score[rows])
            for channels, every in self.compressors.items()
        }
        return StepInputs(self.window[rows], taken, topk)

    @staticmethod
    def rows(
        request: NDArray[np.int64] | int,
        position: NDArray[np.int64],
        rejected: NDArray[np.bool_] | bool = False,
    ) -> NDArray[np.int64]:
        """Rows of tokens, by the running number of their request and their position.

        A draft that will be rejected is another token than the one that follows in its place.
        """
        start = request * _STRIDE + position + _REJECTED_OFFSET * np.asarray(rejected)
        rows: NDArray[np.int64] = start % _DISTINCT_TOKENS
        return rows
