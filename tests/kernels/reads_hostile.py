"""Every kernel of a decode step's reads, asked for what there is and for what there is not."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from dsv4kv.model.formats import FORMATS
from dsv4kv.ops.launches import select
from dsv4kv.ops.launches.attend import GROUPS, NARROW, plan_attend, scratch_floats
from dsv4kv.ops.launches.launch import Launch
from dsv4kv.ops.launches.select import (
    plan_index_scores,
    plan_indexer_query,
    plan_select_blocks,
    plan_select_topk,
    scratch_shape,
)
from dsv4kv.ops.storage import Entries, PageStore
from tests.examples import FULL
from tests.kernels.launches import filled_store, mixed, of_one_module_a_kernel
from tests.kernels.shim.twin import SANITIZED, run
from tests.ops.samples import generator

TOKENS, HEADS = 6, 3
FAR = 2**63 - 1
BEYOND = [-1, 3, 64, 2**31 - 1, -(2**31)]
FAR_BEYOND = [*BEYOND, FAR, -FAR - 1]


def run_all_sanitized() -> None:
    select.RUN = 15  # several runs of a row
    for launch in of_one_module_a_kernel(launches()):
        run(launch, seed=11, flags=SANITIZED)


def launches() -> Iterator[Launch]:
    table = mixed(3 * 2, range(2), BEYOND, seed=1).int().view(3, 2)
    slots = mixed(TOKENS, range(3), FAR_BEYOND, seed=2)
    lengths = mixed(TOKENS, range(70), FAR_BEYOND, seed=3).roll(1)
    yield from _queries()
    for name in ("mxfp4", "fp8") if FULL else ("mxfp4",):
        store = filled_store(FORMATS["indexer"][name], pages=2)
        yield from _scores(store, table, slots, lengths)
    yield from _choices(table, slots, lengths)
    yield from _attention(table, slots, lengths)


def _queries() -> Iterator[Launch]:
    random = generator(4)
    queries, turns = (torch.randn(TOKENS, n, generator=random) for n in (HEADS * 128, 64))
    weights = torch.zeros(TOKENS, HEADS)
    out = torch.zeros(TOKENS, HEADS, 128, dtype=torch.uint8)
    values = queries.view(TOKENS, HEADS, 128).bfloat16()
    plan = plan_indexer_query(values, weights, turns, True, out, weights.clone())
    yield plan
    yield replace(plan, grid=(1, 1))


def _scores(store: PageStore, table: Tensor, slots: Tensor, lengths: Tensor) -> Iterator[Launch]:
    queries = torch.zeros(TOKENS, HEADS, 128, dtype=torch.uint8)
    seen = store, table, slots, lengths, queries, torch.zeros(TOKENS, HEADS)
    blocks = mixed(TOKENS * 5, range(9), BEYOND, seed=5).int().view(TOKENS, 5)
    for candidates, columns in ((None, 77), (blocks, 40)):
        plan = plan_index_scores(*seen, candidates, torch.zeros(TOKENS, columns))
        yield replace(plan, grid=(5, 1))


def _choices(table: Tensor, slots: Tensor, lengths: Tensor) -> Iterator[Launch]:
    scores = torch.randn(TOKENS, 40, generator=generator(6))
    blocks = mixed(TOKENS * 5, range(9), BEYOND, seed=7).int().view(TOKENS, 5)
    out = torch.zeros(TOKENS, 6, dtype=torch.int32)
    given = table, slots, 32, out, out.clone()
    for candidates in (None, blocks) if FULL else (blocks,):
        scratch = torch.zeros(scratch_shape(40, out), dtype=torch.int32)
        yield from plan_select_topk(scores, lengths, candidates, *given, scratch=scratch)
    scratch = torch.zeros(scratch_shape(20, out), dtype=torch.int32)
    yield from plan_select_blocks(scores, lengths, 2, out, scratch=scratch)


def _attention(table: Tensor, slots: Tensor, lengths: Tensor) -> Iterator[Launch]:
    ring, store = (filled_store(FORMATS["main"]["fp8_ds_mla"], pages=3) for _ in range(2))
    indices = mixed(TOKENS * 35, range(64), BEYOND, seed=8).int().view(TOKENS, 35)
    queries = torch.randn(TOKENS, HEADS, 512, generator=generator(9)).bfloat16()
    out, lse = torch.zeros_like(queries), torch.zeros(TOKENS, HEADS)
    scratch = torch.zeros(scratch_floats(queries, 2))
    seen = ring, slots, lengths.roll(1), 24, Entries(store, table, lengths, indices)
    given = *seen, queries, torch.zeros(HEADS), 0.1, out, lse
    for shape in (GROUPS, NARROW):
        yield from plan_attend(*given, shape=shape, parts=2, scratch=scratch)
