"""Before a step: make every request hold exactly the blocks it will need."""

import numpy as np
from numpy.typing import ArrayLike

from dsv4kv.cache.blocks import Ids
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.errors import CacheError, ContextOverflow


def prepare_forward(
    manager: KVCacheManager,
    request_slots: ArrayLike,
    positions_before: ArrayLike,
    positions_after: ArrayLike,
) -> None:
    """Allocate or give back blocks so that ``positions_after`` tokens of each request fit.

    What is done depends on what is held and what is needed alone: preparing a step twice changes
    nothing, going back after rejected drafts gives blocks back, and a request that resumes at
    ``positions_before`` > 0 with nothing held gets all its blocks. Decode steps, prompt chunks
    and speculative windows are the same to it.

    Args:
        manager: The cache.
        request_slots: int64[B], distinct slots.
        positions_before: int64[B], tokens of each request before the step.
        positions_after: int64[B], tokens after it; fewer than before rolls back.

    Raises:
        OutOfBlocks: The blocks of all requests together do not fit. One that is given back but
            another request holds, too, is not free.
        ContextOverflow: A request would outgrow its table row.
        NotOwner: No request runs in a slot.
        In every case nothing has changed.
    """
    slots, before, after = (
        np.asarray(values, dtype=np.int64)
        for values in (request_slots, positions_before, positions_after)
    )
    _check(manager, slots, before, after)
    lacking = [table.missing(slots, table.blocks_for(after)) for table in manager.tables]
    for table, blocks in zip(manager.tables, lacking, strict=True):
        table.change(slots, blocks)
    manager.tokens[slots] = after


def _check(manager: KVCacheManager, slots: Ids, before: Ids, after: Ids) -> None:
    if not slots.shape == before.shape == after.shape or slots.ndim != 1:
        raise CacheError(
            f"slots {slots.shape}, positions before {before.shape} and after {after.shape} "
            "must be three lists of one length."
        )
    if not slots.size:
        return
    manager.check_running(slots)
    limit = manager.plan.max_context_tokens
    # One look at both: their bits together are no less than either, and negative ones are huge.
    if int(np.maximum.reduce((before | after).view(np.uint64))) <= limit:
        return
    if np.count_nonzero((before | after) < 0):
        raise CacheError("a request cannot have fewer than 0 tokens.")
    longest = int(np.maximum.reduce(after))
    if longest > limit:
        raise ContextOverflow(
            f"a request would have {longest} tokens and a table row holds {limit}: raise "
            "cache.max_context_tokens. Nothing was changed."
        )
