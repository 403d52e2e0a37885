"""Decode steps captured as graphs, one for each batch size, and replayed with other numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dsv4kv.cache.device_tables import DeviceTables
from dsv4kv.cache.handle import LayerCache, LayerCacheHandle
from dsv4kv.cache.step import StaticStep, StepBatch
from dsv4kv.errors import CacheError
from dsv4kv.ops.cuda.launch import dependent_launches
from dsv4kv.ops.cuda.launch import run as launch
from dsv4kv.ops.kernels.prepare import plan_completed
from dsv4kv.serve.inputs import InputBank, QueryBank, StepInputs
from dsv4kv.serve.operations import (
    Call,
    CallMaker,
    Outputs,
    decode_operations,
    selecting_ratios,
)


class Graph(Protocol):
    """Captured work."""

    def replay(self) -> None:
        """Do it, on the current stream."""


class Capturer(Protocol):
    """Captures work, in graphs that share one pool of memory."""

    def capture(self, run: Callable[[], None]) -> Graph:
        """Call ``run`` to warm up, then again to capture what it launches."""


@dataclass(frozen=True)
class DecodeGraph:
    """A decode step of at most ``requests`` requests.

    Attributes:
        requests: Batch size it was captured for.
        graph: The capture.
        gathers: The layer that is the last to write each output, and its call.
    """

    requests: int
    graph: Graph
    gathers: tuple[tuple[LayerCache, Call], ...]


def batch_buckets(most: int) -> list[int]:
    """Batch sizes to capture for, largest first: ``most``, and the powers of two below it."""
    return [most, *(1 << i for i in reversed(range((most - 1).bit_length())))]


class DecodeGraphs:
    """Captured decode steps of every batch size, over memory that never moves."""

    def __init__(
        self,
        layers: Sequence[LayerCache],
        tables: DeviceTables,
        inputs: InputBank,
        capturer: Capturer,
        *,
        most_requests: int,
        tokens_each: int,
        longest_tokens: int,
        index_topk: int,
        window_tokens: int,
        dependent: bool = False,
        queries: QueryBank | None = None,
    ) -> None:
        """Capture all of them.

        Args:
            layers: The cache.
            tables: Its tables on the device.
            inputs: Data of the shapes that steps will have.
            capturer: Makes the graphs.
            most_requests: Largest batch.
            tokens_each: Tokens of a request: one, and drafts.
            longest_tokens: Tokens of the longest request: outputs have room for it.
            index_topk: Entries that CSA layers read.
            window_tokens: Tokens of a window.
            dependent: A kernel is set up while the one before it still runs.
            queries: What steps ask that read in place; None where they gather.
        """
        self._layers, self._tables = layers, tables
        self._longest_tokens, self._dependent = longest_tokens, dependent
        device = inputs.window.device
        self._outputs = Outputs(device, index_topk, window_tokens)  # nobody else moves them
        groups = [layer.entry_group for layer in layers if layer.entry_group is not None]
        self._step = StaticStep(groups, most_requests, tokens_each, device)
        rows = slice(0, most_requests * tokens_each)
        nothing = torch.full((most_requests, index_topk), -1, dtype=torch.int32, device=device)
        gathered = [] if queries else selecting_ratios(layers)
        topk = {ratio: nothing.clone() for ratio in gathered}
        taken = inputs.take(rows, topk)
        if queries is not None:
            tokens = np.zeros(most_requests * tokens_each, dtype=np.int64)
            taken = replace(taken, queries=queries.take(tokens, torch.from_numpy(tokens)))
        # A copy, for those of a bank may be views of it.
        self._inputs = taken.of_tokens(Tensor.clone)
        self._graphs = [
            self._capture(capturer, requests) for requests in batch_buckets(most_requests)
        ]

    def graph_for(self, requests: int) -> DecodeGraph:
        """The smallest graph that takes so many requests.

        Raises:
            CacheError: None does; nothing has been launched.
        """
        for graph in reversed(self._graphs):
            if requests <= graph.requests:
                return graph
        raise CacheError(
            f"a batch of {requests} requests is beyond the largest captured, "
            f"{self._graphs[0].requests}: raise workload.concurrency, or set workload.decode to "
            "eager. Nothing was launched."
        )

    def load(self, inputs: StepInputs) -> None:
        """Put the step's data where the graphs read it."""
        _fill(self._inputs.window, inputs.window)
        for ratio, topk in self._inputs.topk.items():
            _fill(topk, inputs.topk[ratio])
        for dims, values in self._inputs.projected.items():
            _fill(values, inputs.projected[dims])
        for channels, rows in self._inputs.compressors.items():
            _fill(rows.kv, inputs.compressors[channels].kv)
            _fill(rows.score, inputs.compressors[channels].score)
        if self._inputs.queries is not None and inputs.queries is not None:
            self._inputs.queries.fill(inputs.queries)

    def replay(self, graph: DecodeGraph, batch: StepBatch) -> None:
        """Run a step: its numbers in one transfer, then the graph."""
        self._step.fill(batch)
        graph.graph.replay()

    def _capture(self, capturer: Capturer, requests: int) -> DecodeGraph:
        self._step.clear()  # so that warming up does not touch the cache
        view = self._step.view(requests)
        inputs = _first(self._inputs, requests, len(view.token_slots))
        gathers: dict[str, tuple[LayerCache, Call]] = {}

        def run() -> None:
            self._tables.prepare(view.request_slots, view.tokens_after)
            for (table, ratio, per_block), entries in self._step.entries.items():
                numbers = view.token_slots, view.positions, entries
                launch(plan_completed(self._tables.cells(table), ratio, per_block, *numbers))
            for layer in self._layers:
                handle = LayerCacheHandle(layer, view)
                maker = CallMaker(handle, inputs, self._outputs, self._longest_tokens)
                engine = inputs.queries is not None
                for call in maker.make_all(decode_operations(layer, fused=True, engine=engine)):
                    call.run()
                    if call.is_shown:
                        gathers[call.name] = layer, call

        with dependent_launches(self._dependent):
            graph = capturer.capture(run)
        return DecodeGraph(requests, graph, tuple(gathers.values()))


def _first(inputs: StepInputs, requests: int, tokens: int) -> StepInputs:
    """The inputs of the first requests; shares their memory."""
    topk = {ratio: chosen[:requests] for ratio, chosen in inputs.topk.items()}
    return replace(inputs.of_tokens(lambda rows: rows[:tokens]), topk=topk)


def _fill(target: Tensor, source: Tensor) -> None:
    target[: len(source)].copy_(source)


class CudaCapturer:
    """Captures in CUDA graphs that share one memory pool: capture the largest first."""

    def __init__(self) -> None:
        self._pool: Any = None

    def capture(self, run: Callable[[], None]) -> Graph:
        """See ``decode_graphs.Capturer``.

        The first call loads kernels and makes torch's allocations, which a capture must not; on a
        stream of its own, as torch asks for.
        """
        make_stream: Any = torch.cuda.Stream
        side = make_stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph: Any = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            run()
        self._pool = graph.pool()
        captured: Graph = graph
        return captured
