"""Ways to do an operation: chosen by key, by GPU, recorded, and equal in every byte."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from dsv4kv.bench.run import run_case
from dsv4kv.config.load import expand_axes, load_config
from dsv4kv.errors import ConfigError
from dsv4kv.ops import cuda, spec
from dsv4kv.ops import launches as la
from dsv4kv.ops.cuda.launch import foresee
from dsv4kv.ops.scenes import make_call
from dsv4kv.ops.spec import VARIANTS, Variant, choose
from tests.bench.settings import ANY_STEP, TINY
from tests.gpu_twin import twin_gpu
from tests.ops.operations import SCENES, SEED

ON_HOPPER = {
    "near": Variant("on one chip", ("sm_90a", "sm_100a")),
    "far": Variant("on every chip"),
}


@pytest.fixture
def two_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """One operation, whose first variant not every GPU has."""
    monkeypatch.setattr(spec, "VARIANTS", {"flush": ON_HOPPER})


@pytest.mark.usefixtures("two_ways")
@pytest.mark.parametrize(
    ("architecture", "sentence"),
    [
        ("sm_120", "which sm_120 does not have: choose far, or null."),
        (
            None,
            "and the cache is on the CPU, where each operation has one variant: leave it null, ",
        ),
    ],
)
def test_one_that_there_is_not_is_refused(architecture: str | None, sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        choose({"flush": "near"}, architecture)
    assert str(refusal.value).startswith(f"ops.variant.flush is near, {sentence}")


def test_an_axis_compares_variants_and_each_case_runs_and_records_its_own() -> None:
    small = [*TINY, "device=cuda", "model.layers=[3]", "measure.verify_every=0", *ANY_STEP]
    axis = "ops.variant.flush=scratch,serial"
    points = expand_axes(load_config("smoke"), small, [axis])
    assert [point.axis for point in points] == [
        {"ops.variant.flush": name} for name in ("scratch", "serial")
    ]
    for point, name in zip(points, ("scratch", "serial"), strict=True):
        with twin_gpu() as gpu:
            case = run_case(point.axis, point.config, lambda _tokens: None)
        (modules,) = {
            launch.module
            for launches in gpu.captured
            for launch in launches
            if launch.kernel == "flush"
        }
        assert case.variants["flush"] == name
        assert dict(modules.macros)["DSV_AHEAD"] == (name != "serial")


@pytest.mark.parametrize(("kib", "architecture"), [(227, "sm_90a"), (99, "sm_120")])
def test_blocks_of_every_scene_fit_a_gpu(
    kib: int, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which a twin does not notice: on a GPU the launch fails."""
    monkeypatch.setattr(la, "most_shared", lambda _: kib << 10)
    with foresee() as launches:
        for scene in SCENES.values():
            arguments = make_call(scene.make, torch.device("meta"), SEED).arguments
            for name, one in VARIANTS.get(scene.operation, {"": Variant("")}).items():
                if one.runs_on(architecture):
                    way = {"variant": name} if name else {}
                    getattr(cuda, scene.operation)(**arguments, **way)
    assert {launch.kernel for launch in launches} >= {"attend", "index_scores"}
    assert {each.kernel for each in launches if each.shared_bytes > kib << 10} == set()


NARROW, SCORES = 87 << 10, 86 << 10  # shared memory of a block


@pytest.mark.parametrize(
    ("multiprocessors", "kib", "each"), [(108, 164, 1), (132, 228, 2), (148, 228, 2), (84, 100, 1)]
)
def test_a_multiprocessor_holds_as_many_blocks_as_its_shared_memory(
    monkeypatch: pytest.MonkeyPatch, multiprocessors: int, kib: int, each: int
) -> None:
    """A100, H200, B200, RTX 3090 (CUDA C++ Programming Guide, table of compute capabilities)."""
    facts = SimpleNamespace(
        multi_processor_count=multiprocessors, shared_memory_per_multiprocessor=kib << 10
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: facts)
    there: Any = SimpleNamespace(is_cuda=True, device=torch.device("cuda", 0))
    tensor = cast(torch.Tensor, there)
    assert la.resident_blocks(tensor, NARROW, 2) == each * multiprocessors
    assert la.resident_blocks(tensor, SCORES, 2) == each * multiprocessors
    assert la.resident_blocks(tensor, 179 << 10, 1) == multiprocessors
    assert la.most_blocks(tensor) == 8 * multiprocessors
