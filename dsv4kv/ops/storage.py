"""Pages of entries as a tensor, and where an entry's two rows lie in it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4kv.errors import ConfigError
from dsv4kv.model.formats import PageLayout


@dataclass(frozen=True)
class PageStore:
    """All pages of one kind in one layer.

    Attributes:
        layout: Format and number of entries of a page.
        pages: uint8[num_pages, page_bytes], contiguous.

    An entry's *physical index* is ``page * layout.entries + row``.
    """

    layout: PageLayout
    pages: Tensor

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

    def data_rows(self) -> Tensor:
        """The pages as uint8[n, data_row_bytes]; every data row is one of these rows."""
        return self.pages.view(-1, self.layout.format.data_row_bytes)

    def scale_rows(self) -> Tensor:
        """The pages as uint8[n, scale_row_bytes]; every scale row is one of these rows."""
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
