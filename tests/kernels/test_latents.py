"""DeepSeek-V4.1 on the CPU twin: codes next to the reference's, and the same bytes each way."""

import pytest
import torch

from dsv4kv.model.formats import FORMATS, EntryFormat
from dsv4kv.ops import reference, reference_codec
from dsv4kv.ops.contract import PartWrite
from dsv4kv.ops.kernels.state import plan_norm_rope_insert, plan_step_write
from dsv4kv.ops.tolerance import is_close
from tests.kernels import state_twin
from tests.kernels.launches import each_order
from tests.kernels.shim.twin import run
from tests.ops.samples import (
    fresh_ring,
    full_size_compressor,
    generator,
    poisoned_store,
    random_tokens,
    twin,
)
from tests.ops.streams import Request

MAIN, WINDOW, KEYS = FORMATS["main"], FORMATS["window"], FORMATS["indexer"]
CASES = {
    f"{kind} {entry.name}": (kind, entry)
    for kind, entry in (
        ("latent-1", MAIN["fp4"]),
        ("latent-1", MAIN["fp8_group32_interleaved"]),
        ("latent-1", MAIN["fp8_ds_mla"]),
        ("keys-1", KEYS["mxfp4"]),
        ("keys-2", KEYS["fp8"]),
    )
}


@each_order
@pytest.mark.parametrize(("kind", "entry"), CASES.values(), ids=CASES)
def test_entries_of_one_value_are_the_references_but_for_a_code(
    kind: str, entry: EntryFormat, reverse: bool
) -> None:
    compressor, m = full_size_compressor(kind), int(kind[-1])
    last = compressor.groups - 1
    groups = torch.tensor([0, 5, last, last + 1, 9, 1, 2, 3])
    positions = groups * m + m - 1
    positions[5] = -1
    entries = torch.tensor([95, -1, 33, 7, 96, 8, -(2**40), 32])
    values = torch.randn(len(groups), compressor.dim, generator=generator(6)).bfloat16()
    store = poisoned_store(entry)
    expected = twin(store)
    run(plan_norm_rope_insert(compressor, values, positions, store, entries), reverse=reverse)
    written = [0, 2, 7]
    reference.norm_rope_insert(
        compressor, values[written], positions[written], expected, entries[written]
    )
    for number in range(96):
        mine, right = (reference.read_bytes(each, number) for each in (store, expected))
        if number in entries[written].tolist():
            read = torch.tensor(reference_codec.decode(entry, *mine), dtype=torch.float64)
            assert is_close(entry, read, right, rotated=True)
        else:
            assert mine == right


@pytest.mark.parametrize("name", ["fp4", "fp4_interleaved"])
def test_pairs_have_the_same_bytes_flushed_in_a_chunk_or_in_a_step(name: str) -> None:
    compressor, tokens = full_size_compressor("latent-2"), 12
    kv, score = random_tokens(compressor, tokens, seed=7)
    stores = [poisoned_store(MAIN[name]) for _ in range(3)]
    one, chunks = (
        Request(compressor, fresh_ring(compressor), store, kv, score, backend=state_twin)
        for store in stores[:2]
    )
    one.append(tokens)
    chunks.feed([("chunk", 5), ("chunk", 1), ("chunk", 6)])
    state, ring = fresh_ring(compressor), poisoned_store(WINDOW["fp8_group32"], pages=1)
    values = torch.randn(tokens, 512, generator=generator(8)).bfloat16()
    for t in range(tokens):
        token, position = slice(t, t + 1), torch.tensor([t])
        entry = position // 2 if t % 2 else torch.tensor([-1])
        part = PartWrite(compressor, state, kv[token], score[token], stores[2], entry)
        run(plan_step_write(ring, values[token], torch.tensor([0]), position, (part,)))
    assert torch.equal(stores[0].pages, stores[1].pages)
    assert torch.equal(stores[0].pages, stores[2].pages)
    assert torch.equal(state, one.state)
