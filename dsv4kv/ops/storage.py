"""Pages of entries as a tensor, where the bytes of an entry are in it, and groups of arguments."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4kv.errors import ConfigError
from dsv4kv.model.formats import PageLayout
from dsv4kv.ops.compressor import Compressor


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
        """Put bytes as ``codec.encode`` gives them into physical entries int64[n]."""
        form, cut = self.layout.format, self.layout.scale_start
        if scales is not None and form.inline_scales:
            data, scales = torch.cat([data[:, :cut], scales, data[:, cut:]], dim=1), None
        self.data_rows().index_copy_(0, self.data_index(entries), data)
        if scales is not None:
            self.scale_rows().index_copy_(0, self.scale_index(entries), scales)

    def read(self, entries: Tensor) -> tuple[Tensor, Tensor | None]:
        """Bytes of physical entries int64[n] as ``codec.decode`` takes them."""
        form, cut = self.layout.format, self.layout.scale_start
        data = self.data_rows().index_select(0, self.data_index(entries))
        if form.inline_scales:
            end = cut + form.scale_bytes
            return torch.cat([data[:, :cut], data[:, end:]], dim=1), data[:, cut:end]
        return data, self._read_scales(entries) if form.scale_row_bytes else None

    def _read_scales(self, entries: Tensor) -> Tensor:
        """Scale rows uint8[n, ·]; 8 or 4 bytes go as one integer, far faster than as bytes."""
        index, rows = self.scale_index(entries), self.scale_rows()
        word = {8: torch.int64, 4: torch.int32}.get(rows.shape[1])
        if word is None:
            return rows.index_select(0, index)
        return rows.view(word).index_select(0, index).view(torch.uint8)

    def data_rows(self) -> Tensor:
        """The pages as uint8[n, data_row_bytes]; every data row is one of these rows."""
        return self.pages.view(-1, self.layout.format.data_row_bytes)

    def scale_rows(self) -> Tensor:
        """The pages as uint8[n, scale_row_bytes]; every scale row is one, of block-split pages."""
        return self.pages.view(-1, self.layout.format.scale_row_bytes)

    def data_index(self, entries: Tensor) -> Tensor:
        """Row numbers in ``data_rows`` of physical entries, int64[n]."""
        page, row = self._split(entries)
        return page * (self.layout.page_bytes // self.layout.format.data_row_bytes) + row

    def scale_index(self, entries: Tensor) -> Tensor:
        """Row numbers in ``scale_rows`` of physical entries, int64[n]."""
        page, row = self._split(entries)
        size = self.layout.format.scale_row_bytes
        return page * (self.layout.page_bytes // size) + self.layout.scale_start // size + row

    def _split(self, entries: Tensor) -> tuple[Tensor, Tensor]:
        page = entries // self.layout.entries
        return page, entries - page * self.layout.entries


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
