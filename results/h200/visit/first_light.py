"""Step: everything compiles, one kernel runs, and one graph follows its indices."""

import os
import time
from unittest.mock import patch

import torch
from torch import Tensor

from dsv4kv.config.load import load_config
from dsv4kv.files import temporary_folder
from dsv4kv.ops import cpu
from dsv4kv.ops.cuda.launch import compile_ahead, prepare
from dsv4kv.ops.launches.pages import plan_gather_topk
from dsv4kv.ops.scenes import Arguments, make_call
from tests.benchmarks.jit_start import modules_of
from tests.ops.operations import SCENES, SEED
from visit.desk import Desk
from visit.place import Place


def run(desk: Desk) -> None:
    """Answer the questions of ``questions.COMPILE``."""
    with desk.place() as place:
        desk.answer("compile_all", _compile(place))
        mine = _topk(place.device.device)
        indices, out = mine["indices"], mine["out"]
        call = prepare(plan_gather_topk(**mine))
        call()
        desk.answer("first_launch", _differing(out, indices))
        graph = place.device.make_capture()(call)
        indices.copy_(indices.flip(1))
        out.fill_(torch.nan)
        graph.replay()
        desk.answer("first_graph", _differing(out, indices))


def _compile(place: Place) -> float:
    """Seconds until all kernels of a model are loaded, none of which was compiled before."""
    config = load_config("smoke" if place.small else "gpu", []).config
    modules = modules_of(config)
    with (
        temporary_folder("dsv4kv-cubins-") as folder,
        patch.dict(os.environ, DSV4KV_CACHE_DIR=str(folder)),
    ):
        began = time.perf_counter()
        compile_ahead(modules, place.device.device)
        return time.perf_counter() - began


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
