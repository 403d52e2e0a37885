"""On a GPU: every operation equals the reference and its CPU twin, and never waits."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from dsv4kv.ops import cuda
from dsv4kv.ops.check import check_scene
from dsv4kv.ops.cuda.compile import architecture_of
from dsv4kv.ops.cuda.launch import prepare
from dsv4kv.ops.launches.pages import plan_gather_topk
from dsv4kv.ops.scenes import Arguments, Scene, make_call
from dsv4kv.ops.spec import READS, VARIANTS
from tests.cuda.waiting import forbidding_waits
from tests.ops.operations import SCENES, SEED, bytes_after, on_twin
from tests.ops.samples import same_bits

if not torch.cuda.is_available():  # one skip for five hundred
    pytest.skip("no CUDA device", allow_module_level=True)
pytestmark = pytest.mark.gpu

each_scene = pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
SUMS = {"flush", "compress_chunk", "norm_rope_insert", "step_write", *READS}
EXACT = {
    name: scene
    for name, scene in SCENES.items()
    if scene.operation not in SUMS and "online" not in name
}
"""What a GPU computes to the bit as its twin does: ``expf`` and tensor cores need not."""


@pytest.fixture
def gpu() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


@each_scene
def test_an_operation_equals_the_reference_in_every_way(scene: Scene, gpu: torch.device) -> None:
    function: Callable[..., None] = getattr(cuda, scene.operation)
    assert check_scene(scene, function, gpu, SEED) is None
    architecture = architecture_of(*torch.cuda.get_device_capability(gpu))
    for name, variant in VARIANTS.get(scene.operation, {}).items():
        if variant.runs_on(architecture):
            assert check_scene(scene, partial(function, variant=name), gpu, SEED) is None


@pytest.mark.parametrize("scene", EXACT.values(), ids=EXACT)
def test_a_gpu_writes_the_bits_that_its_cpu_twin_writes(scene: Scene, gpu: torch.device) -> None:
    found = bytes_after(scene, getattr(cuda, scene.operation), gpu)
    expected = bytes_after(scene, on_twin(scene.operation))
    assert all(map(torch.equal, found, expected))


@each_scene
def test_an_operation_never_waits_for_the_gpu(scene: Scene, gpu: torch.device) -> None:
    run = getattr(cuda, scene.operation)
    run(**make_call(scene.make, gpu, SEED).arguments)  # compiles and loads
    arguments = make_call(scene.make, gpu, SEED).arguments
    with forbidding_waits():
        run(**arguments)


def topk_arguments(gpu: torch.device) -> Arguments:
    scene = next(each for each in SCENES.values() if each.operation == "gather_topk")
    return make_call(scene.make, gpu, SEED).arguments


def gathered(arguments: Arguments) -> Tensor:
    """What the gather gives, in an output of its own."""
    out = torch.empty_like(arguments["out"])
    cuda.gather_topk(**arguments | {"out": out})
    return out


def test_a_captured_launch_follows_indices_that_change(gpu: torch.device) -> None:
    arguments = topk_arguments(gpu)
    indices, out = arguments["indices"], arguments["out"]
    call = prepare(plan_gather_topk(**arguments))
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
