"""The backend's wiring, with the CPU twin of the kernels in the GPU's place."""

import inspect

import pytest

from dsv4kv.ops import cuda
from dsv4kv.ops.contract import Backend
from dsv4kv.ops.registry import load_backend
from tests.cuda.comparison import assert_equals_cpu_backend
from tests.cuda.scenes import SCENES, Scene
from tests.kernels.shim import twin

OPERATIONS = [name for name in vars(Backend) if not name.startswith("_")]
ONE_OF_EACH = {scene.operation: scene for scene in reversed(SCENES)}  # the first of each


def test_the_backend_goes_by_its_name() -> None:
    assert load_backend("cuda") is cuda


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_has_the_contracts_parameters(operation: str) -> None:
    contract = list(inspect.signature(getattr(Backend, operation)).parameters)
    assert list(inspect.signature(getattr(cuda, operation)).parameters) == contract[1:]


@pytest.mark.parametrize("scene", ONE_OF_EACH.values(), ids=str)
def test_every_operation_launches_what_the_contract_asks_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "run", twin.run)
    assert_equals_cpu_backend(scene, getattr(cuda, scene.operation))
