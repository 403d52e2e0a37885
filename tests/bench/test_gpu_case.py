"""A case on a GPU, made of the kernels' CPU twin: what is run, checked, timed and told."""

from pathlib import Path

import pytest
import torch

from dsv4kv.bench.device import find_device
from dsv4kv.bench.figures import FEWEST_CALLS, MOST_CALLS, fill_layers
from dsv4kv.bench.run import run_case
from dsv4kv.cache.manager import DeviceTables
from dsv4kv.config.bench import BenchConfig
from dsv4kv.errors import CudaUnavailable, VerificationError
from dsv4kv.ops import cpu
from dsv4kv.ops.launches import Launch
from dsv4kv.runs.schema import Case
from tests.bench.serve.gpu_serving import build
from tests.bench.settings import ANY_STEP, tiny_config
from tests.gpu_twin import SAMPLES, TwinGpu, twin_gpu

LAYERS = "model.layers=[0,2,3,4]"
GATHER = "workload.step=gather"
ALL_FIGURES = "measure.figures_seconds=1e6"  # however slow the machine is that plays a GPU


def run(config: BenchConfig) -> Case:
    return run_case({}, config, lambda _tokens: None)


@pytest.fixture(scope="module")
def ran() -> tuple[Case, TwinGpu]:
    with twin_gpu() as gpu:
        return run(
            tiny_config("device=cuda", LAYERS, GATHER, "cache.num_blocks=40", ALL_FIGURES)
        ), gpu


@pytest.fixture(scope="module")
def case(ran: tuple[Case, TwinGpu]) -> Case:
    return ran[0]


def test_operations_are_timed_cold_and_hot_by_layer_type(case: Case) -> None:
    found = {(each.name, each.layer_type, each.temperature) for each in case.operations}
    writes = ("state_append", "flush", "window_insert", "step_write")
    of_csa = (*writes, "gather_window", "gather_topk")
    of_keys = ("indexer_state_append", "indexer_flush", "indexer_gather_all")
    expected = {("csa", name) for name in (*of_csa, *of_keys)}
    expected |= {("hca", name) for name in (*of_csa[:5], "gather_all")}
    expected |= {("swa", name) for name in ("window_insert", "gather_window")}
    assert found == {(name, kind, t) for kind, name in expected for t in ("cold", "hot")}
    for each in case.operations:
        assert len(each.samples_ns) == SAMPLES


def test_cold_calls_share_no_page_and_hot_ones_all(ran: tuple[Case, TwinGpu]) -> None:
    graphs = [kept for kept in ran[1].captured if kept[0].kernel == "gather_topk"]
    cold, hot = graphs
    assert FEWEST_CALLS <= len(cold) <= MOST_CALLS
    assert {pages_of(launch) for launch in hot} == {pages_of(cold[0])}
    different = {pages_of(launch) for launch in cold}
    everything = [(pool, block) for pool, blocks in different for block in blocks]
    assert len(different) == 4
    assert len(everything) == len(set(everything)) == 4 * 2 * 8


def pages_of(launch: Launch) -> tuple[int, tuple[int, ...]]:
    """The pool that a gather reads, and the blocks in its table."""
    pages, table = launch.arguments[:2]
    assert isinstance(pages, torch.Tensor)
    assert isinstance(table, torch.Tensor)
    return pages.data_ptr(), tuple(block for block in table.flatten().tolist() if block >= 0)


def test_pages_rings_and_states_are_full_before_they_are_timed() -> None:
    with twin_gpu() as gpu:
        bench = build(gpu, "workload.decode=eager")
        layers = bench.drive.executor.layers
        fill_layers(layers, torch.Generator().manual_seed(0))
    for layer in layers:
        parts = [part for part in (layer.main, layer.indexer) if part]
        assert layer.window
        for store in [layer.window, *(part.store for part in parts)]:
            entries = torch.arange(store.num_entries)
            out = torch.empty(1, len(entries), store.layout.format.dims, dtype=torch.bfloat16)
            table = torch.arange(len(store.pages), dtype=torch.int32)[None]
            numbers = torch.tensor([0]), torch.tensor([len(entries)])
            cpu.gather_all(store, table, *numbers, out)
            assert bool((out[0].count_nonzero(dim=1) > store.layout.format.dims // 2).all())
        for part in parts:
            state = part.state
            assert state is not None
            assert int(state.count_nonzero()) == state.numel()
            assert 0.9 < float(state.std()) < 1.1


# ---- what cannot run ----------------------------------------------------------------------------


def test_without_a_gpu_one_that_is_asked_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device("auto") is None
    assert find_device("cpu") is None
    with pytest.raises(CudaUnavailable, match=r"^torch sees no CUDA device"):
        find_device("cuda")


def test_tables_that_differ_at_the_end_fail_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    right = DeviceTables.publish

    def publish(self: DeviceTables) -> None:
        if any(table.held.any() for table in self.cells):  # the block given back last is lost
            right(self)

    monkeypatch.setattr(DeviceTables, "publish", publish)
    with twin_gpu():
        unseen = (*ANY_STEP, "measure.verify_every=0")
        case = run(tiny_config("device=cuda", *unseen))
    assert case.status == "failed"
    assert "cells of table model on the device are not the host's" in str(case.error)
    assert case.operations == []


# ---- operations from elsewhere ------------------------------------------------------------------

WRONG = """
from dsv4kv.ops import cpu
def gather_topk(store, table, slots, indices, lengths, out):
    cpu.gather_topk(store, table, slots, indices, lengths, out)
    out[:, -1] = 1
"""


def test_a_wrong_operation_is_named_and_not_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong_gather.py").write_text(WRONG)
    with pytest.raises(VerificationError, match=r"(?s)^gather_topk of wrong.*Nothing was timed"):
        run(tiny_config("backend=wrong_gather.py:gather_topk"))
