"""Attention on the CPU twin: the reference's, whatever a block takes and how many share it out."""

import math

import pytest
import torch
from torch import Tensor

from dsv4kv.errors import ConfigError
from dsv4kv.model.formats import FORMATS
from dsv4kv.ops import reference
from dsv4kv.ops.contract import Entries
from dsv4kv.ops.kernels.attend import (
    GROUPS,
    NARROW,
    WIDE,
    Shape,
    parts_of,
    plan_attend,
    scratch_floats,
    shape_of,
)
from tests.kernels.launches import GuardedOutput, filled_store
from tests.kernels.shim.twin import run
from tests.ops.reads.scenes import make_cache, share_pages
from tests.ops.reads.test_attend import SCALE, TOKENS, make_ring
from tests.ops.samples import generator

WINDOW = 24

OUTPUT_ERROR = 2.0**-7
"""Against a head's largest: weights and outputs are rounded to bf16, sums are not."""

LSE_ERROR = 2.0**-18

CHOSEN = torch.randint(-1, 110, (6, 70), generator=generator(4), dtype=torch.int32)


def attend(
    shape: Shape, parts: int, heads: int, entries: Entries | None, *given: Tensor, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """What the twin gives on a ring of NaN with some entries, in guarded outputs."""
    ring, slots, tokens, queries, sinks = make_ring(), *given
    out = GuardedOutput.of(len(slots), heads, 512)
    lse = GuardedOutput.of(len(slots), heads, dtype=torch.float32)
    scratch = torch.full((scratch_floats(queries, parts),), math.nan)
    where, how = (ring, slots, tokens, WINDOW, entries), (queries, sinks, SCALE)
    for launch in plan_attend(
        *where, *how, out.out, lse.out, shape=shape, parts=parts, scratch=scratch
    ):
        run(launch, reverse=seed == 1, seed=seed)
    right, right_lse = torch.empty_like(out.out), torch.empty_like(lse.out)
    reference.attend(*where, *how, right, right_lse)
    assert torch.equal(lse.content().isinf(), right_lse.isinf())
    seen = right_lse.isfinite()
    assert ((lse.out - right_lse).abs()[seen] <= LSE_ERROR * right_lse.abs()[seen].clamp(1)).all()
    largest = right.double().abs().amax(dim=2, keepdim=True)
    error = (out.content().double() - right.double()).abs()
    assert (error <= OUTPUT_ERROR * largest).all()
    return out.out, lse.out


def given(heads: int) -> tuple[Tensor, Tensor]:
    random = generator(3)
    sinks = torch.randn(heads, generator=random)
    sinks[0], sinks[-1] = -math.inf, math.inf
    return (2 * torch.randn(6, heads, 512, generator=random)).bfloat16(), sinks


@pytest.mark.parametrize(
    ("shape", "heads", "name", "seen"),
    [
        (GROUPS, 70, "fp8_ds_mla", "chosen"),
        (WIDE, 17, "fp8_group32_interleaved", "chosen"),
        (GROUPS, 64, "bf16", "all"),
        (WIDE, 70, "fp8_ds_mla", "chosen"),
        (NARROW, 34, "fp8_ds_mla", "all"),
        (NARROW, 3, "fp4_interleaved", "chosen"),
        (NARROW, 3, "fp4", "chosen"),
        (NARROW, 16, "bf16", "window"),
    ],
)
def test_outputs_are_the_references_within_what_bf16_drops(
    shape: Shape, heads: int, name: str, seen: str
) -> None:
    """Three tokens of a request, one of none, one that sees nothing; NaN wherever nobody looks."""
    cache = make_cache(FORMATS["main"][name], seed=1)
    indices = CHOSEN if seen == "chosen" else None
    entries = Entries(cache.store, cache.table, cache.lengths, indices)
    for parts, seed in ((1, 0), (3, 7)):
        attend(
            shape, parts, heads, None if seen == "window" else entries,
            cache.slots, TOKENS, *given(heads), seed=seed,
        )  # fmt: skip


@pytest.mark.parametrize("indices", [None, CHOSEN], ids=["all", "chosen"])
def test_entries_of_shared_pages_count_at_every_place(indices: Tensor | None) -> None:
    cache = share_pages(make_cache(FORMATS["main"]["fp8_ds_mla"], seed=4))
    entries = Entries(cache.store, cache.table, cache.lengths, indices)
    attend(NARROW, 2, 3, entries, cache.slots, TOKENS, *given(3))


def test_the_order_of_threads_changes_no_bit() -> None:
    cache = make_cache(FORMATS["main"]["fp8_ds_mla"], seed=2)
    entries = Entries(cache.store, cache.table, cache.lengths, CHOSEN)
    results = [
        attend(NARROW, 2, 5, entries, cache.slots, TOKENS, *given(5), seed=seed)
        for seed in (0, 1, 9)
    ]
    for out, lse in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(lse, results[0][1])


def test_entries_that_there_are_not_are_not_read() -> None:
    """Slots, blocks and indices beyond what there is: such a token sees what is left of it."""
    store = filled_store(FORMATS["main"]["fp8_ds_mla"], pages=2)
    table = torch.tensor([[1, -1], [2, 2**31 - 1]], dtype=torch.int32)
    slots, far = torch.tensor([0, 1, 2, -(2**62)]), torch.full((4,), 2**62)
    indices = torch.tensor([[3, 31, 32, 64, -5, 2**31 - 1, -(2**31)]] * 4, dtype=torch.int32)
    queries, sinks = given(2)[0][:4], torch.zeros(2)
    out, lse = torch.full((4, 2, 512), math.nan).bfloat16(), torch.full((4, 2), math.nan)
    ring = filled_store(FORMATS["window"]["fp8_ds_mla"], pages=2)
    asked, how = Entries(store, table, far, indices), (queries, sinks, SCALE)
    (launch,) = plan_attend(ring, slots, far, WINDOW, asked, *how, out, lse, parts=1)
    run(launch)
    right, right_lse = torch.empty_like(out), torch.empty_like(lse)
    seen = Entries(store, table.clamp(0, 1), torch.tensor([32, 0, 0, 0]), indices)
    near = torch.where((slots < 2) & (slots >= 0), slots, -1)
    reference.attend(ring, near, far, WINDOW, seen, *how, right, right_lse)
    assert torch.equal(lse.isinf(), right_lse.isinf())
    assert (out.double() - right.double()).abs().max() <= 2.0**-7 * right.double().abs().max()


def test_a_token_is_shared_by_as_many_blocks_as_there_is_room_for() -> None:
    """132 multiprocessors; 128 window entries and 1,024 chosen ones are 18 tiles of 64."""
    cache = make_cache(FORMATS["main"]["fp8_ds_mla"], seed=3)
    indices = torch.empty(1, 1024, dtype=torch.int32)
    entries = Entries(cache.store, cache.table, cache.lengths, indices)
    queries = torch.empty(64, 128, 512, dtype=torch.bfloat16, device="meta")
    assert shape_of(queries) is WIDE
    assert shape_of(queries[:, :32]) is NARROW
    assert shape_of(queries[:, :32], "groups") is GROUPS
    counts = {batch: parts_of(queries[:batch], 128, entries, WIDE) for batch in (1, 4, 8, 16, 64)}
    assert counts == {1: 18, 4: 16, 8: 8, 16: 4, 64: 1}


def test_entries_of_other_sizes_are_refused() -> None:
    ring, nothing = make_ring(), torch.empty(0)
    queries = torch.empty(1, 2, 576)
    with pytest.raises(ConfigError, match=r"^entries of 576 channels cannot be attended to"):
        plan_attend(ring, nothing, nothing, 1, None, queries, nothing, 1.0, nothing, nothing)
