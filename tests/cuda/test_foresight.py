"""Compiling ahead: what is foreseen of a cache is what a run launches on it."""

import pytest
import torch

from dsv4kv.bench.build import plan_from
from dsv4kv.bench.case import run_case
from dsv4kv.config.bench import BenchConfig
from dsv4kv.ops import cuda
from dsv4kv.ops.check.calls import scenes_of
from dsv4kv.ops.check.maker import make_call
from dsv4kv.ops.check.reads import COMPARE
from dsv4kv.ops.cuda.foresight import foresee
from dsv4kv.ops.kernels.launch import KernelModule, Launch
from tests.bench.settings import tiny_config
from tests.gpu_twin import twin_gpu
from tests.kernels.shim import twin

DRAFTS = ("workload.speculative.draft_tokens=1", "workload.speculative.acceptance=0.5")
ON_DEVICE = "cache.prepare=device"
GATHERED = "workload.step=gather"


def run(config: BenchConfig, monkeypatch: pytest.MonkeyPatch) -> set[KernelModule]:
    """Modules of the cache that a run launches; no kernel is run."""
    launched = set()

    def note(launch: Launch) -> None:
        launched.add(launch.module)

    monkeypatch.setattr(twin, "run", note)
    with twin_gpu():
        run_case({}, config, lambda _tokens: None)
    return {module for module in launched if module.source != "bandwidth.cuh"}


def configure(*settings: str) -> BenchConfig:
    return tiny_config("device=cuda", "measure.verify_every=0", *settings)


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("cache.block_tokens=256", "cache.sharing=type"),
        ("cache.state=online", "cache.hadamard=false"),
        ("model.preset=v4-pro", "model.formats.main=bf16"),
        DRAFTS,
        (GATHERED,),
        ("model.preset=v4.1-flash", "model.layers=[0,2]"),
        ("model.preset=v4.1-flash", "model.layers=[1,20,21,24]"),
    ],
    ids=" ".join,
)
def test_a_run_launches_what_was_foreseen_and_nothing_else(
    settings: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(*settings)
    reads = GATHERED not in settings
    foreseen = foresee(plan_from(config), device_prepare=False, reads=reads)
    assert run(config, monkeypatch) == set(foreseen)
    assert len(set(foreseen)) == len(foreseen)


@pytest.mark.parametrize(
    "settings",
    [
        ("model.preset=v4-flash", "cache.hadamard=false"),
        ("model.preset=v4-pro", "model.formats.indexer=fp8"),
    ],
    ids=" ".join,
)
def test_reads_of_every_layer_are_foreseen(
    settings: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the calls that a checked backend has to answer; no kernel is run."""
    plan, launched = plan_from(configure(*settings)), set[KernelModule]()
    monkeypatch.setattr(cuda, "run", lambda launch: launched.add(launch.module))
    for scene in (each for each in scenes_of(plan, seed=1) if each.operation in COMPARE):
        arguments = make_call(scene.make, torch.device("cpu"), 1).arguments
        getattr(cuda, scene.operation)(*arguments)
    gathered = set(foresee(plan, device_prepare=False))
    assert set(foresee(plan, device_prepare=False, reads=True)) - gathered == launched


@pytest.mark.parametrize(
    "settings",
    [
        (ON_DEVICE,),
        (ON_DEVICE, "cache.sharing=layer"),
        (ON_DEVICE, "workload.concurrency=300", "cache.num_blocks=512"),
    ],
    ids=" ".join,
)
def test_tables_that_kernels_keep_are_foreseen_for_every_batch(
    settings: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(*settings)
    launched = {m for m in run(config, monkeypatch) if m.source == "prepare.cuh"}
    foreseen = foresee(plan_from(config), device_prepare=True)
    assert launched == {module for module in foreseen if module.source == "prepare.cuh"}
    assert launched
