"""One side of a transfer: a cache of the model, and what fills it and decodes from it."""

from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsv4kv.bench.build import build_drive, build_manager, check_data_path, plan_from
from dsv4kv.cache.layers import LayerCache
from dsv4kv.cache.manager import prepare_forward
from dsv4kv.config.bench import BenchConfig
from dsv4kv.measure.recorder import Recorder
from dsv4kv.moving.memory import Memory, make_manifest, share
from dsv4kv.moving.sender import Offer
from dsv4kv.ops.registry import load_backend
from dsv4kv.serve.executor import StepTokens
from dsv4kv.serve.inputs import EntryChooser, Queries
from dsv4kv.serve.operations import Reads
from dsv4kv.serve.requests import Requests


@dataclass
class Seen:
    """Hashes everything that decode steps read: equal bits, equal digest."""

    _hash: Any = field(default_factory=lambda: blake2b(digest_size=16))

    def digest(self) -> str:
        """Of everything so far."""
        return str(self._hash.hexdigest())

    def window_gathered(self, layer: LayerCache, step: StepTokens, out: Tensor) -> None:
        """See ``StepObserver``."""
        self._add(out)

    def entries_gathered(
        self, layer: LayerCache, step: StepTokens, indices: Tensor, out: Tensor, indexer: bool
    ) -> None:
        """See ``StepObserver``."""
        self._add(indices, out)

    def layer_attended(
        self, layer: LayerCache, step: StepTokens, asked: Queries, found: Reads
    ) -> None:
        """See ``StepObserver``."""
        self._add(found.attended, found.lse)

    def _add(self, *tensors: Tensor) -> None:
        for tensor in tensors:
            self._hash.update(tensor.contiguous().view(torch.uint8).numpy().data)


class Side:
    """A cache, filled with what is drawn from a seed: equal on both sides.

    Attributes:
        memory: Its memory.
    """

    def __init__(
        self, config: BenchConfig, *, shared: bool = False, crowded: bool = False
    ) -> None:
        """Build it.

        Args:
            config: What to build.
            shared: Its pools are in shared memory.
            crowded: Another prompt is interleaved with each, so that blocks are scattered.

        Raises:
            ConfigError: A cache that cannot be built, or has no data here.
            StoreFull: Too little shared memory.
        """
        torch.set_num_threads(1)
        plan = plan_from(config)
        check_data_path(plan)
        self._seed, self._chunk_tokens = config.measure.seed, config.workload.step_tokens
        manager = build_manager(config, plan, None)
        self.memory = Memory(manager, share(manager) if shared else None)
        self._manager, self._crowded = manager, crowded
        drive = build_drive(config, manager, Recorder(), load_backend("cpu"))
        self._executor, self._requests = drive.executor, Requests(manager, drive.executor)

    def prefill(self, serial: int, tokens: int, offer: Offer | None = None) -> int:
        """Compute a prompt in a slot of its own; ``offer`` hears how far every layer is."""
        torch.set_num_threads(1)  # of this thread, which need not be the first one
        slot = self._requests.admit()
        other = self._requests.admit() if self._crowded else None
        for start in range(0, tokens, self._chunk_tokens):
            end = min(start + self._chunk_tokens, tokens)
            step = self._requests.step(slot, serial, end)
            if other is not None:
                prepare_forward(self._manager, [other], [start], [end])
            if offer is not None:
                chunk = make_manifest(self.memory, slot, end, prefix=start, complete=False)
                offer.begin(chunk)
            for layer in self._executor.layers:
                replace(self._executor, layers=[layer]).prefill(step)
                if offer is not None:
                    offer.reach(layer.schema.layer.layer_idx, end)
        if other is not None:
            self.release(other)
        if offer is not None:
            offer.finish(make_manifest(self.memory, slot, tokens))
        return slot

    def hold(self, tokens: int, offer: Offer) -> int:
        """A request that nobody computes: its blocks, with whatever is in them, are offered."""
        slot, other = self._requests.admit(), self._requests.admit()
        for start in range(0, tokens, self._chunk_tokens):
            end = min(start + self._chunk_tokens, tokens)
            for each in (slot, other):
                prepare_forward(self._manager, [each], [start], [end])
        self.release(other)
        offer.finish(make_manifest(self.memory, slot, tokens))
        return slot

    def draw(self) -> None:
        """Fill all pages with drawn bytes: memory that nobody has written is no memory."""
        random = np.random.default_rng(self._seed)
        for region in self.memory.regions:
            pool = np.frombuffer(region, dtype=np.uint8)
            pool[:] = np.frombuffer(random.bytes(len(pool)), dtype=np.uint8)

    def decode(self, slot: int, serial: int, steps: int) -> str:
        """Go on for some steps: a digest of what they read, and of the rows they leave."""
        seen = Seen()
        chooser = EntryChooser(self._executor.outputs.index_topk, self._seed)
        executor = replace(self._executor, observer=seen, chooser=chooser)
        Requests(self._manager, executor).decode(slot, serial, steps, observed=True)
        return f"{seen.digest()}:{self.rows(slot)}"

    def rows(self, slot: int) -> str:
        """A digest of every row that a request needs, whatever pages they are in."""
        memory, tokens = self.memory, int(self._manager.tokens[slot])
        found = blake2b(digest_size=16)
        for family in memory.families.values():
            rows = memory.rows(family, tokens)
            ids = memory.ids(family, slot, tokens)
            found.update("".join(memory.digests(family, ids, rows, tokens + 1)).encode())
        return found.hexdigest()

    def release(self, slot: int) -> None:
        """Forget a request."""
        self._requests.release(slot)
