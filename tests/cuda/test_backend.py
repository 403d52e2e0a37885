"""The backend's wiring, with the CPU twin of the kernels in the GPU's place."""

import inspect
from functools import partial

import pytest
from torch import Tensor

from dsv4kv.ops import cuda
from dsv4kv.ops.check.reads import COMPARE
from dsv4kv.ops.contract import Backend
from dsv4kv.ops.registry import load_backend
from dsv4kv.ops.storage import PageStore
from dsv4kv.ops.variants import VARIANTS
from tests.cuda.comparison import assert_equals_cpu_backend
from tests.cuda.scenes import SCENES, Scene
from tests.kernels.shim import twin
from tests.ops.samples import same_bits

OPERATIONS = [name for name in vars(Backend) if not name.startswith("_")]
ONE_OF_EACH = {scene.operation: scene for scene in reversed(SCENES)}  # the first of each


def test_the_backend_goes_by_its_name() -> None:
    backend: object = load_backend("cuda")
    assert backend is cuda


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_has_the_contracts_parameters_and_its_variant(operation: str) -> None:
    contract = list(inspect.signature(getattr(Backend, operation)).parameters)
    found = inspect.signature(getattr(cuda, operation)).parameters
    named = [name for name, each in found.items() if each.kind is each.POSITIONAL_OR_KEYWORD]
    assert named == contract[1:]
    assert ("variant" in found) == (operation in VARIANTS)


@pytest.mark.parametrize("scene", ONE_OF_EACH.values(), ids=str)
def test_every_operation_launches_what_the_contract_asks_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "run", twin.run)
    assert_equals_cpu_backend(scene, getattr(cuda, scene.operation))


def _pages(scene: Scene, variant: str) -> Tensor:
    """Every page that a scene's operation writes, done in one way."""
    arguments = scene.arguments()
    getattr(cuda, scene.operation)(*arguments, variant=variant)
    (store,) = (each for each in arguments if isinstance(each, PageStore))
    return store.pages


SEVERAL = [each for each in SCENES if each.operation in VARIANTS]


@pytest.mark.parametrize("scene", [s for s in SEVERAL if s.operation not in COMPARE], ids=str)
def test_all_variants_of_an_operation_give_the_same_bytes(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "run", twin.run)
    first, *others = (_pages(scene, name) for name in VARIANTS[scene.operation])
    assert all(same_bits(first, other) for other in others)


@pytest.mark.parametrize("scene", [s for s in SEVERAL if s.operation in COMPARE], ids=str)
def test_all_variants_that_round_otherwise_are_close_to_the_cpu_backend(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "run", twin.run)
    for name in VARIANTS[scene.operation]:
        run = partial(getattr(cuda, scene.operation), variant=name)
        assert_equals_cpu_backend(scene, run)
