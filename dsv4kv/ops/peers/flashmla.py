"""FlashMLA: byte-compatible, and without an operation that could be timed beside the others."""

from dsv4kv.errors import PeerUnavailable
from dsv4kv.ops.peers.foreign import Foreign


def load() -> Foreign:
    """Refuse: FlashMLA dequantises pages in registers, on the way into attention.

    One key for each query would make ``flash_mla_with_kvcache`` a gather, of 64 heads that all
    do the same: a number that says nothing.
    """
    raise PeerUnavailable(
        "FlashMLA reads these pages only inside attention (flash_mla_with_kvcache): it has no "
        "gather and no insert to time. Choose vllm, sglang or flaggems."
    )
