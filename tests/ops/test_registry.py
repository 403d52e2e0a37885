"""Backends by name, and that each of them is one."""

import inspect

import pytest

from dsv4kv.choices import BACKENDS
from dsv4kv.errors import ConfigError
from dsv4kv.ops.contract import Backend
from dsv4kv.ops.registry import load_backend

OPERATIONS = [name for name in vars(Backend) if not name.startswith("_")]


def test_unknown_backend_is_refused_with_the_choices() -> None:
    with pytest.raises(ConfigError) as refusal:
        load_backend("abacus")
    assert str(refusal.value) == (
        f"'abacus' is not a backend of ours: choose one of {', '.join(BACKENDS)}."
    )


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_backend_has_every_operation_with_the_contracts_parameters(
    name: str, operation: str
) -> None:
    contract = list(inspect.signature(getattr(Backend, operation)).parameters)
    found = list(inspect.signature(getattr(load_backend(name), operation)).parameters)
    assert found == contract[1:]  # a module has no self
