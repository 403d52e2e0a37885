"""Captures work as CUDA graphs."""

from collections.abc import Callable
from typing import Any

import torch

from dsv4kv.workload.decode_graphs import Graph


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
