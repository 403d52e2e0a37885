"""On a GPU: whole cases run, graphs leave the bytes of single launches, and no step waits."""

from contextlib import ExitStack

import numpy as np
import pytest
import torch

from dsv4kv.bench.build import build_drive, build_manager, plan_from
from dsv4kv.bench.device import find_device
from dsv4kv.bench.run import run_case
from dsv4kv.bench.serve.executor import Recorder, StepTokens
from dsv4kv.bench.tiers import run_tiers
from dsv4kv.cache.manager import prepare_forward
from dsv4kv.cache.step import Step
from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.experiments import TiersConfig
from dsv4kv.config.load import load_config
from dsv4kv.ops.registry import resolve_backend
from tests.bench.serve.gpu_serving import TwinBench, cache_bytes
from tests.bench.serve.serving import make_config
from tests.bench.settings import tiny_config
from tests.cuda.waiting import forbidding_waits
from tests.gpu_twin import TwinGpu

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

LAYERS = "model.layers=[0,2,3,4]"
VARIANTS = [(), ("cache.sharing=layer",)]


def build(config: BenchConfig) -> TwinBench:
    """A cache on the GPU with what drives it."""
    device, recorder = find_device("cuda"), Recorder()
    manager = build_manager(config, plan_from(config), device)
    drive = build_drive(config, manager, recorder, resolve_backend("cuda", "cuda"), device)
    return TwinBench(TwinGpu(), config, manager, recorder, drive)


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_a_case_is_complete_and_its_outputs_equal_the_reference(settings: tuple[str, ...]) -> None:
    case = run_case({}, tiny_config("device=cuda", LAYERS, *settings), lambda _tokens: None)
    assert (case.status, case.error) == ("complete", None)
    assert case.verification.checks > 20
    timed = [each.samples_ns for each in case.operations]
    timed += [each.samples_ns for each in case.peaks]
    assert all(min(samples) > 0 for samples in timed)


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_graphs_leave_the_bytes_that_single_launches_leave(settings: tuple[str, ...]) -> None:
    found = []
    for way in ("graph", "eager"):
        common = ("workload.concurrency=3", LAYERS, "measure.verify_every=0", *settings)
        bench = build(make_config("device=cuda", f"workload.decode={way}", *common))
        bench.serve((126, 6), (20, 9), (250, 4), (3, 5))
        found.append(cache_bytes(bench.manager))
    for name, memory in found[0].items():
        assert torch.equal(memory, found[1][name]), name


@pytest.mark.parametrize("way", ["graph", "eager"])
@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_a_decode_step_never_waits_for_the_gpu(way: str, settings: tuple[str, ...]) -> None:
    bench = build(make_config("device=cuda", f"workload.decode={way}", LAYERS, *settings))
    manager, before = bench.manager, np.array([127, 200])
    slots = np.array([manager.admit_request() for _ in before])
    prepare_forward(manager, slots, np.zeros(2), before)
    with ExitStack() as waits:
        for n in range(4):
            if n == 1:  # the first compiled and loaded what it needs
                waits.enter_context(forbidding_waits())
            after = before + 1
            prepare_forward(manager, slots, before, after)
            step = Step.of(manager, slots, before, after)
            bench.drive.executor.decode(StepTokens(step, np.arange(2), after))
            before = after


def test_prefixes_leave_the_gpu_and_come_back_right() -> None:
    """Gathered by launches, through pinned memory."""
    asked = ["device=cuda", LAYERS, "lengths=[256,1024]", "stores=[memory]", "rounds=6"]
    outcome = run_tiers(load_config(None, asked, TiersConfig).config, lambda *_: None)
    assert outcome.failures == []
    assert outcome.checks > 20
