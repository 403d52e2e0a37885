"""Bridges to a gather that takes requests as rows of a block table.

vLLM's ``dequantize_and_gather_k_cache`` and FlagGems' function of that name read the last
``gather_lens`` of ``seq_lens`` entries of every request and write nothing else. So what a call
does besides: table rows of the slots (one small copy), lengths as int32, and zeros everywhere
in the output first, because lengths are known on the device only.
"""

from typing import Protocol

from torch import Tensor

from dsv4kv.ops.peers.foreign import Operation
from dsv4kv.ops.storage import PageStore


class PagedGather(Protocol):
    """A package's gather, its pages given as the toolkit has them."""

    def __call__(
        self,
        out: Tensor,
        store: PageStore,
        seq_lens: Tensor,
        gather_lens: Tensor | None,
        block_table: Tensor,
    ) -> None:
        """Dequantise entries seq_len − gather_len … seq_len − 1 of every request.

        out: bf16[B, M, 512]; seq_lens, gather_lens: int32[B], None for all entries;
        block_table: int32[B, W].
        """


def paged_gathers(gather: PagedGather) -> dict[str, Operation]:
    """``gather_all`` and ``gather_window`` out of a package's gather."""

    def gather_all(
        store: PageStore, table: Tensor, slots: Tensor, lengths: Tensor, out: Tensor
    ) -> None:
        out.zero_()
        gather(out, store, lengths.int(), None, table[slots])

    def gather_window(ring: PageStore, slots: Tensor, tokens: Tensor, out: Tensor) -> None:
        size = ring.layout.entries
        # A ring is a request whose blocks are all the same one: two of them hold any window.
        turned = size + tokens % size
        length = tokens.where(tokens < size, turned)
        gathered = tokens.clamp(max=out.shape[1])
        out.zero_()
        blocks = slots.int()[:, None].repeat(1, 2)
        gather(out, ring, length.int(), gathered.int(), blocks)

    return {"gather_all": gather_all, "gather_window": gather_window}
