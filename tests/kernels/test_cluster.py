"""Entries pooled by a cluster of blocks: the bytes of the other way, whoever comes first."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dsv4kv.model.formats import FORMATS
from dsv4kv.ops.launches import Launch
from dsv4kv.ops.launches.pages import plan_compress_chunk, plan_flush, split_of
from tests.kernels.launches import dirty_scratch
from tests.kernels.shim.twin import run
from tests.ops import samples

HCA = samples.full_size_compressor("hca")
ORDERS: tuple[dict[str, Any], ...] = (
    {}, {"reverse": True}, {"seed": 11}, {"seed": 12}, {"seed": 13},
)  # fmt: skip
Plan = Callable[[str, Any], tuple[Launch, ...]]


def _ring(drafts: int = 0) -> Tensor:
    state = torch.randn(3, 2, HCA.rows + drafts, HCA.dim, generator=samples.generator(5))
    state[:, 1] *= 3
    return state


def _flush(drafts: int = 0) -> Plan:
    """Three entries, one of them of a group that wraps around its ring, and a row without."""
    state, slots = _ring(drafts), torch.tensor([2, 0, 1, 1])
    ends = torch.tensor([4, 1, 1000, 8]) * HCA.ratio - 1
    entries = torch.tensor([95, 0, -1, 33])
    return lambda variant, store: plan_flush(
        HCA, state, slots, ends, store, entries,
        variant=variant, split=split_of(HCA), scratch=dirty_scratch(HCA, 4),
    )  # fmt: skip


def _chunk(state: Tensor, start: int, tokens: int) -> Plan:
    kv, score = samples.random_tokens(HCA, tokens, seed=6)
    chunk = torch.tensor([1, start, tokens])
    entries = torch.arange(-(-tokens // HCA.ratio))
    return lambda variant, store: plan_compress_chunk(
        HCA, state.clone(), kv, score, chunk, store, entries,
        variant=variant, split=split_of(HCA), scratch=dirty_scratch(HCA, len(entries)),
    )  # fmt: skip


def _online() -> Tensor:
    state = torch.randn(3, 3, HCA.dim, generator=samples.generator(5))
    state[:, 1] = 1 + 10 * state[:, 1].abs()  # the denominator
    return state


PLANS = {
    "a flush": _flush(),
    "a flush with drafts": _flush(drafts=3),
    "a chunk": _chunk(_ring(), 77, 300),
    "a chunk of whole groups": _chunk(_ring(), 0, 256),
    "a chunk behind an online state": _chunk(_online(), 77, 300),
}


def _pages(plan: Plan, variant: str, **order: Any) -> Tensor:
    store = samples.poisoned_store(FORMATS["main"]["fp8_ds_mla"])
    for launch in plan(variant, store):
        run(launch, **order)
    return store.pages


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_cluster_gives_the_bytes_of_scratch_in_every_order(plan: Plan) -> None:
    expected = _pages(plan, "scratch")
    for order in ORDERS:
        assert torch.equal(_pages(plan, "cluster", **order), expected), order
