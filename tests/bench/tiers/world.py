"""A small cache that a step executor fills, and a library behind it."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from dsv4kv.bench.build import plan_from
from dsv4kv.bench.library import Library, Store
from dsv4kv.bench.objects import CacheBytes, differences
from dsv4kv.bench.serve.executor import Recorder
from dsv4kv.bench.serve.loop import Requests
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.ops.cuda import launch as launching
from tests.bench.serve.serving import drive_on_cpu, make_config
from tests.gpu_twin import TwinGpu

MODELS = {
    "v4-flash": ("model.layers=[0,2,3]",),
    "v4-pro": ("model.preset=v4-pro", "model.layers=[1,2,3]", "model.formats.indexer=fp8"),
    "v4.1-flash": ("model.preset=v4.1-flash", "model.layers=[0,2,3,20]"),
}
"""A few layers of every attention."""


class World(Requests):
    """A cache whose requests compute prompts: of one serial, the same tokens."""

    def __init__(self, *settings: str, model: str = "v4-flash", slots: int = 4) -> None:
        config = make_config(
            *MODELS[model],
            "workload.step_tokens=1024",
            "cache.max_context_tokens=1024",
            f"workload.concurrency={slots}",
            f"cache.num_slots={slots}",
            *settings,
        )
        manager = KVCacheManager(plan_from(config))
        super().__init__(manager, drive_on_cpu(config, manager, Recorder()).executor)
        self.cache = CacheBytes(manager)

    def library(self, store: Store) -> Library:
        return Library(self.cache, store)

    def go_on(self, slot: int, serial: int, end: int) -> None:
        """What a server does with a restored request: compute the rest, then decode."""
        self.compute(slot, serial, end)
        self.decode(slot, serial, 1)

    def differences(self, left: int, right: int) -> list[str]:
        tokens = self.manager.tokens[[left, right]].tolist()
        assert tokens[0] == tokens[1]
        return differences(self.cache, left, self.cache, right, tokens[0])


@contextmanager
def on_twin(cache: CacheBytes) -> Iterator[None]:
    """Let a cache's objects move as they do on a GPU."""
    with patch.object(launching, "_launcher", TwinGpu), patch.object(cache, "by_launches", True):
        yield


def tokens_of(serial: int, count: int) -> NDArray[np.uint32]:
    """Token ids of a request's first tokens."""
    return (np.arange(count) * 7 + serial * 100_003).astype(np.uint32)
