"""FlagGems: gather by request, of its DeepSeek-V4 attention kernels.

Versions up to 5.0 do not have it yet.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from dsv4kv.ops.peers.foreign import Foreign, Operation, find_function, paged_gathers, version_of
from dsv4kv.ops.storage import PageStore

_GATHER = "dequantize_and_gather_k_cache"
_PLACES = (
    f"flag_gems.fused.deepseek_v4_attention_{_GATHER}:{_GATHER}",
    f"flag_gems.fused.dsv4_attention:dsv4_{_GATHER}",
)


def load() -> Foreign:
    """See ``peers.load_peer``."""
    gather = find_function("flaggems", "flag_gems", _PLACES)
    return Foreign(
        operations=_bridge(gather),
        version=version_of("flag_gems"),
        formats=("fp8_ds_mla",),
        bridging=_bridge(lambda *_: None),
    )


def _bridge(gather: Callable[..., Any]) -> dict[str, Operation]:
    def paged(
        out: Tensor,
        store: PageStore,
        seq_lens: Tensor,
        gather_lens: Tensor | None,
        block_table: Tensor,
    ) -> None:
        # Whole pages in two dimensions: of three it would make a copy.
        pages, size = store.pages, store.layout.entries
        gather(out, pages, seq_lens, gather_lens, block_table, size, 0)

    return paged_gathers(paged)
