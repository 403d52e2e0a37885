"""The torch operators: torch's own checks, the backend's results, and tensors without data."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dsv4kv.errors import ConfigError
from dsv4kv.ops import cpu, table
from dsv4kv.ops.contract import Backend
from dsv4kv.ops.cuda import library
from tests.cuda.scenes import SCENES, Scene
from tests.ops.samples import same_bits

OPERATIONS = [name for name in vars(Backend) if not name.startswith("_")]
ONE_OF_EACH = {scene.operation: scene for scene in reversed(SCENES)}  # the first of each

each_operation = pytest.mark.parametrize("operation", OPERATIONS)


def operator(operation: str) -> torch._ops.OpOverload:
    found: torch._ops.OpOverload = getattr(torch.ops.dsv4kv, operation).default
    return found


def flat(scene: Scene) -> tuple[object, ...]:
    return library.flatten(scene.operation, scene.arguments())


def tensors(argument: object) -> list[Tensor]:
    """Those that an argument is or lists."""
    every = argument if isinstance(argument, list) else [argument]
    return [each for each in every if isinstance(each, Tensor)]


def changed(argument: object, change: Callable[[Tensor], Tensor]) -> object:
    if isinstance(argument, list):
        return [changed(each, change) for each in argument]
    return change(argument) if isinstance(argument, Tensor) else argument


def test_every_operation_of_the_contract_is_an_operator() -> None:
    assert sorted(table.OPERATIONS) == sorted(OPERATIONS) == sorted(ONE_OF_EACH)


@each_operation
def test_torchs_own_checks_pass(operation: str) -> None:
    torch.library.opcheck(operator(operation), flat(ONE_OF_EACH[operation]))


@each_operation
def test_an_operator_does_what_the_backend_does(operation: str) -> None:
    scene = ONE_OF_EACH[operation]
    arguments, direct = flat(scene), scene.arguments()
    operator(operation)(*arguments)
    getattr(cpu, operation)(*direct)
    expected = library.flatten(operation, direct)
    assert len(arguments) == len(expected)
    for found, wanted in zip(arguments, expected, strict=True):
        if tensors(found):
            assert all(map(same_bits, tensors(found), tensors(wanted)))
        else:
            assert found == wanted


@each_operation
def test_what_a_schema_says_is_written_is_all_that_is_written(operation: str) -> None:
    arguments = flat(ONE_OF_EACH[operation])
    before = [changed(a, Tensor.clone) for a in arguments]
    operator(operation)(*arguments)
    written = {
        declared.name
        for declared, old, new in zip(
            operator(operation)._schema.arguments, before, arguments, strict=True
        )
        if not all(map(same_bits, tensors(old), tensors(new)))
    }
    declared = operator(operation)._schema.arguments
    assert written == {a.name for a in declared if a.alias_info and a.alias_info.is_write}


@each_operation
def test_tensors_without_data_pass_through(operation: str) -> None:
    arguments = flat(ONE_OF_EACH[operation])
    operator(operation)(*(changed(a, lambda tensor: tensor.to("meta")) for a in arguments))


@each_operation
def test_an_operator_is_registered_for_gpus_too(operation: str) -> None:
    name = f"dsv4kv::{operation}"
    registered = torch._C._dispatch_has_kernel_for_dispatch_key
    assert [registered(name, key) for key in ("CPU", "CUDA", "Meta")] == [True] * 3


def test_an_unknown_format_is_refused_with_the_choices() -> None:
    arguments = list(flat(ONE_OF_EACH["entry_insert"]))
    arguments[1] = "main/fp3"
    with pytest.raises(ConfigError) as refusal:
        torch.ops.dsv4kv.entry_insert(*arguments)
    assert str(refusal.value) == (
        "no format 'main/fp3': choose main/fp8_ds_mla, main/bf16, main/fp8, main/fp4, "
        "main/fp4_interleaved, main/fp8_group32, main/fp8_group32_interleaved, "
        "window/fp8_ds_mla, window/bf16, window/fp8, window/fp8_group32, "
        "window/fp8_group32_interleaved, indexer/mxfp4, indexer/fp8, indexer/bf16, "
        "flat/fp8_ds_mla, flat/bf16, flat/fp8."
    )
