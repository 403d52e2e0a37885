"""Which entries a CSA layer reads: a stand-in for its indexer."""

import numpy as np
import torch
from torch import Tensor

from dsv4kv.cache.allocator import Ids


class EntryChooser:
    """Chooses scattered, distinct entries of every request, anew at every call.

    What an indexer chooses depends on queries, which a cache does not see.
    """

    def __init__(self, topk: int, seed: int) -> None:
        self._topk = topk
        self._random = np.random.default_rng(seed)
        self._scatter = self._random.permutation(topk)

    def choose(self, lengths: Ids) -> Tensor:
        """Logical entries int32[B, K] below lengths int64[B]; −1 where there are too few."""
        topk, visible = self._topk, lengths[:, None]
        jitter = self._random.random((len(lengths), 1))
        spread = ((self._scatter + jitter) * visible / topk).astype(np.int32)
        in_order = np.where(np.arange(topk) < visible, np.arange(topk), -1)
        return torch.from_numpy(np.where(visible > topk, spread, in_order).astype(np.int32))
