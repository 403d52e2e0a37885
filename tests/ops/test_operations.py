"""Every row of the table, on every format, by every backend, against the reference.

Data is random, outputs and what surrounds them are poisoned: see ``dsv4kv.ops.scenes``.
"""

import pytest
import torch

from dsv4kv.model.formats import MOVED_FORMATS
from dsv4kv.ops.check import check_scene
from dsv4kv.ops.scenes import Scene
from dsv4kv.ops.spec import OPERATIONS, READS, VARIANTS
from tests.examples import FULL
from tests.ops.operations import CPU, SCENES, SEED, bytes_after, on_cpu, on_twin

each_scene = pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
ONE_OF_EACH = {scene.operation: scene for scene in reversed(SCENES.values())}
_STATES = {"state_append", "flush", "step_write", "compress_chunk", "norm_rope_insert"}
ON_TWIN = {
    name: scene
    for name, scene in SCENES.items()
    if FULL
    or scene is ONE_OF_EACH[scene.operation]
    or (scene.operation in _STATES and name.endswith(("online states", "V4.1")))
}
"""All in ``make full``: kernels compile for seconds each."""


ALL_WAYS = [
    pytest.param(scene, variant, id=f"{name}, {variant}")
    for name, scene in ON_TWIN.items()
    for variant in VARIANTS.get(scene.operation, ("",))
]
"""Scenes on the twin, in each way that there is of the operation."""


def ways(variant: str) -> dict[str, str]:
    return {"variant": variant} if variant else {}


def test_every_operation_and_every_format_has_a_scene() -> None:
    assert set(ONE_OF_EACH) == set(OPERATIONS)
    written = {scene.format_name for scene in SCENES.values()}
    assert {entry.name for entry in MOVED_FORMATS} <= written


@each_scene
def test_the_cpu_backend_equals_the_reference(scene: Scene) -> None:
    assert check_scene(scene, on_cpu(scene.operation), CPU, SEED) is None


@pytest.mark.slow
@pytest.mark.parametrize(("scene", "variant"), ALL_WAYS)
def test_the_kernels_equal_the_reference(scene: Scene, variant: str) -> None:
    run = on_twin(scene.operation, **ways(variant))
    assert check_scene(scene, run, CPU, SEED) is None


@pytest.mark.slow
@pytest.mark.parametrize(("scene", "variant"), ALL_WAYS)
def test_the_order_of_threads_changes_no_bit_of_the_kernels(scene: Scene, variant: str) -> None:
    forward, *others = (
        bytes_after(scene, on_twin(scene.operation, **order, **ways(variant)))
        for order in ({}, {"reverse": True}, {"seed": 11})
    )
    for other in others:
        assert all(map(torch.equal, forward, other))


@pytest.mark.slow
@pytest.mark.parametrize(
    "scene",
    [s for s in ON_TWIN.values() if s.operation in VARIANTS and s.operation not in READS],
    ids=lambda scene: scene.operation,
)
def test_all_variants_of_an_operation_give_the_same_bytes(scene: Scene) -> None:
    first, *others = (
        bytes_after(scene, on_twin(scene.operation, variant=name))
        for name in VARIANTS[scene.operation]
    )
    for other in others:
        assert all(map(torch.equal, first, other))
