"""A request computed from its first token, alone: what a run without any reuse would gather."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dsv4kv.cache.handle import LayerCache, LayerCacheHandle
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.cache.prepare import prepare_forward
from dsv4kv.cache.step import StepBatch
from dsv4kv.workload.contents import PromptContents
from dsv4kv.workload.executor import StepTokens
from dsv4kv.workload.inputs import InputBank
from dsv4kv.workload.operations import CallMaker, Outputs, Step


class FreshCache:
    """A cache with one slot, blocks of its own, and nothing that anybody left behind.

    The contents of a token depend on its prompt and its position alone, so the request comes out
    as it would in a cache that serves nobody twice.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        layers: Sequence[LayerCache],
        inputs: InputBank,
        contents: PromptContents,
        chunk_tokens: int,
    ) -> None:
        """Use ``layers`` of ``manager``, which has one slot, in chunks of so many tokens."""
        config = manager.plan.config
        self._manager, self._inputs, self._contents = manager, inputs, contents
        self._layers = {layer.schema.layer.layer_idx: layer for layer in layers}
        self._chunk_tokens = chunk_tokens
        self._outputs = Outputs(manager.device, config.index_topk, config.window_tokens)
        self._slot = manager.admit_request()
        self._request, self._tokens = -1, 0
        self._step: StepTokens | None = None

    def compute(self, request: int, tokens: int) -> None:
        """Bring a request, by its running number, to so many tokens.

        One that is here already goes on from where it is.
        """
        if request != self._request or tokens < self._tokens:
            self._manager.release_request(self._slot)
            self._slot = self._manager.admit_request()
            self._request, self._tokens = request, 0
        while self._tokens < tokens:
            end = min(tokens, self._tokens + self._chunk_tokens)
            self._run_chunk(self._tokens, end)
            self._tokens = end

    def gather(self, layer_idx: int, operation: Step) -> Tensor:
        """What ``gather_all`` or ``gather_window`` returns for the request: bf16[n, D].

        The next gather overwrites it.
        """
        (call,) = self._maker(self._layers[layer_idx]).make_all([operation])
        call.run()
        assert call.out is not None
        return call.out[0]

    def _run_chunk(self, before: int, after: int) -> None:
        slots, first, end = (np.array([n], dtype=np.int64) for n in (self._slot, before, after))
        prepare_forward(self._manager, slots, first, end)
        batch = StepBatch(self._manager, slots, first, end)
        requests = np.array([self._request], dtype=np.int64)
        self._step = StepTokens(batch, requests, end, contents=self._contents)
        for layer in self._layers.values():
            writes = [("window_insert", False), *(("compress_chunk", i) for i in layer.parts)]
            for call in self._maker(layer).make_all(writes):
                call.run()

    def _maker(self, layer: LayerCache) -> CallMaker:
        step = self._step
        assert step is not None
        rows = torch.from_numpy(step.rows(0, step.batch.positions.numpy()))
        inputs = self._inputs.take(rows, torch.empty(1, 0, dtype=torch.int32))
        handle = LayerCacheHandle(layer, step.batch)
        return CallMaker(handle, inputs, self._outputs, step.longest_tokens)
