"""The contract of every cache operation.

A backend is a module with these functions. ``reference`` is the literal oracle; every other
backend must equal it: bit for bit where the arithmetic is exact (gather, insert, copy), within a
stated tolerance where it is not (flush, compress_chunk).

Common rules. Indices are int64 unless a table is meant. *Physical* entry indices count entries
through all pages; −1 (or any index outside the store) means "none": such a row is never read
from or written to a page, and gives zeros where output is asked for. Outputs are the caller's.
Values are bfloat16, compressor inputs and states float32.

The reads of a decode step (``indexer_query`` to ``attend``) work on T query tokens, several of a
request where it has drafts: its tokens are adjacent, in order, each with its own slot, lengths
and row of the output. A token of slot −1 sees nothing.
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


@dataclass(frozen=True)
class Entries:
    """Compressed entries that query tokens attend to.

    Attributes:
        store: Pages of the compressed KV.
        table: Blocks of every slot, int32[S, W].
        lengths: Entries that each token sees, int64[T].
        indices: Logical entries that each token attends to, int32[T, K]: −1, or an index beyond
            what it sees, is none, and one that is there twice counts twice. None: all it sees.
    """

    store: PageStore
    table: Tensor
    lengths: Tensor
    indices: Tensor | None

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

        slots, positions: int64[T]; a slot of −1 skips the token. A slot's tokens are adjacent,
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

    def indexer_query(
        self,
        queries: Tensor,
        weights: Tensor,
        turns: Tensor,
        hadamard: bool,
        out: Tensor,
        out_weights: Tensor,
    ) -> None:
        """Make an indexer's queries: rotate, quantise to e4m3, fold the scale into the weights.

        queries: bf16[T, H, D]; weights: float32[T, H], of the heads; turns: float32[T, R], the
        cosines of each token's pairs, then their sines (``compressor.rope_rows`` at the tokens'
        positions); out: e4m3 as uint8[T, H, D]; out_weights: float32[T, H].

        RoPE in float32 on the last R channels (pairs of neighbours), rounded to bf16; with
        ``hadamard`` rotated as keys are (``indexer_insert``); each head's vector quantised as an
        indexer key of format ``fp8`` is, with one power of two. out_weights = weights · that
        scale · (H · D)^-0.5, of which the last two factors are the heads' and softmax's scale.

        So vLLM 0.33.0's ``fused_indexer_q_rope_quant`` (without Hadamard) and DeepSeek's inference
        code. SGLang 0.5.23's ``fused_q_indexer_rope_hadamard_quant`` rounds nothing to bf16 and
        takes amax / 448 as the scale. On SM100 both quantise queries of MXFP4 keys to MXFP4.
        """

    def index_scores(
        self,
        store: PageStore,
        table: Tensor,
        slots: Tensor,
        lengths: Tensor,
        queries: Tensor,
        weights: Tensor,
        blocks: Tensor | None,
        out: Tensor,
    ) -> None:
        """Score indexer keys in their pages: out float32[T, M].

        Score of key k: sum over the heads h of weights[h] · max(0, queries[h] · k), in float32.
        store: indexer keys of D channels; table: int32[S, W]; slots, lengths: int64[T], the keys
        that a token sees; queries: e4m3 as uint8[T, H, D] and weights: float32[T, H], as
        ``indexer_query`` gives them.

        blocks None: column j is key j; −inf from a token's length up to the longest, after that
        −inf or what it was, so that a captured launch may have room for more. (DeepGEMM's
        ``fp8_paged_mqa_logits``, with clean_logits.)
        blocks int32[T, N]: only these are scored, each M / N keys, as ``select_blocks`` gives
        them: column c is key c mod (M / N) of block ``blocks[t, c // (M / N)]``; −inf where there
        is no such block or key. (DeepGEMM's ``fp8_fp4_paged_sparse_mqa_logits``, on SM100; on
        other GPUs engines score every key and mask the rest.)
        """

    def select_blocks(
        self, scores: Tensor, lengths: Tensor, block_entries: int, out: Tensor
    ) -> None:
        """Candidates for later index layers: the N best blocks of each token, int32[T, N].

        A block is ``block_entries`` neighbouring entries, scored by the largest of those that the
        token sees; the one with the newest entry is always chosen. Of equals the first; in
        ascending order, then −1.
        scores: float32[T, M] as ``index_scores`` gives them without blocks, no NaN; lengths:
        int64[T].

        DeepSeek-V4.1: 2,048 blocks of 8. vLLM 0.33.0 (``select_candidate_blocks``) and SGLang
        0.5.23 (``amax_topk_blocks``) choose so, in no particular order.
        """

    def select_topk(
        self,
        scores: Tensor,
        lengths: Tensor,
        blocks: Tensor | None,
        table: Tensor,
        slots: Tensor,
        page_entries: int,
        out: Tensor,
        entries: Tensor,
    ) -> None:
        """Choose the K best entries of each token: logical out and physical entries, int32[T, K].

        Exact; of equal scores the lower index; −0 equals 0. In ascending order, then −1 where the
        token sees fewer than K. Physical: ``table[slot, i // page_entries] · page_entries + i mod
        page_entries`` of logical entry i.
        scores: float32[T, M] and blocks: int32[T, N] or None, as in ``index_scores``, no NaN;
        table: int32[S, W], slots, lengths: int64[T].

        Engines write one of them or both (SGLang 0.5.23's ``topk_transform_paged_v2``), in no
        particular order; ascending, two runs give the same bytes.
        """

    def attend(
        self,
        ring: PageStore,
        slots: Tensor,
        tokens: Tensor,
        window: int,
        entries: Entries | None,
        queries: Tensor,
        sinks: Tensor,
        scale: float,
        out: Tensor,
        lse: Tensor,
    ) -> None:
        """Attention over window and compressed entries, read in their pages: out bf16[T, H, D].

        An entry of D channels is key and value of every head. Of n = tokens[t] tokens so far,
        this one counted, the last min(n, window) in the ring, as in ``gather_window``; with them
        the compressed ``entries``, None for a layer without. Per head: softmax of scale ·
        queries · entry over both, with exp(sink) added to the denominator; in float32.
        slots, tokens: int64[T]; queries: bf16[T, H, D]; sinks: float32[H], −inf for none.

        lse float32[T, H]: natural logarithm of the sum of exp(scale · queries · entry), without
        the sink, so that parts can be merged. Where nothing is visible out is 0 and lse is +inf.
        So FlashMLA's ``flash_mla_with_kvcache`` (attn_sink, softmax_lse; tests/ref.py).
        """
