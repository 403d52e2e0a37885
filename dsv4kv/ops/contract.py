"""The contract of every cache operation.

A backend is a module with these functions. ``reference`` is the literal oracle; every other
backend must equal it: bit for bit where the arithmetic is exact (gather, insert, copy), within a
stated tolerance where it is not (flush, compress_chunk).

Common rules. Indices are int64 unless a table is meant. *Physical* entry indices count entries
through all pages; −1 (or any index outside the store) means "none": such a row is never read
from or written to a page, and gives zeros where output is asked for. Outputs are the caller's.
Values are bfloat16, compressor inputs and states float32.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Protocol

from torch import Tensor

from dsv4kv.ops.compressor import Compressor
from dsv4kv.ops.storage import PageStore


@dataclass(frozen=True)
class PartWrite:
    """A step's tokens for one compressor: of the compressed KV, or of the indexer keys.

    Attributes:
        compressor: Parameters.
        state: float32[S, 2, R, C], or float32[S, 3, C] online; see ``contract.state_append``.
        kv: float32[T, C].
        score: float32[T, C].
        store: Pages of the entries.
        entries: Physical entry that each token completes, int64[T], −1 where it completes none.
    """

    compressor: Compressor
    state: Tensor
    kv: Tensor
    score: Tensor
    store: PageStore
    entries: Tensor

    def fields(self) -> tuple[Any, ...]:
        """Its attributes in order."""
        return tuple(getattr(self, each.name) for each in fields(self))


Parts = tuple[PartWrite, ...]
"""Compressed KV, then indexer keys if the layer has them."""


def write_in_turn(
    window_insert: Callable[..., None],
    state_append: Callable[..., None],
    flush: Callable[..., None],
    ring: PageStore,
    values: Tensor,
    slots: Tensor,
    positions: Tensor,
    parts: Parts,
) -> None:
    """``contract.Backend.step_write`` by operations of its own; does not wait for a GPU."""
    window_insert(ring, values, slots, positions)
    for part in parts:
        state_append(part.compressor, part.state, part.kv, part.score, slots, positions)
        flush(part.compressor, part.state, slots, positions, part.store, part.entries)


class Backend(Protocol):
    """What a backend module provides."""

    def window_insert(
        self, ring: PageStore, values: Tensor, slots: Tensor, positions: Tensor
    ) -> None:
        """Quantise values bf16[T, D] into row ``position mod ring length`` of each slot's page.

        slots, positions: int64[T]; a slot of −1 skips the token. A slot's tokens stand together,
        in order and without gaps, as a step has them. Where several tokens of a slot
        fall on one row, the highest position is stored.
        """

    def entry_insert(self, store: PageStore, values: Tensor, entries: Tensor) -> None:
        """Quantise values bf16[E, D] into distinct physical entries int64[E]; −1 skips."""

    def indexer_insert(
        self, store: PageStore, keys: Tensor, entries: Tensor, hadamard: bool
    ) -> None:
        """Like ``entry_insert`` for indexer keys bf16[E, 128].

        With ``hadamard`` the keys are first rotated in float32 by Hadamard(128) / sqrt(128) and
        rounded to bf16 (reference inference code, SGLang, TensorRT-LLM; vLLM does not rotate).
        """

    def norm_rope_insert(
        self,
        compressor: Compressor,
        values: Tensor,
        positions: Tensor,
        store: PageStore,
        entries: Tensor,
    ) -> None:
        """Make entries of one projected value each, without pooling; −1 skips the token.

        RMSNorm, RoPE on the last dims at the position of the group's first token, rounding as the
        compressor says, quantise; write to distinct physical ``entries`` int64[T].
        values: bf16[T, d], of which those without entry are not read; positions: int64[T], of the
        token that completes the entry.

        DeepSeek-V4.1's entries where the ratio is 1 (the projected KV) and its indexer keys (the
        latent, projected): engines project in a matrix product of its own, whose output is what
        comes in here, as in vLLM 0.33.0's ``indexer_k_norm_rope_store`` and SGLang 0.5.23's
        ``c1_decode_norm_rope_store``. The latent that a compressor hands to that projection is no
        part of the cache, and not written.
        """

    def state_append(
        self,
        compressor: Compressor,
        state: Tensor,
        kv: Tensor,
        score: Tensor,
        slots: Tensor,
        positions: Tensor,
    ) -> None:
        """Add tokens to the compressor states of their slots; a slot of −1 skips the token.

        Ring state float32[S, 2, R, C]: row ``position mod R`` takes kv and score + ape. Several
        tokens of one slot must be consecutive and at most R.
        Online state float32[S, 3, C]: folds one token per slot into (max, denominator, weighted
        sum); a position that starts a group starts afresh.
        kv, score: float32[T, C]; slots, positions: int64[T].
        """

    def flush(
        self,
        compressor: Compressor,
        state: Tensor,
        slots: Tensor,
        positions: Tensor,
        store: PageStore,
        entries: Tensor,
    ) -> None:
        """Pool the groups that end at these positions and write their entries.

        Per channel softmax over the group's scores, weighted sum of kv, RMSNorm, RoPE on the last
        dims at the position of the group's first token (row ``position // ratio`` of the
        compressor's table), all in float32; rounding to bf16 after RoPE, or before it, or both, as
        the compressor says; Hadamard if it has it; quantise; write to physical ``entries``.
        Positions are those of the table.
        ``(position + 1) mod ratio == 0`` for every position; slots, positions, entries: int64[E].
        """

    def step_write(
        self,
        ring: PageStore,
        values: Tensor,
        slots: Tensor,
        positions: Tensor,
        parts: Parts,
    ) -> None:
        """All that a decode step writes to one layer: what engines call a fused insert.

        Equals ``window_insert``, then for each part ``state_append`` and, of the tokens whose
        entry is not −1, ``flush``: the same bits as this backend's own.
        parts: compressed KV, then indexer keys if the layer has them; a state has as many slots
        as the ring has pages. Tokens of one slot: no more than R + 1 − the rows that an entry
        pools, one if the state is online.
        """

    def compress_chunk(
        self,
        compressor: Compressor,
        state: Tensor,
        kv: Tensor,
        score: Tensor,
        slot: int,
        start: int,
        store: PageStore,
        entries: Tensor,
    ) -> None:
        """Append and flush a whole prompt chunk of one request.

        Equals ``state_append`` and ``flush`` token by token for positions start … start + T − 1.
        kv, score: float32[T, C]; entries: int64[(start + T) // m − start // m], physical.
        """

    def gather_topk(
        self,
        store: PageStore,
        table: Tensor,
        slots: Tensor,
        indices: Tensor,
        lengths: Tensor,
        out: Tensor,
    ) -> None:
        """Dequantise chosen entries: out bf16[B, K, D].

        table: int32[S, W], blocks of every slot; slots: int64[B]; indices: int32[B, K], logical
        entries, −1 for none; lengths: int64[B], valid entries of each request.
        """

    def gather_all(
        self, store: PageStore, table: Tensor, slots: Tensor, lengths: Tensor, out: Tensor
    ) -> None:
        """Dequantise entries 0 … length − 1 of each request: out bf16[B, M, D].

        M must be at least the largest length. A request's rows after its length are zeros up to
        the largest one; rows after that are zeros or what they were, so that a captured launch
        may have room for more than a step needs.
        """

    def gather_window(self, ring: PageStore, slots: Tensor, tokens: Tensor, out: Tensor) -> None:
        """Dequantise the last min(n, W) window entries, oldest first: out bf16[B, W, D].

        tokens: int64[B], tokens n of each request so far; zeros after min(n, W). W may be smaller
        than the ring (rings are longer by the draft tokens).
        """

    def page_copy(self, store: PageStore, sources: Tensor, targets: Tensor) -> None:
        """Copy whole pages, int64[n] to distinct int64[n]; no page is both source and target."""
