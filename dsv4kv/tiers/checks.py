"""Two requests of one prompt must hold the same, bit for bit, wherever it is.

Compared is what the next tokens can read, by its logical position: entries that are complete, the
window, and of a state the rows that a group still pools. The rest of pages and rings is
padding, or left from earlier tokens.
"""

import numpy as np
from numpy.typing import NDArray

from dsv4kv.model.formats import PageLayout
from dsv4kv.tiers.cache_bytes import CacheBytes
from dsv4kv.tiers.families import Family, Kept

Mask = NDArray[np.bool_]


def differences(
    left: CacheBytes, left_slot: int, right: CacheBytes, right_slot: int, tokens: int
) -> list[str]:
    """A sentence for every family whose objects differ; both requests have so many tokens."""
    found = []
    for family in left.families.values():
        count = family.objects(tokens)
        both = [np.zeros((count, *family.object_shape), dtype=np.uint8) for _ in range(2)]
        for cache, slot, data in ((left, left_slot, both[0]), (right, right_slot, both[1])):
            cache.take(family, cache.units(family, slot, tokens), data)
        alive = live_bytes(family, tokens)[:, None]
        wrong = np.argwhere(((both[0] != both[1]) & alive).any(axis=2))
        if len(wrong):
            number, layer = wrong[0].tolist()
            found.append(
                f"{family.name}: object {number} of layer {family.layers[layer]} differs after "
                f"{tokens} tokens, and {len(wrong) - 1} other pieces."
            )
    return found


def live_bytes(family: Family, tokens: int) -> Mask:
    """Which bytes of a request's objects count, the same in every layer: bool[n, piece_bytes]."""
    alive = np.zeros((family.objects(tokens), family.piece_bytes), dtype=np.bool_)
    if family.layout is None:
        for piece in alive:
            _mark_state(family, tokens, piece)
    elif family.kept is Kept.PAGES:
        each = family.layout.entries
        for number, piece in enumerate(alive):
            entries = min(tokens // family.ratio - number * each, each)
            _mark_entries(family.layout, np.arange(entries), piece)
    elif tokens:
        positions = np.arange(max(0, tokens - family.tokens), tokens)
        _mark_entries(family.layout, positions % family.tokens, alive[0])
    return alive


def _mark_entries(layout: PageLayout, entries: NDArray[np.int64], piece: Mask) -> None:
    form = layout.format
    for start, size in (
        (layout.data_offset, form.data_row_bytes),
        (layout.scale_offset, form.scale_row_bytes),
    ):
        for entry in entries.tolist():
            piece[start(entry) : start(entry) + size] = True


def _mark_state(family: Family, tokens: int, piece: Mask) -> None:
    """Rows of the open group, and of the one before where groups overlap; a softmax is one row."""
    if len(family.state_shape) == 2:
        piece[:] = True
        return
    overlap = int(family.kept is Kept.WINDOW)
    first = max(0, tokens // family.ratio - overlap) * family.ratio
    rows = piece.reshape(family.state_shape[0], family.tokens, -1)
    rows[:, np.arange(first, tokens) % family.tokens] = True
