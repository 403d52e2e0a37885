"""Launch plans of page copies."""

from torch import Tensor

from dsv4kv.ops.kernels.launch import MOST_BLOCKS, KernelModule, Launch, blocks_for
from dsv4kv.ops.storage import PageStore

_THREADS = 256
_BYTES_PER_THREAD = 16


def plan_page_copy(store: PageStore, sources: Tensor, targets: Tensor) -> Launch:
    """See ``contract.Backend.page_copy``."""
    page_bytes = store.layout.page_bytes
    threads = len(sources) * page_bytes // _BYTES_PER_THREAD
    return Launch(
        KernelModule("page_copy.cuh", (("DSV_PAGE_BYTES", page_bytes),)),
        "page_copy",
        (blocks_for(threads, _THREADS, MOST_BLOCKS), 1),
        _THREADS,
        (store.pages, sources, targets, len(sources), len(store.pages)),
    )
