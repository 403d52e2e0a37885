"""Formats, poisoned pages and random tensors that the operation tests share."""

import functools

import pytest
import torch
from torch import Tensor

from dsv4kv.model.config import AttentionType, LayerSpec, Precision, inverse_frequencies
from dsv4kv.model.formats import FLAT_FORMATS, FORMATS, EntryFormat, PageLayout
from dsv4kv.model.presets import load_model
from dsv4kv.ops import cpu, reference
from dsv4kv.ops.storage import Compressor, PageStore, make_rope, random_compressor

POISON = 0xA5

ENTRIES: dict[str, EntryFormat] = {
    f"{entry.name}-{entry.dims}": entry
    for table in (*FORMATS.values(), FLAT_FORMATS)
    for entry in table.values()
}
"""Every different format there is."""

each_entry = pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
each_backend = pytest.mark.parametrize("backend", [reference, cpu], ids=["reference", "cpu"])


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_values(entry: EntryFormat, count: int, seed: int) -> Tensor:
    """bf16[count, D] over many magnitudes: no two groups have one scale in common."""
    random = generator(seed)
    values = torch.randn(count, entry.dims, generator=random)
    powers = torch.randint(-12, 8, (count, entry.dims // 16), generator=random)
    return (values * 2.0 ** powers.repeat_interleave(16, dim=1)).bfloat16()


def poisoned_store(
    entry: EntryFormat, entries: int = 32, pages: int = 3, poison: int = POISON
) -> PageStore:
    store = PageStore.allocate(PageLayout(entry, entries), pages, torch.device("cpu"))
    store.pages.fill_(poison)
    return store


def read_entries(store: PageStore, entries: list[int]) -> Tensor:
    """Decode physical entries with the reference codec: bf16[n, D]."""
    decode = functools.partial(reference.decode, store.layout.format)
    decoded = [decode(*reference.read_bytes(store, entry)) for entry in entries]
    return torch.tensor(decoded, dtype=torch.float64).bfloat16()


def nan_output(*shape: int) -> Tensor:
    """An output that nobody has written yet: bf16."""
    return torch.full(shape, torch.nan, dtype=torch.bfloat16)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal shape and bytes: tells −0 from 0 and takes NaN as equal to itself."""
    return a.shape == b.shape and torch.equal(
        a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)
    )


@functools.cache
def full_size_compressor(kind: str, precision: Precision = "float32") -> Compressor:
    """DeepSeek-V4-Flash's compressor of a ``csa`` or ``hca`` layer, or of an ``indexer``.

    Or V4.1-Flash's: ``latent-2`` and ``latent-1`` by ratio, ``keys-2`` and ``keys-1``.
    """
    name, _, ratio = kind.partition("-")
    config = load_model("v4.1-flash" if ratio else "v4-flash")
    attention = AttentionType.HCA if kind == "hca" else AttentionType.CSA
    spec = LayerSpec(2, attention, int(ratio or (128 if kind == "hca" else 4)), 2)
    indexer = name in ("indexer", "keys")
    # A row of the table for each entry: with one for every token, 256 MiB of them are too many.
    tokens = 1 << 17 if ratio else config.max_context_tokens
    rope = make_rope(config, spec.ratio, tokens, precision)
    return random_compressor(
        config, spec, generator(7), rope=rope, indexer=indexer, hadamard=indexer
    )


def angles(compressor: Compressor, position: int) -> Tensor:
    """By what the pairs of an entry turn, float64; of a table those of V4-Flash, in float32."""
    if not compressor.has_table:
        return position * compressor.rope
    found = inverse_frequencies(load_model("v4-flash"), compressor.ratio, "float32")
    return (position * torch.tensor(found)).double()


def small_compressor(ratio: int, overlap: bool, dim: int = 16) -> Compressor:
    """Half of the channels are rotated."""
    random = generator(11)
    return Compressor(
        ratio=ratio,
        dim=dim,
        overlap=overlap,
        ape=torch.randn(ratio, dim * (2 if overlap else 1), generator=random),
        norm_weight=1 + 0.1 * torch.randn(dim, generator=random),
        norm_eps=1e-6,
        rope=torch.logspace(0, -3, dim // 4, dtype=torch.float64),
    )


def bf16_entry(compressor: Compressor) -> EntryFormat:
    """The format that shows a compressor's entries as they are."""
    return EntryFormat("bf16", "bf16", compressor.dim)


def fresh_ring(compressor: Compressor, slots: int = 1, drafts: int = 0) -> Tensor:
    """Ring states of requests without tokens: kv 0, score −inf."""
    state = torch.zeros(slots, 2, compressor.rows + drafts, compressor.channels)
    state[:, 1] = -torch.inf
    return state


def fresh_online(compressor: Compressor, slots: int = 1) -> Tensor:
    """Online states of requests without tokens: max −inf, sums 0."""
    state = torch.zeros(slots, 3, compressor.channels)
    state[:, 0] = -torch.inf
    return state


def random_tokens(compressor: Compressor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """(kv, score) of tokens, float32[count, C]; scores wide enough to make weights uneven."""
    random = generator(seed)
    kv = torch.randn(count, compressor.channels, generator=random)
    return kv, 3 * torch.randn(count, compressor.channels, generator=random)
