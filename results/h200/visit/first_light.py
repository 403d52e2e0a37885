"""Step: everything compiles, one kernel runs, and one graph follows its indices."""

import time

import torch
from torch import Tensor

from dsv4kv.config.load import load_config
from dsv4kv.errors import CudaUnavailable
from dsv4kv.ops import cpu, cuda
from dsv4kv.ops.cuda.compile import cache_folder, cache_name, load_cubins
from dsv4kv.ops.cuda.launch import foresee, prepare
from dsv4kv.ops.launches import KernelModule
from dsv4kv.ops.launches.pages import plan_gather_topk
from dsv4kv.ops.scenes import Arguments, make_call
from dsv4kv.ops.spec import VARIANTS, Variant
from tests.bench.settings import tiny_config
from tests.benchmarks.jit_start import modules_of
from tests.cuda.test_gpu_bench import LAYERS
from tests.cuda.test_gpu_bench import VARIANTS as SETTINGS
from tests.ops.operations import SCENES, SEED
from visit.desk import Desk, NoTool
from visit.place import Place


def run(desk: Desk) -> None:
    """Answer the questions of ``questions.COMPILE``."""
    with desk.place() as place:
        modules = modules_of_steps(place)[: place.size(1 << 30, 2)]
        began = time.perf_counter()
        try:
            load_cubins(modules, place.device.architecture)
        except KeyboardInterrupt:
            print("the step's time is up: what is kept is an answer")
        except CudaUnavailable as error:
            raise NoTool(error) from None
        desk.answer("compile_all", time.perf_counter() - began, modules=len(modules))
        names = (cache_name(module, place.device.architecture) for module in modules)
        desk.answer("not_kept", sum(not (cache_folder() / name).is_file() for name in names))
        mine = _topk(place.device.device)
        indices, out = mine["indices"], mine["out"]
        call = prepare(plan_gather_topk(**mine))
        call()
        desk.answer("first_launch", _differing(out, indices))
        replay = place.device.make_capture()(call)
        indices.copy_(indices.flip(1))
        out.fill_(torch.nan)
        replay()
        desk.answer("first_graph", _differing(out, indices))


def modules_of_steps(place: Place) -> list[KernelModule]:
    """All that the visit's steps launch: of every scene in every variant, and of benches."""
    found: dict[KernelModule, None] = {}
    for config in (
        *([] if place.small else [load_config("gpu", []).config]),
        *(tiny_config("device=cuda", LAYERS, *settings) for settings in SETTINGS),
    ):
        found |= dict.fromkeys(modules_of(config))
    architecture = place.device.architecture
    with foresee() as scenes:
        for scene in SCENES.values():
            arguments = make_call(scene.make, place.device.device, SEED).arguments
            for variant, how in VARIANTS.get(scene.operation, {"": Variant("")}).items():
                if how.runs_on(architecture):
                    way = {"variant": variant} if variant else {}
                    getattr(cuda, scene.operation)(**arguments, **way)
    return list(found | dict.fromkeys(launch.module for launch in scenes))


def _differing(out: Tensor, indices: Tensor) -> int:
    """Bytes of a gather that are not the CPU backend's."""
    expected = _topk(torch.device("cpu"))
    expected["indices"].copy_(indices)
    cpu.gather_topk(**expected)
    found = out.cpu().view(torch.uint8)
    return int((found != expected["out"].view(torch.uint8)).count_nonzero())


def _topk(device: torch.device) -> Arguments:
    scene = next(each for each in SCENES.values() if each.operation == "gather_topk")
    return make_call(scene.make, device, SEED).arguments
