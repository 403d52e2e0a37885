"""The table of operations: arguments with dtype and shape, what is written, variants, bytes.

A backend is anything with a function for each row, called by keyword. ``reference`` is the literal
one; every other must equal it: bit for bit where the arithmetic is exact (gather, insert, copy),
within the format's own grid where it sums (``ops.check``). A new operation is a row here, its
reference, its kernel and its launch.

Arguments. *Pages* are a ``PageStore``; ``ring`` has a page for each slot. Tensors have a dtype and
a shape of named sizes: B requests, T tokens, E entries, S slots, W table columns, K choices,
D channels of an entry, H heads, C channels of kv and score. A tensor with ``?`` may be None.
*Physical* entries count through all pages; −1, or any outside the pages, is none: it is neither
read nor written, and gives zeros. A slot of −1 is no token. The tokens of a slot are adjacent, in
order and without gaps, each with its own row of the output.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from dsv4kv.errors import ConfigError


@dataclass(frozen=True)
class Variant:
    """One way to do an operation on a GPU: all give the same bytes, or ``attend`` rounds."""

    meaning: str  # what sets it apart, to follow its name
    # that have what it takes, such as ``sm_90a``; None for all
    architectures: tuple[str, ...] | None = None

    def runs_on(self, architecture: str) -> bool:
        """Whether an architecture has what it takes."""
        return self.architectures is None or architecture in self.architectures


@dataclass(frozen=True)
class Argument:
    """One argument of an operation."""

    name: str  # keyword
    # torch's name of a tensor's type; else ``pages``, ``compressor``, ``entries``, ``parts``,
    # ``int``, ``float`` or ``bool``
    dtype: str
    shape: tuple[str, ...]  # sizes of a tensor, by name
    optional: bool  # whether it may be None


@dataclass(frozen=True)
class Operation:
    """A row of the table."""

    signature: str  # arguments in order: ``name:type[sizes]``
    writes: tuple[str, ...]  # arguments that are written
    text: str  # what it does
    # whose pages ``store`` is in drawn scenes, ``main`` or ``indexer``; none where ``scenes`` has
    # a function for the operation
    places: tuple[str, ...] = ()
    # it works on rings and states: other block tables give it no other bytes
    of_slots: bool = False
    # ways to do it on a GPU, the default first
    variants: Mapping[str, Variant] = field(default_factory=dict)

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """Its arguments in order."""
        return tuple(
            Argument(name, dtype, tuple(filter(None, shape.split(","))), bool(optional))
            for name, dtype, shape, optional in _ARGUMENT.findall(self.signature)
        )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of its arguments in order."""
        return tuple(argument.name for argument in self.arguments)


_ARGUMENT = re.compile(r"(\w+):(\w+)(?:\[([^]]*)\])?(\?)?")


class Backend(Protocol):
    """A function for every operation, called by keyword."""

    def __getattr__(self, operation: str, /) -> Callable[..., None]:
        """The function of an operation."""


def write_in_turn(
    window_insert: Callable[..., None],
    state_append: Callable[..., None],
    flush: Callable[..., None],
    **step: Any,
) -> None:
    """``step_write`` by operations of its own; does not wait for a GPU."""
    tokens = {"slots": step["slots"], "positions": step["positions"]}
    window_insert(ring=step["ring"], values=step["values"], **tokens)
    for part in step["parts"]:
        states = {"compressor": part.compressor, "state": part.state, **tokens}
        state_append(**states, kv=part.kv, score=part.score)
        flush(**states, store=part.store, entries=part.entries)


_CLUSTERS = ("sm_90a", "sm_100a", "sm_103a")  # room for three blocks of 74 KiB a multiprocessor

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
    "ahead": Variant("a warp looks up all its entries together, four of them under way"),
    "stepwise": Variant("a warp looks up two entries at a time, both under way"),
}

OPERATIONS: dict[str, Operation] = {
    "window_insert": Operation(
        "ring:pages values:bfloat16[T,D] slots:int64[T] positions:int64[T]",
        ("ring",),
        """Quantise values into row ``position mod ring length`` of each slot's page. Where several
        tokens of a slot fall on one row, the highest position is stored.""",
        of_slots=True,
        variants=_INSERTING,
    ),
    "entry_insert": Operation(
        "store:pages values:bfloat16[E,D] entries:int64[E]",
        ("store",),
        "Quantise values into distinct physical entries.",
        places=("main",),
        variants=_INSERTING,
    ),
    "indexer_insert": Operation(
        "store:pages keys:bfloat16[E,D] entries:int64[E] hadamard:bool",
        ("store",),
        """As ``entry_insert``; with ``hadamard`` keys are first rotated in float32 by
        Hadamard(128) / sqrt(128) and rounded to bf16 (reference inference code, SGLang,
        TensorRT-LLM; vLLM does not rotate).""",
        places=("indexer",),
    ),
    "norm_rope_insert": Operation(
        "compressor:compressor values:bfloat16[T,D] positions:int64[T] store:pages "
        "entries:int64[T]",
        ("store",),
        """Entries of one projected value each, without pooling: RMSNorm, RoPE on the last dims at
        the position of the group's first token, rounding as the compressor says, quantise.
        ``positions`` are of the token that completes the entry; values of entry −1 are not read.
        DeepSeek-V4.1's entries where the ratio is 1, and its indexer keys: what comes in is the
        output of the projection, as in vLLM 0.33.0's ``indexer_k_norm_rope_store`` and SGLang
        0.5.23's ``c1_decode_norm_rope_store``.""",
    ),
    "state_append": Operation(
        "compressor:compressor state:float32 kv:float32[T,C] score:float32[T,C] slots:int64[T] "
        "positions:int64[T]",
        ("state",),
        """Add tokens to the compressor states of their slots. Ring state float32[S, 2, R, C]: row
        ``position mod R`` takes kv and score + ape; at most R tokens of a slot. Online state
        float32[S, 3, C]: folds one token per slot into (max, denominator, weighted sum); a
        position that starts a group starts afresh.""",
        of_slots=True,
    ),
    "flush": Operation(
        "compressor:compressor state:float32 slots:int64[E] positions:int64[E] store:pages "
        "entries:int64[E]",
        ("store",),
        """Pool the groups that end at these positions and write their entries. Per channel softmax
        over the group's scores, weighted sum of kv, RMSNorm, RoPE on the last dims at the position
        of the group's first token, all in float32; rounding to bf16 after RoPE, or before it, or
        both, as the compressor says; Hadamard if it has it; quantise.
        ``(position + 1) mod ratio == 0`` for every position.""",
        of_slots=True,
        variants=_POOLING,
    ),
    "step_write": Operation(
        "ring:pages values:bfloat16[T,D] slots:int64[T] positions:int64[T] parts:parts",
        ("ring", "parts"),
        """All that a decode step writes to one layer, as engines' fused inserts: equals
        ``window_insert``, then for each part ``state_append`` and, of the tokens whose entry is
        not −1, ``flush``: the same bits as this backend's own. ``parts``: compressed KV, then
        indexer keys if the layer has them; a state has as many slots as the ring has pages. Tokens
        of one slot: at most R + 1 − the rows that an entry pools, one if the state is online.""",
        of_slots=True,
        variants={
            "fused": Variant("one kernel for a layer's window, states and entries"),
            "separate": Variant("a kernel for each of them"),
        },
    ),
    "compress_chunk": Operation(
        "compressor:compressor state:float32 kv:float32[T,C] score:float32[T,C] slot:int "
        "start:int store:pages entries:int64[E]",
        ("state", "store"),
        """Append and flush a prompt chunk of one request: equals ``state_append`` and ``flush``
        token by token for positions start … start + T − 1. ``entries``: of the
        (start + T) // ratio − start // ratio groups that end in it.""",
        variants=_POOLING,
    ),
    "gather_topk": Operation(
        "store:pages table:int32[S,W] slots:int64[B] indices:int32[B,K] lengths:int64[B] "
        "out:bfloat16[B,K,D]",
        ("out",),
        """Dequantise chosen logical entries, −1 or one beyond the length for none. ``table``:
        blocks of every slot; ``lengths``: valid entries of each request.""",
        places=("main",),
        variants=_GATHERING,
    ),
    "gather_all": Operation(
        "store:pages table:int32[S,W] slots:int64[B] lengths:int64[B] out:bfloat16[B,M,D]",
        ("out",),
        """Dequantise entries 0 … length − 1 of each request; M is at least the largest length. A
        request's rows after its length are zeros up to the largest one; rows after that are zeros
        or unchanged, so that a captured launch may have room for more.""",
        places=("main", "indexer"),
        variants=_GATHERING,
    ),
    "gather_window": Operation(
        "ring:pages slots:int64[B] tokens:int64[B] out:bfloat16[B,M,D]",
        ("out",),
        """Dequantise the last min(n, M) of n = ``tokens`` window entries, oldest first, then
        zeros. M may be smaller than the ring (rings are longer by the draft tokens).""",
        of_slots=True,
        variants=_GATHERING,
    ),
    "page_copy": Operation(
        "store:pages sources:int64[N] targets:int64[N]",
        ("store",),
        "Copy whole pages to distinct pages; no page is both source and target.",
        places=("main", "indexer"),
    ),
    "indexer_query": Operation(
        "queries:bfloat16[T,H,D] weights:float32[T,H] turns:float32[T,R] hadamard:bool "
        "out:uint8[T,H,D] out_weights:float32[T,H]",
        ("out", "out_weights"),
        """Make an indexer's queries: RoPE in float32 on the last R channels (pairs of neighbours)
        by ``turns``, each token's cosines, then sines (``storage.rope_rows``), rounded to bf16;
        rotated as keys are with ``hadamard``; each head's vector quantised to e4m3 with one power
        of two, as an ``fp8`` indexer key is. out_weights = weights · that scale · (H · D)^-0.5.
        So vLLM 0.33.0's ``fused_indexer_q_rope_quant`` (without Hadamard) and DeepSeek's inference
        code. SGLang 0.5.23's ``fused_q_indexer_rope_hadamard_quant`` rounds nothing to bf16 and
        takes amax / 448 as the scale. On SM100 both quantise queries of MXFP4 keys to MXFP4.""",
    ),
    "index_scores": Operation(
        "store:pages table:int32[S,W] slots:int64[T] lengths:int64[T] queries:uint8[T,H,D] "
        "weights:float32[T,H] blocks:int32[T,N]? out:float32[T,M]",
        ("out",),
        """Score indexer keys in their pages: sum over the heads h of weights[h] ·
        max(0, queries[h] · key), in float32; queries are e4m3. Without ``blocks`` column j is key
        j; −inf from a token's length up to the longest, after that −inf or unchanged (DeepGEMM's
        ``fp8_paged_mqa_logits``, with clean_logits). With ``blocks``, as ``select_blocks`` gives
        them, only these are scored, each M / N keys: column c is key c mod (M / N) of block
        ``blocks[t, c // (M / N)]``; −inf where there is no such block or key (DeepGEMM's
        ``fp8_fp4_paged_sparse_mqa_logits``, on SM100; elsewhere engines score every key and mask
        the rest).""",
    ),
    "select_blocks": Operation(
        "scores:float32[T,M] lengths:int64[T] block_entries:int out:int32[T,N]",
        ("out",),
        """Candidates for later index layers: the N best blocks of each token. A block is
        ``block_entries`` neighbouring entries, scored by the largest of those that the token sees;
        the one with the newest entry is always chosen. Of equals the first; ascending, then −1.
        No score is NaN. DeepSeek-V4.1: 2,048 blocks of 8. vLLM 0.33.0
        (``select_candidate_blocks``) and SGLang 0.5.23 (``amax_topk_blocks``) choose so, in no
        particular order.""",
    ),
    "select_topk": Operation(
        "scores:float32[T,M] lengths:int64[T] blocks:int32[T,N]? table:int32[S,W] slots:int64[T] "
        "page_entries:int out:int32[T,K] entries:int32[T,K]",
        ("out", "entries"),
        """Choose the K best entries of each token, logical ``out`` and physical ``entries``.
        Exact; of equal scores the lower index; −0 equals 0. Ascending, then −1 where the token
        sees fewer. Scores and ``blocks`` as in ``index_scores``, none NaN. Engines write one of
        them or both (SGLang 0.5.23's ``topk_transform_paged_v2``), in no particular order.""",
    ),
    "attend": Operation(
        "ring:pages slots:int64[T] tokens:int64[T] window:int entries:entries? "
        "queries:bfloat16[T,H,D] sinks:float32[H] scale:float out:bfloat16[T,H,D] "
        "lse:float32[T,H]",
        ("out", "lse"),
        """Attention over window and compressed entries, read in their pages. An entry is key and
        value of every head. Of n = tokens[t] tokens so far, this one counted, the last
        min(n, window) in the ring; with them the compressed ``entries``. Per head: softmax of
        scale · queries · entry over both, with exp(sink) added to the denominator, in float32; a
        sink of −inf is none. ``lse``: natural logarithm of the sum of exp(scale · queries ·
        entry), without the sink. Where nothing is visible out is 0 and lse is +inf. So FlashMLA's
        ``flash_mla_with_kvcache`` (attn_sink, softmax_lse; tests/ref.py).""",
        variants={
            "groups": Variant("eight warps decode while eight multiply (wgmma)", ("sm_90a",)),
            "cluster": Variant("groups; two blocks decode half of the entries each", ("sm_90a",)),
            "warps": Variant("every warp decodes entries, then multiplies (mma)"),
        },
    ),
}

READS = ("indexer_query", "index_scores", "select_blocks", "select_topk", "attend")
"""What a decode step of an engine reads, in order."""

STEP_LAUNCH = "step_launch"
"""How a step's kernels follow one another: chosen like a variant."""

_DEPENDENT = ("sm_90a", "sm_100a", "sm_103a", "sm_110", "sm_120", "sm_121")

VARIANTS: dict[str, Mapping[str, Variant]] = {
    name: row.variants for name, row in OPERATIONS.items() if row.variants
} | {
    STEP_LAUNCH: {
        "dependent": Variant("a kernel is set up while the one before it still runs", _DEPENDENT),
        "plain": Variant("a kernel begins when the one before it has ended"),
    }
}
"""Every choice that a run has on a GPU; the first is the default. On the CPU there is one way."""

Choice = Mapping[str, str]
"""Variant of every operation in ``VARIANTS``."""


def available(operation: str, architecture: str | None) -> list[str]:
    """The variants that an architecture has, the best first; for None those that every GPU has."""
    ways = VARIANTS[operation].items()
    if architecture is None:
        return [name for name, one in ways if one.architectures is None]
    return [name for name, one in ways if one.runs_on(architecture)]


def portable(operation: str) -> str:
    """The first variant that every GPU has: the default of launch plans."""
    return available(operation, None)[0]


def explain(operation: str) -> str:
    """The variants of an operation and their meanings, in a sentence."""
    meanings = (f"{name} ({variant.meaning})" for name, variant in VARIANTS[operation].items())
    return f"How {operation} is done on a GPU: {', '.join(meanings)}; null takes the first it has."


def choose(asked: Mapping[str, str | None], architecture: str | None) -> Choice:
    """The variant of every operation: as asked, else the first that the architecture has.

    architecture: None on the CPU, where each operation has one way: none may be asked for.
    Raises ``ConfigError`` for one that is asked for and that the architecture does not have.
    """
    found = {}
    for operation in VARIANTS:
        name = asked.get(operation)
        if architecture is None:
            if name:
                raise ConfigError(
                    f"ops.variant.{operation} is {name}, and the cache is on the CPU, where each "
                    "operation has one variant: leave it null, or set device to cuda."
                )
            continue
        there = available(operation, architecture)
        if name and name not in there:
            raise ConfigError(
                f"ops.variant.{operation} is {name}, which {architecture} does not have: "
                f"choose {', '.join(there)}, or null."
            )
        found[operation] = name or there[0]
    return found
