"""Gathering random entries on one CPU thread, against the memory bandwidth of the same run."""

import statistics

import pytest
import torch
from torch import Tensor

from dsv4kv.measure.memcpy import measure_memcpy
from dsv4kv.model.formats import PageLayout, entry_format
from dsv4kv.ops import reference, spec
from dsv4kv.ops.registry import load_backend
from dsv4kv.ops.storage import PageStore
from tests.benchmarks.medians import PLAIN, Measure, Remark
from tests.benchmarks.restatement import plain_gather

REQUESTS, TOPK = 64, 512
POOL_BYTES = 2**28
GROUP = f"gather {REQUESTS} x {TOPK} of 450,000 entries (584 B to bf16)"


class Scene:
    """A full pool of 256 MiB, scattered over 64 requests, and a choice of their entries."""

    def __init__(self) -> None:
        layout = PageLayout(entry_format("main", "fp8_ds_mla"), 32)
        generator = torch.Generator().manual_seed(0)
        blocks = -(-POOL_BYTES // layout.page_bytes // REQUESTS) * REQUESTS
        self.store = PageStore.allocate(layout, blocks, torch.device("cpu"))
        values = torch.randn(4096, 512, generator=generator).bfloat16()
        insert = load_backend("cpu").entry_insert
        for first in range(0, self.store.num_entries, len(values)):
            insert(self.store, values, torch.arange(first, first + len(values)))
        order = torch.randperm(blocks, generator=generator)
        self.table = order.view(REQUESTS, -1).int()
        self.slots = torch.arange(REQUESTS)
        entries = self.table.shape[1] * 32
        self.lengths = torch.full((REQUESTS,), entries)
        self.topk = torch.randint(entries, (REQUESTS, TOPK), generator=generator).int()
        self.out = torch.empty(REQUESTS, TOPK, 512, dtype=torch.bfloat16)

    def gather(self) -> Tensor:
        gather = load_backend("cpu").gather_topk
        gather(self.store, self.table, self.slots, self.topk, self.lengths, self.out)
        return self.out


@pytest.fixture(scope="module")
def scene() -> Scene:
    return Scene()


def test_gather(measure: Measure, remark: Remark, scene: Scene) -> None:
    median_ns = measure(GROUP, "ours", scene.gather, rounds=20)
    found = REQUESTS * TOPK
    moved = spec.gather_topk_bytes(scene.store.layout.format, found, found)
    copy_ns = statistics.median(measure_memcpy(POOL_BYTES, repeats=7))
    if median_ns is not None:
        rate, memcpy = moved / median_ns, 2 * POOL_BYTES / copy_ns
        share = 100 * rate / memcpy
        remark(f"gather moves {rate:.2f} GB/s, memcpy {memcpy:.2f} GB/s here: {share:.0f} %")
    few = (scene.slots[:2], scene.topk[:2, :32], scene.lengths[:2])
    expected = torch.empty(2, 32, 512, dtype=torch.bfloat16)
    reference.gather_topk(scene.store, scene.table, *few, expected)
    assert torch.equal(scene.out[:2, :32], expected)


def test_gather_plain(measure: Measure, scene: Scene) -> None:
    def gather() -> Tensor:
        return plain_gather(scene.store, scene.table, scene.slots, scene.topk)

    measure(GROUP, PLAIN, gather, rounds=5)
    assert torch.equal(gather(), scene.gather())
