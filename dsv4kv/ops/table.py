"""The table of operations: what each writes, the ways to do it, what it moves and computes.

Useful bytes are those that an operation must read and write, whatever the hardware. Counted:
values, entries, states and indices, each once, reads plus writes. Not counted: page padding,
tables shared by a whole batch, parameters, and what caches fetch beyond that. Source of the terms:
DeepSeek-V4 report, section 3.5, and the layouts in ``dsv4kv.model.formats``.

Floating-point operations are those of the matrix products of a decode step's reads, a
multiplication and an addition each. Not counted: ReLU, softmax, sums over heads, and decoding of
entries, which tensor cores do not do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from dsv4kv.model.formats import EntryFormat

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Variant:
    """One way to do an operation.

    Attributes:
        meaning: What sets it apart, to follow its name.
        architectures: That have what it takes, such as ``sm_90a``; None for all.
    """

    meaning: str
    architectures: tuple[str, ...] | None = None

    def runs_on(self, architecture: str) -> bool:
        """Whether an architecture has what it takes."""
        return self.architectures is None or architecture in self.architectures


_CLUSTERS = ("sm_90a", "sm_100a")  # with room for three blocks of 74 KiB a multiprocessor

_POOLING = {
    "scratch": Variant("the loads of a batch of rows are under way together"),
    "serial": Variant("loads as the compiler places them, in several rounds"),
    "cluster": Variant(
        "blocks that share an entry are a cluster, which needs no second kernel", _CLUSTERS
    ),
}

_INSERTING = {
    "resident": Variant("a warp has two entries under way, on as many blocks as the GPU holds"),
    "single": Variant("a warp has one entry under way, on up to eight blocks a multiprocessor"),
}

_GATHERING = {
    "ahead": Variant("a warp looks up all its entries at once, four of them under way"),
    "stepwise": Variant("a warp looks up two entries at a time, both under way"),
}


@dataclass(frozen=True)
class Row:
    """What is to be known of an operation in addition to its contract.

    Attributes:
        writes: Arguments of the contract that it writes.
        of_slots: It works on rings and states: other block tables give it no other bytes.
        variants: Ways to do it on a GPU, the default first.
    """

    writes: tuple[str, ...]
    of_slots: bool = False
    variants: Mapping[str, Variant] = field(default_factory=dict)


OPERATIONS: dict[str, Row] = {
    "window_insert": Row(("ring",), of_slots=True, variants=_INSERTING),
    "entry_insert": Row(("store",), variants=_INSERTING),
    "indexer_insert": Row(("store",)),
    "norm_rope_insert": Row(("store",)),
    "state_append": Row(("state",), of_slots=True),
    "flush": Row(("store",), of_slots=True, variants=_POOLING),
    "step_write": Row(
        ("ring", "parts"),
        of_slots=True,
        variants={
            "fused": Variant("one kernel for a layer's window, states and entries"),
            "separate": Variant("a kernel for each of them"),
        },
    ),
    "compress_chunk": Row(("state", "store"), variants=_POOLING),
    "gather_topk": Row(("out",), variants=_GATHERING),
    "gather_all": Row(("out",), variants=_GATHERING),
    "gather_window": Row(("out",), of_slots=True, variants=_GATHERING),
    "page_copy": Row(("store",)),
    "indexer_query": Row(("out", "out_weights")),
    "index_scores": Row(("out",)),
    "select_blocks": Row(("out",)),
    "select_topk": Row(("out", "entries")),
    "attend": Row(
        ("out", "lse"),
        variants={
            "warps": Variant("every warp decodes entries, then multiplies (mma)"),
            "groups": Variant("four warps decode while eight multiply (wgmma)", ("sm_90a",)),
        },
    ),
}
"""Every operation of ``ops.contract``."""

Count = TypeVar("Count", int, "NDArray[np.int64]")
"""A count, or many at once: one for each length or token."""


class Pools(Protocol):
    """Sizes of a compressor; see ``ops.compressor.Compressor``, which needs torch."""

    @property
    def rows(self) -> int:
        """Tokens that one entry pools."""

    @property
    def dim(self) -> int:
        """Channels of an entry."""

    @property
    def channels(self) -> int:
        """Channels of kv and score of one token."""


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


def state_append_bytes(compressor: Pools, tokens: int, *, online: bool) -> int:
    """State append: kv and score in; two rows out, or three read and written when online."""
    moved = 2 + (6 if online else 2)
    return tokens * compressor.channels * moved * _FLOAT_BYTES


def flush_bytes(compressor: Pools, entry: EntryFormat, entries: int, *, online: bool) -> int:
    """Flush: the pooled rows of kv and score in (two sums when online), entry out."""
    rows = 1 if online else compressor.rows
    return entries * (rows * compressor.dim * 2 * _FLOAT_BYTES + entry.entry_bytes)


def step_write_bytes(
    compressor: Pools, entry: EntryFormat, tokens: int, entries: int, *, online: bool
) -> int:
    """A part of a step's write: appended and flushed, less what both would move.

    The token that completes an entry is not read again, and an online state not either.
    """
    append = state_append_bytes(compressor, tokens, online=online)
    again = entries * compressor.dim * 2 * _FLOAT_BYTES
    return append + flush_bytes(compressor, entry, entries, online=online) - again


def compress_chunk_bytes(
    compressor: Pools, entry: EntryFormat, tokens: int, entries: int, state_rows: int
) -> int:
    """Chunk: kv and score in, entries out, and the rows that stay in the state out."""
    row_bytes = compressor.channels * 2 * _FLOAT_BYTES
    return (tokens + min(tokens, state_rows)) * row_bytes + entries * entry.entry_bytes


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
    """Attention without its cache: a length, bf16 queries in, bf16 outputs and lse out."""
    return tokens * (_INDEX_BYTES + heads * (4 * dims + _FLOAT_BYTES))


def index_scores_flops(scores: Count, heads: int, dims: int) -> Count:
    """Every head's query times the key of each score: 16,384 for 64 heads of 128 channels."""
    return 2 * scores * heads * dims


def attend_flops(attended: Count, heads: int, dims: int) -> Count:
    """Every head's query times each entry, and its weight times it: 262,144 for 128 of 512."""
    return 4 * attended * heads * dims
