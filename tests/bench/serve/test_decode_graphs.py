"""Decode steps as graphs: the same bytes as step by step, whatever the batch, and no byte more."""

from collections.abc import Callable
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest
import torch

from dsv4kv.bench.serve.graphs import DecodeGraphs
from dsv4kv.cache.step import Step
from tests.bench.serve.gpu_serving import TwinBench, cache_bytes, serve_on_twin
from tests.kernels.shim import twin

LENGTHS = ((126, 6), (20, 9), (250, 4), (3, 5))  # a block, a CSA and an HCA entry on the way
LAYERS = "model.layers=[0,2,3,4]"  # two CSA layers, so that one can be taken for the other

VARIANTS = {
    "a table of all": (),
    "a table per type": ("cache.sharing=type",),
    "a table per layer": ("cache.sharing=layer",),
    "drafts": ("workload.speculative.draft_tokens=2",),
    "online state": ("cache.state=online",),
    "other formats": ("model.formats.main=bf16", "model.formats.indexer=fp8"),
}


each_variant = pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)


@cache
def serve_graphs(settings: tuple[str, ...]) -> TwinBench:
    """Every decode step a graph, every gather compared with the reference; served once."""
    return serve_on_twin(
        LENGTHS, "workload.concurrency=3", LAYERS, "workload.decode=graph", *settings
    )


@each_variant
def test_graphs_leave_the_bytes_that_single_launches_leave(settings: tuple[str, ...]) -> None:
    way = ("workload.decode=eager", "measure.verify_every=0")
    graph = serve_graphs(settings)
    eager = serve_on_twin(LENGTHS, "workload.concurrency=3", LAYERS, *way, *settings)
    assert graph.gpu.replays >= 5
    assert eager.gpu.replays == 0
    found, expected = cache_bytes(graph.manager), cache_bytes(eager.manager)
    for name, memory in found.items():
        assert torch.equal(memory, expected[name]), name


@each_variant
def test_what_graphs_gather_equals_the_reference(settings: tuple[str, ...]) -> None:
    bench = serve_graphs(settings)
    verifier = bench.drive.verifier
    assert verifier.failures == []
    # the graph's last gather, and then every layer's own
    assert verifier.checks["gather_window"] == (1 + 4) * bench.gpu.replays
    assert verifier.checks["indexer keys"] > (1 + 2) * bench.gpu.replays  # and in prompts
    assert verifier.checks["compressed KV"] > (1 + 2) * bench.gpu.replays
    tables = bench.manager.device_tables
    assert tables is not None
    tables.check()
    assert bench.manager.num_held_blocks == 0


def test_graphs_that_read_in_place_equal_the_reference() -> None:
    """Scores, top k and attention in the captured step: of its last layer, then of every layer."""
    settings = "workload.concurrency=2", "workload.decode=graph", "workload.step=engine"
    bench = serve_on_twin(((127, 2), (20, 3)), LAYERS, *settings)
    verifier = bench.drive.verifier
    assert verifier.failures == []
    assert verifier.checks["attend"] == (1 + 4) * bench.gpu.replays
    assert verifier.checks["select_topk"] >= 2 * bench.gpu.replays


@pytest.mark.parametrize(
    "settings",
    [
        ("workload.step=engine",),
        ("cache.state=online", "ops.variant.step_write=separate"),
        ("model.preset=v4.1-flash", "model.layers=[2, 20, 21]", "workload.step=engine"),
    ],
)
def test_what_a_run_launches_was_foreseen_to_be_compiled_ahead(settings: tuple[str, ...]) -> None:
    """Nothing runs: what is launched does not depend on what kernels write."""
    two = "workload.concurrency=2", "measure.verify_every=0"
    with patch.object(twin, "run"):
        bench = serve_on_twin(((126, 3), (20, 4)), *two, *settings)
    assert len(bench.gpu.modules) > 10
    assert bench.gpu.modules <= bench.gpu.foreseen


def fill_once(patcher: Callable[..., Any]) -> Any:
    """Every replay works on the numbers of the first."""
    right = Step.fill
    filled: list[None] = []

    def fill(self: Step, step: Step | None) -> None:
        if not filled:
            right(self, step)
        filled.extend([None] * (step is not None))

    return patcher(Step, "fill", fill)


def keep_old_inputs(patcher: Callable[..., Any]) -> Any:
    return patcher(DecodeGraphs, "load", lambda self, inputs: None)


@pytest.mark.parametrize(
    "defect", [fill_once, keep_old_inputs], ids=lambda defect: defect.__name__
)
def test_a_graph_that_does_not_follow_the_step_is_found(defect: Callable[..., Any]) -> None:
    with defect(patch.object):
        bench = serve_on_twin(LENGTHS, "workload.concurrency=2", "workload.decode=graph")
    assert bench.drive.verifier.failures
