"""How vLLM splits buckets of layers into groups, and what a block of all groups costs.

All groups draw their blocks from one pool, so a block costs the same in each.
Source: vLLM 0.20 to 0.33, ``kv_cache_utils.py`` and ``kv_cache_planning.py``.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from dsv4kv.errors import ConfigError
from dsv4kv.sizing.engines.vllm_pages import Group, Page

Grouping = Literal["tuples", "patterns"]
Packing = Literal["tuples", "slots", "widest"]


def split_buckets(buckets: Sequence[Group], grouping: Grouping, *, pad: bool) -> list[Group]:
    """The groups of a model: the full-context bucket whole, the others in nearly equal parts.

    Args:
        buckets: Full context first.
        grouping: How the parts' size is found: ``tuples`` up to 0.28, ``patterns`` from 0.29.
        pad: Window and state pages take the size of the next larger full-context page, so that
            they can share its place (up to 0.26).

    Raises:
        ConfigError: A window or state page larger than every full-context page, when padding.
    """
    full, *others = buckets
    if grouping == "tuples":
        divisor = closest_divisor([bucket.repeats for bucket in buckets], full.repeats)
        tuples = [_layer_tuples(_padded(bucket, full) if pad else bucket) for bucket in others]
        counts = [-(-len(bucket.rows) // divisor) for bucket in tuples]
    else:
        tuples, (_, *counts) = others, _part_counts(buckets)
    parts = [
        replace(bucket, rows=bucket.rows[i::count])
        for bucket, count in zip(tuples, counts, strict=True)
        for i in range(count)
    ]
    return [full, *parts]


def closest_divisor(counts: Sequence[int], lowest: int) -> int:
    """The d, from ``lowest`` up, that pads the counts to multiples of d with least padding.

    Of several, the largest.
    """
    return min(
        range(max(lowest, 1), max(*counts, lowest) + 1),
        key=lambda d: (sum(-count % d for count in counts), -d),
    )


def block_bytes(groups: Sequence[Group], packing: Packing, full: Group) -> int:
    """Bytes of one block over all held layers, whichever group it belongs to.

    Args:
        groups: With this rank's pages, full context first.
        packing: The rule.
        full: The full-context group of the whole model, whose page sizes ``tuples`` falls back to.
    """
    if packing == "widest":
        return max(group.page_bytes for group in groups)
    if packing == "tuples":
        sizes = groups[0].sizes or full.sizes
        return sum(sizes) * max(group.repeats for group in groups)
    slots: Counter[int] = Counter()
    for group in groups:
        slots |= group.sizes
    return sum(size * count for size, count in slots.items())


def _layer_tuples(bucket: Group) -> Group:
    """The same pages in rows of one page of each size; padded alike, a layer's two become two."""
    by_size: dict[int, list[Page]] = {}
    for page in bucket.pages:
        by_size.setdefault(page.page_bytes, []).append(page)
    return replace(bucket, rows=tuple(zip(*by_size.values(), strict=True)))


def _part_counts(buckets: Sequence[Group]) -> list[int]:
    """Buckets of equally many pages of each size repeat a pattern; mixed ones stay whole."""
    balanced = [bucket for bucket in buckets if len(set(bucket.sizes.values())) == 1]
    lowest = max((bucket.repeats for bucket in balanced if len(bucket.sizes) > 1), default=0)
    if not lowest:
        return _state_parts(buckets)
    divisor = closest_divisor([bucket.repeats for bucket in balanced], lowest)
    return [-(-bucket.repeats // divisor) if bucket in balanced else 1 for bucket in buckets]


def _state_parts(buckets: Sequence[Group]) -> list[int]:
    """Without a pattern, windows and states fill what a block must hold anyway."""
    anchor = max(
        bucket.page_bytes if bucket.window_tokens is None else bucket.pages[0].page_bytes
        for bucket in buckets
    )
    return [
        1
        if bucket.window_tokens is None
        else -(-len(bucket.pages) // (anchor // bucket.pages[0].page_bytes))
        for bucket in buckets
    ]


def _padded(bucket: Group, full: Group) -> Group:
    rows = tuple(tuple(_pad(page, full) for page in row) for row in bucket.rows)
    return replace(bucket, rows=rows)


def _pad(page: Page, full: Group) -> Page:
    larger = [size for size in full.sizes if size >= page.page_bytes]
    if not larger:
        raise ConfigError(
            f"this vLLM keeps a {page.pool} page of {page.page_bytes:,} B in the place of a page "
            f"of compressed KV, of which the largest has {max(full.sizes):,} B: "
            "it needs a CSA layer, and blocks of 256 tokens or more."
        )
    return replace(page, page_bytes=min(larger))
