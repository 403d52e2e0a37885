"""Arguments of operations that are not tensors: pages of entries, and compressors.

The fixed part of a compressor turns a group of tokens into one entry, whose last channels are
rotated by a table as engines have it, or by frequencies. Engines form position × frequency in
float32 and keep cosines and sines in a float32 table of all positions, 256 MiB at 2^20. An entry
is rotated at its group's first position, so a row for each group is enough: 64 MiB for a ratio of
4, 2 MiB for 128; all layers of a ratio share one.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config, LayerSpec, Precision, inverse_frequencies
from dsv4kv.model.formats import PageLayout

_ANY_NUMBER = 2**63 - 1


@dataclass(frozen=True)
class Compressor:
    """Parameters of one layer's compressor (or of its indexer's)."""

    ratio: int  # tokens per entry, m
    dim: int  # channels of an entry, d
    overlap: bool  # pool the previous group's first half with the current group's second (CSA)
    # position bias of a score, float32[m, d · (2 if overlap else 1)]; zeros where a model has none
    # (DeepSeek-V4.1)
    ape: Tensor
    norm_weight: Tensor  # RMSNorm weight, float32[d]
    norm_eps: float  # RMSNorm epsilon
    # rotation of the last channels: float32[groups, rope_dim], for each entry the cosines of its
    # pairs, then their sines; or float64[rope_dim / 2], the angle per position of each pair, in
    # radians
    rope: Tensor
    hadamard: bool = False  # rotate the entry by Hadamard(d) / sqrt(d) after RoPE (indexer keys)
    # what RMSNorm gives is rounded to bf16 before RoPE (DeepSeek-V4.1's latent)
    round_norm: bool = False
    round_rope: bool = True  # what RoPE gives is rounded to bf16 before it is quantised

    @property
    def turns_rounded(self) -> bool:
        """Whether channels are mixed after they were rounded: one that flips moves others."""
        return self.hadamard or self.round_norm

    @property
    def channels(self) -> int:
        """Channels of kv and score of one token."""
        return self.ape.shape[1]

    @property
    def rows(self) -> int:
        """Tokens that one entry pools."""
        return self.ratio * (2 if self.overlap else 1)

    @property
    def rotated_pairs(self) -> int:
        """Pairs of channels that are rotated."""
        return self.rope.shape[1] // 2 if self.has_table else len(self.rope)

    @property
    def has_table(self) -> bool:
        """Whether cosines and sines are looked up."""
        return self.rope.dim() == 2

    @property
    def groups(self) -> int:
        """Entries of one request that can be rotated."""
        return len(self.rope) if self.has_table else _ANY_NUMBER

    def to(self, device: torch.device) -> "Compressor":
        """The same compressor with its tensors on another device."""
        moved = {name: getattr(self, name).to(device) for name in ("ape", "norm_weight", "rope")}
        return replace(self, **moved)


def random_compressor(
    config: DSV4Config,
    spec: LayerSpec,
    generator: torch.Generator,
    *,
    rope: Tensor,
    indexer: bool = False,
    hadamard: bool = False,
) -> Compressor:
    """A compressor with the model's geometry and random weights: a cache bench has no others.

    rope: as ``make_rope`` gives it for the layer's ratio.
    hadamard: not for DeepSeek-V4.1, whose keys no engine rotates.

    Where V4.1 is rounded is vLLM 0.33.0's way: of compressed KV the latent alone
    (fused_compress_quant_cache.py), of keys what RoPE gives as well (indexer_k_store.py). SGLang
    0.5.23 rounds both twice.
    """
    dim = config.index_dim if indexer else config.head_dim
    channels = dim * (2 if spec.overlaps else 1)
    ape = torch.randn(spec.ratio, channels, generator=generator)
    return Compressor(
        ratio=spec.ratio,
        dim=dim,
        overlap=spec.overlaps,
        ape=torch.zeros_like(ape) if spec.is_latent else ape,
        norm_weight=1 + 0.1 * torch.randn(dim, generator=generator),
        norm_eps=config.norm_eps,
        rope=rope,
        hadamard=hadamard and not spec.is_latent,
        round_norm=spec.is_latent,
        round_rope=indexer or not spec.is_latent,
    )


def make_rope(config: DSV4Config, ratio: int, tokens: int, precision: Precision) -> Tensor:
    """What a compressor of a ratio needs to rotate the entries of ``tokens`` positions.

    float32[tokens // ratio, rope_dim] as ``rope_rows`` has them, or float64[rope_dim / 2], radians
    per position, which serve any.
    """
    if precision == "float32":
        return rope_rows(config, ratio, torch.arange(0, tokens // ratio * ratio, ratio))
    return torch.tensor(inverse_frequencies(config, ratio, precision), dtype=torch.float64)


def rope_rows(config: DSV4Config, ratio: int, positions: Tensor) -> Tensor:
    """Rows of the engines' table, float32[positions, rope_dim]: cosines of all pairs, then sines.

    Source: vLLM 0.33.0 (``DeepseekV4ScalingRotaryEmbedding``) and SGLang 0.5.23
    (``precompute_freqs_cis``).
    """
    frequencies = torch.tensor(inverse_frequencies(config, ratio, "float32"))
    angles = torch.outer(positions.float(), frequencies)
    return torch.cat([angles.cos(), angles.sin()], dim=1)


@dataclass(frozen=True)
class PageStore:
    """All pages of one kind in one layer.

    An entry's *physical index* is ``page * layout.entries + row``.
    """

    layout: PageLayout  # format and number of entries of a page
    pages: Tensor  # uint8[num_pages, page_bytes], contiguous

    def __post_init__(self) -> None:
        size, entries = self.layout.page_bytes, self.layout.entries
        for row in (self.layout.format.data_row_bytes, self.layout.format.scale_row_bytes):
            if row and size % row:
                raise ConfigError(
                    f"a page of {entries} {self.layout.format.name} entries has {size} B, no "
                    f"whole number of its rows of {row} B: choose a multiple of 32 entries."
                )

    @classmethod
    def allocate(cls, layout: PageLayout, num_pages: int, device: torch.device) -> "PageStore":
        """Allocate zeroed pages."""
        shape = (num_pages, layout.page_bytes)
        return cls(layout, torch.zeros(shape, dtype=torch.uint8, device=device))

    @property
    def num_entries(self) -> int:
        """Entries all pages together can hold."""
        return self.pages.shape[0] * self.layout.entries

    def write(self, entries: Tensor, data: Tensor, scales: Tensor | None) -> None:
        """Put bytes as ``cpu.encode`` gives them into physical entries int64[n]."""
        form, cut = self.layout.format, self.layout.scale_start
        if scales is not None and form.inline_scales:
            data, scales = torch.cat([data[:, :cut], scales, data[:, cut:]], dim=1), None
        self.data_rows().index_copy_(0, self.data_index(entries), data)
        if scales is not None:
            self.scale_rows().index_copy_(0, self.scale_index(entries), scales)

    def read(self, entries: Tensor) -> tuple[Tensor, Tensor | None]:
        """Bytes of physical entries int64[n] as ``cpu.decode`` takes them."""
        form, cut = self.layout.format, self.layout.scale_start
        data = self.data_rows().index_select(0, self.data_index(entries))
        if form.inline_scales:
            end = cut + form.scale_bytes
            return torch.cat([data[:, :cut], data[:, end:]], dim=1), data[:, cut:end]
        if not form.scale_row_bytes:
            return data, None
        # 8 or 4 bytes go as one integer, far faster than as bytes
        rows = self.scale_rows()
        word = {8: torch.int64, 4: torch.int32}.get(rows.shape[1], torch.uint8)
        scales = rows.view(word).index_select(0, self.scale_index(entries))
        return data, scales.view(torch.uint8)

    def data_rows(self) -> Tensor:
        """The pages as uint8[n, data_row_bytes]; every data row is one of these rows."""
        return self.pages.view(-1, self.layout.format.data_row_bytes)

    def scale_rows(self) -> Tensor:
        """The pages as uint8[n, scale_row_bytes]; every scale row is one, of block-split pages."""
        return self.pages.view(-1, self.layout.format.scale_row_bytes)

    def data_index(self, entries: Tensor) -> Tensor:
        """Row numbers in ``data_rows`` of physical entries, int64[n]."""
        return self._index(entries, self.layout.format.data_row_bytes)

    def scale_index(self, entries: Tensor) -> Tensor:
        """Row numbers in ``scale_rows`` of physical entries, int64[n]."""
        size = self.layout.format.scale_row_bytes
        return self._index(entries, size) + self.layout.scale_start // size

    def _index(self, entries: Tensor, row_bytes: int) -> Tensor:
        page = entries // self.layout.entries
        row = entries - page * self.layout.entries
        return page * (self.layout.page_bytes // row_bytes) + row


@dataclass(frozen=True)
class PartWrite:
    """A step's tokens for one compressor: of the compressed KV, or of the indexer keys."""

    compressor: Compressor  # parameters
    state: Tensor  # float32[S, 2, R, C], or float32[S, 3, C] online
    kv: Tensor  # float32[T, C]
    score: Tensor  # float32[T, C]
    store: PageStore  # pages of the entries
    # physical entry that each token completes, int64[T], −1 where it completes none
    entries: Tensor


@dataclass(frozen=True)
class Entries:
    """Compressed entries that query tokens attend to."""

    store: PageStore  # pages of the compressed KV
    table: Tensor  # blocks of every slot, int32[S, W]
    lengths: Tensor  # entries that each token sees, int64[T]
    # logical entries that each token attends to, int32[T, K]: −1, or an index beyond what it sees,
    # is none, and one that is there twice counts twice. None: all it sees
    indices: Tensor | None


Parts = tuple[PartWrite, ...]
"""Compressed KV, then indexer keys if the layer has them."""
