"""The byte model: useful bytes that each operation must read and write, whatever the hardware.

Counted: values, entries, states and indices, each once, reads plus writes. Not counted: page
padding, tables shared by a whole batch, parameters, and whatever caches fetch besides. Source of
the terms: DeepSeek-V4 report, section 3.5, and the layouts in ``dsv4kv.model.formats``.
"""

from typing import TYPE_CHECKING, TypeVar

from dsv4kv.model.formats import EntryFormat

if TYPE_CHECKING:  # they need torch, and counting bytes does not
    import numpy as np
    from numpy.typing import NDArray

    from dsv4kv.ops.compressor import Compressor
    from dsv4kv.ops.storage import PageStore

Count = TypeVar("Count", int, "NDArray[np.int64]")
"""A count, or many at once: one for each length or token."""

VERSION = 1
"""Raised whenever a term changes: rates of different versions do not compare."""

_INDEX_BYTES = 8
_TABLE_BYTES = 4
_FLOAT_BYTES = 4


def insert_bytes(entry: EntryFormat, count: int) -> int:
    """Insert of ``count`` entries: bf16 value and index in, entry out, normalised or not."""
    return count * (2 * entry.dims + _INDEX_BYTES + entry.entry_bytes)


def gather_topk_bytes(entry: EntryFormat, found: int, asked: int) -> int:
    """Top-k gather: ``asked`` int32 indices in, ``found`` entries in, as many bf16 values out."""
    return asked * 4 + found * (entry.entry_bytes + 2 * entry.dims)


def gather_all_bytes(entry: EntryFormat, found: Count, blocks: Count) -> Count:
    """Dense gather: ``blocks`` table entries and ``found`` entries in, bf16 values out."""
    return blocks * _TABLE_BYTES + found * (entry.entry_bytes + 2 * entry.dims)


def gather_window_bytes(entry: EntryFormat, found: int, requests: int) -> int:
    """Window gather: a length per request and ``found`` entries in, bf16 values out."""
    return requests * _INDEX_BYTES + found * (entry.entry_bytes + 2 * entry.dims)


def state_append_bytes(compressor: "Compressor", tokens: int, *, online: bool) -> int:
    """State append: kv and score in; two rows out, or three read and written when online."""
    moved = 2 + (6 if online else 2)
    return tokens * compressor.channels * moved * _FLOAT_BYTES


def flush_bytes(
    compressor: "Compressor", entry: EntryFormat, entries: int, *, online: bool
) -> int:
    """Flush: the pooled rows of kv and score in (two sums when online), entry out."""
    rows = 1 if online else compressor.rows
    return entries * (rows * compressor.dim * 2 * _FLOAT_BYTES + entry.entry_bytes)


def step_write_bytes(
    compressor: "Compressor", entry: EntryFormat, tokens: int, entries: int, *, online: bool
) -> int:
    """A part of a step's write: appended and flushed, less what both would move.

    The token that completes an entry is not read again, and an online state not either.
    """
    append = state_append_bytes(compressor, tokens, online=online)
    again = entries * compressor.dim * 2 * _FLOAT_BYTES
    return append + flush_bytes(compressor, entry, entries, online=online) - again


def compress_chunk_bytes(
    compressor: "Compressor", entry: EntryFormat, tokens: int, entries: int, state_rows: int
) -> int:
    """Chunk: kv and score in, entries out, and the rows that stay in the state out."""
    row_bytes = compressor.channels * 2 * _FLOAT_BYTES
    return (tokens + min(tokens, state_rows)) * row_bytes + entries * entry.entry_bytes


def page_copy_bytes(store: "PageStore", pages: int) -> int:
    """Page copy: every page in and out, two indices each."""
    return pages * (2 * store.layout.page_bytes + 2 * _INDEX_BYTES)


def indexer_query_bytes(tokens: int, heads: int, dims: int, rotated: int) -> int:
    """Indexer queries: bf16 vectors and weights in, turns of a token in, codes and weights out."""
    return tokens * (heads * (3 * dims + 2 * _FLOAT_BYTES) + rotated * _FLOAT_BYTES)


def index_scores_bytes(
    keys: EntryFormat, read: Count, places: Count, scores: Count, queries: Count
) -> Count:
    """Scores: ``read`` keys and ``places`` of tables or block lists in, ``scores`` out.

    ``queries``: heads of all tokens, of which each has its codes and a weight. Tokens of one
    request share its keys, which are read once; the keys of candidate blocks are each token's own.
    """
    asked = queries * (keys.dims + _FLOAT_BYTES)
    return read * keys.entry_bytes + places * _TABLE_BYTES + scores * _FLOAT_BYTES + asked


def select_blocks_bytes(scores: Count, chosen: Count) -> Count:
    """Candidate blocks: ``scores`` in, ``chosen`` numbers out."""
    return scores * _FLOAT_BYTES + chosen * _TABLE_BYTES


def select_topk_bytes(scores: Count, places: Count, chosen: Count) -> Count:
    """Top k: ``scores`` and ``places`` of block lists in, logical and physical numbers out."""
    return scores * _FLOAT_BYTES + (places + 2 * chosen) * _TABLE_BYTES


def attended_bytes(entry: EntryFormat, found: Count, places: Count) -> Count:
    """What attention reads of a cache: ``found`` entries, ``places`` of tables or index lists.

    Every token counts what it reads, though neighbours share most of a window.
    """
    return found * entry.entry_bytes + places * _TABLE_BYTES


def attend_query_bytes(tokens: int, heads: int, dims: int) -> int:
    """Attention besides its cache: a length, bf16 queries in, bf16 outputs and lse out."""
    return tokens * (_INDEX_BYTES + heads * (4 * dims + _FLOAT_BYTES))
