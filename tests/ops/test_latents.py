"""DeepSeek-V4.1's entries, pooled from two tokens or made of one, and its keys, against float64.

Written from the formulas of vLLM 0.33.0 (deepseek_v41: fused_compress_quant_cache.py and
indexer_k_store.py), without a line of ours but the codec.
"""

from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dsv4kv.model.config import inverse_frequencies
from dsv4kv.model.formats import FORMATS, EntryFormat
from dsv4kv.model.presets import load_model
from dsv4kv.ops import cpu, reference, reference_codec
from dsv4kv.ops.compressor import Compressor
from dsv4kv.ops.tolerance import is_close
from tests.examples import examples
from tests.ops.samples import (
    POISON,
    each_backend,
    fresh_ring,
    full_size_compressor,
    generator,
    poisoned_store,
    random_tokens,
)
from tests.ops.streams import Request, partitions

CONFIG = load_model("v4.1-flash")
MAIN = {name: FORMATS["main"][name] for name in ("fp4", "fp4_interleaved", "fp8_group32", "bf16")}
MAIN |= {"fp8_ds_mla": FORMATS["main"]["fp8_ds_mla"]}
KEYS = FORMATS["indexer"]
CASES = {
    **{
        f"latent-{m} {name}": (f"latent-{m}", entry)
        for m in (1, 2)
        for name, entry in MAIN.items()
    },
    **{f"keys-{m} {name}": (f"keys-{m}", entry) for m in (1, 2) for name, entry in KEYS.items()},
}
each_case = pytest.mark.parametrize(("kind", "entry"), CASES.values(), ids=CASES)
GROUPS = [0, 1, 77, 4095, 65_535]


def literal(compressor: Compressor, value: Tensor, position: int, *, keys: bool) -> Tensor:
    """An entry before quantisation, float64, from what is pooled or projected."""
    eps = 1e-20
    scale = torch.rsqrt((value * value).mean() + eps)
    latent = (value * scale * compressor.norm_weight.double()).bfloat16().double()
    m = compressor.ratio
    # The table is formed in float32, as engines do.
    frequencies = torch.tensor(inverse_frequencies(CONFIG, m, "float32"))
    angles = torch.tensor(float(position // m * m)) * frequencies
    cos, sin = angles.cos().double(), angles.sin().double()
    even, odd = latent[-64::2].clone(), latent[-63::2].clone()
    latent[-64::2] = even * cos - odd * sin
    latent[-63::2] = odd * cos + even * sin
    return latent.bfloat16().double() if keys else latent


def pooled(kv: Tensor, score: Tensor) -> Tensor:
    """Softmax over the pair, by channel, without any position bias."""
    weight = torch.exp(score.double() - score.double().amax(dim=0))
    return (weight * kv.double()).sum(dim=0) / weight.sum(dim=0)


def assert_entry(entry: EntryFormat, found: tuple[bytes, bytes], value: Tensor) -> None:
    expected = reference_codec.encode(entry, value.float().tolist())
    read = torch.tensor(reference_codec.decode(entry, *found), dtype=torch.float64)
    assert is_close(entry, read, expected, rotated=True)


@each_backend
@each_case
def test_entries_of_one_value_are_normalised_rounded_rotated_and_quantised(
    backend: ModuleType, kind: str, entry: EntryFormat
) -> None:
    compressor, m = full_size_compressor(kind), int(kind[-1])
    values = torch.randn(len(GROUPS), compressor.dim, generator=generator(3)).bfloat16()
    positions = torch.tensor(GROUPS) * m + m - 1
    store, entries = poisoned_store(entry), torch.tensor([95, -1, 33, 0, 32])
    backend.norm_rope_insert(compressor, values, positions, store, entries)
    for i in (0, 2, 3, 4):
        value = literal(
            compressor, values[i].double(), int(positions[i]), keys=kind.startswith("keys")
        )
        assert_entry(entry, reference.read_bytes(store, int(entries[i])), value)
    untouched = set(range(store.num_entries)) - set(entries.tolist())
    assert {reference.read_bytes(store, number)[0].count(POISON) for number in untouched} == {
        entry.value_bytes + entry.tail_bytes
    }


@each_backend
@pytest.mark.parametrize("entry", MAIN.values(), ids=MAIN)
def test_a_pair_is_pooled_by_a_softmax_of_its_own_scores_alone(
    backend: ModuleType, entry: EntryFormat
) -> None:
    compressor = full_size_compressor("latent-2")
    kv, score = random_tokens(compressor, 10, seed=4)
    store = poisoned_store(entry)
    request = Request(compressor, fresh_ring(compressor), store, kv, score, backend=backend)
    request.append(10)
    for group in range(5):
        pair = slice(2 * group, 2 * group + 2)
        value = literal(compressor, pooled(kv[pair], score[pair]), 2 * group + 1, keys=False)
        assert_entry(entry, reference.read_bytes(store, group), value)


def test_v41_has_no_overlap_no_position_bias_and_no_state_but_a_pair() -> None:
    for kind, rows, channels in (("latent-2", 2, 512), ("latent-1", 1, 512), ("keys-2", 2, 128)):
        compressor = full_size_compressor(kind)
        assert (compressor.rows, compressor.channels, compressor.overlap) == (
            rows,
            channels,
            False,
        )
        assert not bool(compressor.ape.any())
        assert not compressor.hadamard
        assert compressor.norm_eps == 1e-20


@examples(40)
@given(partitions(2, 9, 6), st.sampled_from([0, 3]), st.data())
def test_chunks_and_single_tokens_make_the_same_bytes(
    sizes: list[int], drafts: int, data: st.DataObject
) -> None:
    """A prefix in one piece, then the rest token by token, or any other way."""
    compressor = full_size_compressor("latent-2")
    kv, score = random_tokens(compressor, sum(sizes), seed=5)
    stores = [poisoned_store(MAIN["fp4"]) for _ in range(2)]
    ways = [data.draw(st.sampled_from(["append", "chunk"])) for _ in sizes]
    for store, pieces in zip(
        stores, ([("append", sum(sizes))], list(zip(ways, sizes, strict=True))), strict=True
    ):
        state = fresh_ring(compressor, drafts=drafts)
        Request(compressor, state, store, kv, score, backend=cpu).feed(pieces)
    assert torch.equal(stores[0].pages, stores[1].pages)
