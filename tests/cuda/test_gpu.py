"""On a GPU: every operation equals the cpu backend, from graphs too, and never waits."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from dsv4kv.ops import cuda
from dsv4kv.ops.cuda.compile import architecture_of
from dsv4kv.ops.cuda.launch import prepare
from dsv4kv.ops.kernels.gather import plan_gather_topk
from dsv4kv.ops.variants import VARIANTS
from tests.cuda.comparison import assert_equals_cpu_backend, to_device
from tests.cuda.scenes import SCENES, Arguments, Scene
from tests.cuda.waiting import forbidding_waits
from tests.ops.samples import same_bits

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

each_scene = pytest.mark.parametrize("scene", SCENES, ids=str)


@pytest.fixture
def gpu() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


@each_scene
def test_an_operation_equals_the_cpu_backend(scene: Scene, gpu: torch.device) -> None:
    assert_equals_cpu_backend(scene, getattr(cuda, scene.operation), gpu)


@pytest.mark.parametrize("scene", [each for each in SCENES if each.operation in VARIANTS], ids=str)
def test_every_variant_of_an_operation_equals_the_cpu_backend(
    scene: Scene, gpu: torch.device
) -> None:
    architecture = architecture_of(*torch.cuda.get_device_capability(gpu))
    for name, variant in VARIANTS[scene.operation].items():
        if variant.runs_on(architecture):
            run = partial(getattr(cuda, scene.operation), variant=name)
            assert_equals_cpu_backend(scene, run, gpu)


@each_scene
def test_an_operation_never_waits_for_the_gpu(scene: Scene, gpu: torch.device) -> None:
    run = getattr(cuda, scene.operation)
    run(*to_device(scene.arguments(), gpu))  # compiles and loads
    arguments = to_device(scene.arguments(), gpu)
    with forbidding_waits():
        run(*arguments)


def topk_scene() -> Scene:
    (scene,) = (scene for scene in SCENES if str(scene) == "gather_topk main/fp8_ds_mla")
    return scene


def gathered(arguments: Arguments) -> Tensor:
    """What the gather gives, in an output of its own."""
    out = torch.empty_like(arguments[-1])
    cuda.gather_topk(*(*arguments[:-1], out))
    return out


def test_a_prepared_launch_runs_on_the_stream_of_its_call(gpu: torch.device) -> None:
    arguments = to_device(topk_scene().arguments(), gpu)
    expected = gathered(arguments)
    make_stream: Any = torch.cuda.Stream
    call, side = prepare(plan_gather_topk(*arguments)), make_stream(gpu)
    side.wait_stream(torch.cuda.current_stream(gpu))
    with torch.cuda.stream(side):
        call()
        done = side.record_event()
    done.synchronize()
    assert same_bits(arguments[-1], expected)


def test_a_captured_launch_follows_indices_that_change(gpu: torch.device) -> None:
    arguments = to_device(topk_scene().arguments(), gpu)
    indices, out = arguments[3], arguments[-1]
    call = prepare(plan_gather_topk(*arguments))
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    indices.copy_(indices.flip(1))
    out.fill_(torch.nan)
    graph.replay()
    expected = gathered(arguments)
    torch.cuda.synchronize()
    assert same_bits(out, expected)


def test_the_results_are_the_same_bits_every_time(gpu: torch.device) -> None:
    (scene,) = (s for s in SCENES if str(s) == "flush main/fp8_ds_mla hca ring")
    runs = []
    for _ in range(3):
        arguments = to_device(scene.arguments(), gpu)
        cuda.flush(*arguments)
        runs.append(arguments[4].pages.cpu())
    assert same_bits(runs[0], runs[1])
    assert same_bits(runs[0], runs[2])
