"""Page copies on the CPU twin."""

import pytest
import torch

from dsv4kv.model.formats import FORMATS
from dsv4kv.ops import cpu
from dsv4kv.ops.kernels.insert import plan_page_copy
from tests.kernels.launches import each_order, filled_store, on_blocks
from tests.kernels.shim.twin import run
from tests.ops.samples import twin


@each_order
@pytest.mark.parametrize("name", ["fp8_ds_mla", "fp4"])
def test_copied_pages_are_those_of_the_cpu_backend(name: str, reverse: bool) -> None:
    store = filled_store(FORMATS["main"][name], pages=7)
    expected = twin(store)
    sources, targets = torch.tensor([3, 5, 3]), torch.tensor([0, 6, 2])
    cpu.page_copy(expected, sources, targets)
    run(on_blocks(plan_page_copy(store, sources, targets), 3), reverse=reverse)
    assert torch.equal(store.pages, expected.pages)


@pytest.mark.parametrize("nowhere", [-1, 4, 2**60])
def test_pages_that_do_not_exist_are_neither_read_nor_written(nowhere: int) -> None:
    store = filled_store(FORMATS["main"]["fp8_ds_mla"], pages=4)
    expected = twin(store)
    cpu.page_copy(expected, torch.tensor([3]), torch.tensor([2]))
    sources, targets = torch.tensor([nowhere, 0, 3]), torch.tensor([1, nowhere, 2])
    run(plan_page_copy(store, sources, targets))
    assert torch.equal(store.pages, expected.pages)
