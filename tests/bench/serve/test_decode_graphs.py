"""Decode steps as graphs: the same bytes as step by step, whatever the batch, and no byte more."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.bench.serve import inputs
from dsv4kv.bench.serve.executor import StepTokens
from dsv4kv.bench.serve.graphs import DecodeGraphs, batch_buckets
from dsv4kv.cache.device_tables import CopiedTables, KernelTables
from dsv4kv.cache.manager import prepare_forward
from dsv4kv.cache.step import Step
from dsv4kv.errors import CacheError
from dsv4kv.ops.launches.launch import Launch
from tests.bench.serve.gpu_serving import (
    TwinBench,
    build,
    build_from,
    cache_bytes,
    serve_on_twin,
)
from tests.bench.serve.serving import make_config
from tests.gpu_twin import twin_gpu
from tests.kernels.shim import twin

LENGTHS = ((126, 6), (20, 9), (250, 4), (3, 5))  # a block, a CSA and an HCA entry on the way
LAYERS = "model.layers=[0,2,3,4]"  # two CSA layers, so that one can be taken for the other

VARIANTS = {
    "tables copied": (),
    "tables kept by kernels": ("cache.prepare=device",),
    "a table per type": ("cache.prepare=device", "cache.sharing=type"),
    "a table per layer": ("cache.sharing=layer",),
    "a table per layer, by kernels": ("cache.sharing=layer", "cache.prepare=device"),
    "drafts": ("workload.speculative.draft_tokens=2", "cache.prepare=device"),
    "online state": ("cache.state=online",),
    "other formats": ("model.formats.main=bf16", "model.formats.indexer=fp8"),
}


@pytest.fixture(autouse=True)
def few_distinct_tokens() -> Iterator[None]:
    """Enough, and drawn eight times as fast."""
    with patch.object(inputs, "_DISTINCT_TOKENS", 521):
        yield


each_variant = pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)


@given(st.integers(1, 5000))
def test_buckets_are_the_largest_batch_and_the_powers_of_two_below_it(most: int) -> None:
    buckets = batch_buckets(most)
    assert buckets[0] == most
    assert buckets[-1] == 1
    assert sorted(set(buckets), reverse=True) == buckets
    assert all(bucket & (bucket - 1) == 0 for bucket in buckets[1:])
    assert all(larger <= 2 * smaller for larger, smaller in pairwise(buckets))


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
    bench = serve_on_twin(((126, 3), (20, 4)), LAYERS, *settings)
    verifier = bench.drive.verifier
    assert verifier.failures == []
    assert verifier.checks["attend"] == (1 + 4) * bench.gpu.replays
    assert verifier.checks["select_topk"] >= 2 * bench.gpu.replays


@pytest.mark.parametrize(
    "settings",
    [
        ("workload.step=engine",),
        ("cache.prepare=device", "cache.state=online", "ops.variant.step_write=separate"),
        ("model.preset=v4.1-flash", "model.layers=[2, 20, 21]", "workload.step=engine"),
    ],
)
def test_what_a_run_launches_was_foreseen_to_be_compiled_ahead(settings: tuple[str, ...]) -> None:
    bench = serve_on_twin(((126, 3), (20, 4)), "workload.concurrency=2", *settings)
    assert bench.gpu.modules <= bench.gpu.foreseen


def test_capturing_runs_nothing_on_the_cache() -> None:
    with twin_gpu() as gpu:
        bench = build(gpu, "workload.concurrency=4", "cache.prepare=device")
        untouched = build(gpu, "workload.concurrency=4", "workload.decode=eager")
    found, fresh = cache_bytes(bench.manager), cache_bytes(untouched.manager)
    for name, memory in fresh.items():
        assert torch.equal(found[name], memory), name


def test_the_largest_batch_is_captured_first() -> None:
    with twin_gpu() as gpu:
        build(gpu, "workload.concurrency=5", LAYERS)
    outputs = [window_outputs(launches)[0] for launches in gpu.captured]
    assert [len(out) for out in outputs] == [5, 4, 2, 1]


def test_graphs_share_the_outputs_of_the_largest() -> None:
    with twin_gpu() as gpu:
        build(gpu, "workload.concurrency=4", LAYERS)
    places = {out.data_ptr() for kept in gpu.captured for out in window_outputs(kept)}
    assert len(places) == 1


def nodes_of_pro(monkeypatch: pytest.MonkeyPatch, *settings: str) -> Counter[str]:
    """Kernels of V4-Pro's decode step of 64 requests, all 61 layers; none is run."""
    monkeypatch.setattr(twin, "run", lambda launch: None)
    every = ("model.preset=v4-pro", "model.layers=null", "cache.prepare=device", *settings)
    config = make_config(*every)  # room for two requests is enough to launch for 64
    larger = config.workload.model_copy(update={"concurrency": 64})
    with twin_gpu() as gpu:
        build_from(gpu, config.model_copy(update={"workload": larger}))
    return Counter(launch.kernel for launch in gpu.captured[0])


def test_a_step_of_v4_pro_is_at_most_250_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = nodes_of_pro(monkeypatch)
    assert nodes.total() <= 250
    assert nodes == {
        "prepare_blocks": 1,
        "completed_entries": 2,
        "step_write": 61,
        "gather_window": 61,
        "gather_all": 31 + 30,
        "gather_topk": 30,
    }


def test_with_an_operation_a_node_it_is_426_and_the_tables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = nodes_of_pro(monkeypatch, "ops.variant.step_write=separate")
    assert nodes.total() == 426 + nodes["prepare_blocks"] + nodes["completed_entries"]
    assert not nodes["step_write"]


@pytest.mark.parametrize(("how", "dependent"), [("dependent", True), ("plain", False)])
def test_nodes_are_dependents_of_one_another_where_that_is_asked_for(
    how: str, dependent: bool
) -> None:
    with twin_gpu() as gpu:
        build(gpu, f"ops.variant.step_launch={how}", LAYERS)
    (launches, *_) = gpu.captured
    assert {launch.dependent for launch in launches} == {dependent}


def window_outputs(launches: Sequence[Launch]) -> list[torch.Tensor]:
    """What the window gathers of a graph write, bf16[B, W, D]."""
    outputs = [launch.arguments[3] for launch in launches if launch.kernel == "gather_window"]
    return [out for out in outputs if isinstance(out, torch.Tensor)]


def decode_once(bench: TwinBench, requests: int) -> StepTokens:
    """A decode step of new requests that have ten tokens each."""
    slots = [bench.manager.admit_request() for _ in range(requests)]
    before, after = np.full(requests, 10), np.full(requests, 11)
    prepare_forward(bench.manager, slots, before, after)
    step = Step.of(bench.manager, slots, before, after)
    return StepTokens(step, np.arange(requests), after)


@pytest.mark.parametrize(("requests", "bucket"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 5)])
def test_a_batch_takes_the_smallest_graph_that_has_room(requests: int, bucket: int) -> None:
    with twin_gpu() as gpu:
        bench = build(gpu, "workload.concurrency=5", "workload.decode=graph")
        assert graphs_of(bench).graph_for(requests).requests == bucket


def graphs_of(bench: TwinBench) -> DecodeGraphs:
    gpu = bench.drive.executor.gpu
    assert gpu is not None
    assert gpu.graphs is not None
    return gpu.graphs


def test_a_batch_beyond_the_largest_is_refused_before_anything_is_launched() -> None:
    settings = ("workload.concurrency=2", "cache.num_slots=3", "workload.decode=graph")
    with twin_gpu() as gpu:
        bench = build(gpu, *settings)
        step = decode_once(bench, 3)
        bytes_before, launched = cache_bytes(bench.manager), len(gpu.launched)
        with pytest.raises(
            CacheError, match=r"^a batch of 3 requests is beyond the largest .* 2:"
        ):
            bench.drive.executor.decode(step)
    assert (gpu.replays, len(gpu.launched)) == (0, launched)
    for name, memory in cache_bytes(bench.manager).items():
        assert torch.equal(memory, bytes_before[name]), name


def test_decodes_take_turns_to_be_compared_looked_at_or_not() -> None:
    one = ("workload.concurrency=1", "workload.decode=both")
    bench = serve_on_twin([(5, 22)], *one, "measure.verify_every=2")
    # 21 decode steps, numbered 1 to 21 after the prompt's: 10 looked at, 11 timed
    assert bench.gpu.replays == 5 + 6
    gpu = bench.drive.executor.gpu
    assert gpu is not None
    spans = {name: len(samples) for name, samples in gpu.clock.read_ns().items()}
    assert spans == {"decode_graph_device": 6, "decode_eager_device": 5}
    host = {name: len(s) for name, s in bench.recorder.latencies.items() if "host" in name}
    assert host == {"decode_graph_host": 6, "decode_eager_host": 5}


def skip_fill(patcher: Callable[..., Any]) -> Any:
    right = Step.fill
    return patcher(Step, "fill", lambda self, _step: right(self, None))


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


def publish_nothing(patcher: Callable[..., Any]) -> Any:
    return patcher(CopiedTables, "publish", lambda self: None)


DEFECTS = [skip_fill, fill_once, keep_old_inputs, publish_nothing]


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.__name__)
def test_a_graph_that_does_not_follow_the_step_is_found(defect: Callable[..., Any]) -> None:
    with defect(patch.object):
        bench = serve_on_twin(LENGTHS, "workload.concurrency=2", "workload.decode=graph")
    assert bench.drive.verifier.failures


def test_kernels_that_miss_a_step_are_found() -> None:
    calls = []

    def sometimes(self: KernelTables, slots: torch.Tensor, tokens: torch.Tensor) -> None:
        calls.append(slots)
        if len(calls) != 12:  # the first ones are foreseen, to be compiled ahead
            right(self, slots, tokens)

    right = KernelTables.prepare
    with patch.object(KernelTables, "prepare", sometimes):
        bench = serve_on_twin(
            LENGTHS, "workload.concurrency=2", "workload.decode=eager", "cache.prepare=device"
        )
    assert len(calls) > 12
    assert bench.drive.verifier.failures or not tables_agree(bench)


def tables_agree(bench: TwinBench) -> bool:
    assert bench.manager.device_tables is not None
    try:
        bench.manager.device_tables.check()
    except CacheError:
        return False
    return True
