"""Bytes that operations must move, summed by hand from the layouts; grids that follow the GPU."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from dsv4kv.model.formats import entry_format
from dsv4kv.ops import spec
from dsv4kv.ops.launches.launch import most_blocks, resident_blocks
from tests.ops.samples import full_size_compressor

MLA = entry_format("main", "fp8_ds_mla")
MXFP4 = entry_format("indexer", "mxfp4")
CSA, HCA = (full_size_compressor(kind) for kind in ("csa", "hca"))

# An fp8_ds_mla entry is 584 B and decodes to 512 bf16, 1024 B: 1608 B. An mxfp4 key is 68 B and
# decodes to 128 bf16, 256 B. A CSA token has 1024 floats of kv and as many of score, HCA 512.
COUNTED = {
    "insert": (spec.insert_bytes(MLA, 1000), 1_616_000),
    "insert keys": (spec.insert_bytes(MXFP4, 10), 10 * (256 + 8 + 68)),
    "top-k gather": (spec.gather_topk_bytes(MLA, 10, 16), 10 * 1608 + 16 * 4),
    "dense gather": (spec.gather_all_bytes(MXFP4, 64, 2), 64 * (68 + 256) + 2 * 4),
    "window gather": (spec.gather_window_bytes(MLA, 389, 4), 389 * 1608 + 4 * 8),
    "append": (spec.state_append_bytes(CSA, 3, online=False), 3 * 4 * 1024 * 4),
    "append online": (spec.state_append_bytes(HCA, 1, online=True), 8 * 512 * 4),
    "flush": (spec.flush_bytes(CSA, MLA, 1, online=False), 8 * 512 * 2 * 4 + 584),
    "flush online": (spec.flush_bytes(HCA, MLA, 2, online=True), 2 * (2 * 512 * 4 + 584)),
    "step": (
        spec.step_write_bytes(CSA, MLA, 4, 1, online=False),
        4 * 4 * 1024 * 4 + 7 * 512 * 2 * 4 + 584,  # the eighth row is still at hand
    ),
    "chunk": (spec.compress_chunk_bytes(CSA, MLA, 20, 5, 8), 28 * 2 * 1024 * 4 + 5 * 584),
    "short chunk": (spec.compress_chunk_bytes(CSA, MLA, 3, 0, 8), 6 * 2 * 1024 * 4),
    "queries": (spec.indexer_query_bytes(3, 64, 128, 64), 3 * (64 * (256 + 136) + 256)),
    "scores": (
        spec.index_scores_bytes(MXFP4, 1000, 32, 3000, 192),
        1000 * 68 + 32 * 4 + 3000 * 4 + 192 * 132,
    ),
    "blocks": (spec.select_blocks_bytes(4096, 2048), 4096 * 4 + 2048 * 4),
    "top k": (spec.select_topk_bytes(16384, 2048, 512), (16384 + 2048 + 2 * 512) * 4),
    "attention": (spec.attended_bytes(MLA, 640, 512), 640 * 584 + 512 * 4),
    "its queries": (spec.attend_query_bytes(2, 128, 512), 2 * (8 + 128 * (2048 + 4))),
    "FLOPs of a key": (spec.index_scores_flops(1, 64, 128), 16_384),
    "FLOPs of an entry": (spec.attend_flops(1, 128, 512), 262_144),
    "nothing": (spec.flush_bytes(CSA, MLA, 0, online=False), 0),
}


@pytest.mark.parametrize("what", COUNTED)
def test_useful_bytes_are_those_counted_by_hand(what: str) -> None:
    found, expected = COUNTED[what]
    assert found == expected


NARROW, SCORES = 87 << 10, 86 << 10  # shared memory of a block


@pytest.mark.parametrize(
    ("multiprocessors", "kib", "each"), [(108, 164, 1), (132, 228, 2), (148, 228, 2), (84, 100, 1)]
)
def test_a_multiprocessor_holds_as_many_blocks_as_its_shared_memory(
    monkeypatch: pytest.MonkeyPatch, multiprocessors: int, kib: int, each: int
) -> None:
    """A100, H200, B200, RTX 3090 (CUDA C++ Programming Guide, table of compute capabilities)."""
    facts = SimpleNamespace(
        multi_processor_count=multiprocessors, shared_memory_per_multiprocessor=kib << 10
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: facts)
    there: Any = SimpleNamespace(is_cuda=True, device=torch.device("cuda", 0))
    tensor = cast(Tensor, there)
    assert resident_blocks(tensor, NARROW, 2) == each * multiprocessors
    assert resident_blocks(tensor, SCORES, 2) == each * multiprocessors
    assert resident_blocks(tensor, 179 << 10, 1) == multiprocessors
    assert most_blocks(tensor) == 8 * multiprocessors
