"""How an engine keeps, finds and moves prefixes, as data.

``Engine.rule`` gives a deployment's ``Rule``: its layout, where windows stay cached, and how
requests are admitted. Prefix hits, host tiers and transfers are functions of it. An engine's
folder has one ``Family`` for all versions, with a ``Variant`` for every rule that users name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, NamedTuple

from dsv4kv.core.prompts import kept_places
from dsv4kv.engines.flags import Flag

ENGINE_BLOCK_TOKENS = 256
"""Tokens of a block or page that engines take for DeepSeek-V4."""
KINDS = ("v4", "v41", "flat")
"""Generations of models: V4, V4.1, and V3.2 with no windows."""


class Piece(NamedTuple):
    """A part of a block: one pool over all layers of a rank; every buffer has a page of it."""

    name: str
    block_bytes: int
    buffers: int = 1


@dataclass(frozen=True)
class Group:
    """Blocks under one block table, or a pool."""

    storage: str  # ``context``, ``window``, ``csa state`` or ``hca state``
    block_tokens: int
    seen_tokens: int | None = None  # tokens before the next one that it reads; None: all
    cached: bool = True  # other requests find its blocks; else a hit computes them again
    ring: bool = False  # a request has one block, written round and round
    pieces: tuple[Piece, ...] = ()

    @property
    def needed(self) -> int:
        """Blocks in a row that a hit needs at its end; 0 of the whole context."""
        return 0 if self.seen_tokens is None else -(-self.seen_tokens // self.block_tokens)

    @property
    def block_bytes(self) -> int:
        return sum(piece.block_bytes for piece in self.pieces)

    @property
    def buffers(self) -> int:
        """Pages of a block, each in a buffer of its own."""
        return sum(piece.buffers for piece in self.pieces)


@dataclass(frozen=True)
class Layout:
    """What a rank stores: the group of the whole context first, then windows and states.

    ``unit_bytes``: bytes of a block of the one pool that all groups share; 0 for separate pools.
    """

    groups: tuple[Group, ...]
    unit_bytes: int = 0
    window_tokens: int = 0

    @property
    def tables(self) -> list[tuple[int, int, int, bool, bool, bool]]:
        """Of windows and states, as ``core.hashed.cut_groups`` takes them."""
        return [
            (g.block_tokens, g.needed, g.seen_tokens or 0, g.cached, g.ring, g.storage == "window")
            for g in self.groups[1:]
        ]


@dataclass(frozen=True)
class Retention:
    """After which tokens windows and states stay cached.

    Unless it is ``NOWHERE``, also where the context that a prompt found ends.
    """

    period_tokens: int | None = 0  # every period; 0 for none, None for every block
    ends: bool = False  # at the last block boundary before a prompt's last token
    chunks: bool = False  # at the end of every chunk of a prompt

    def places(self, prompt_tokens: int, block_tokens: int) -> list[int]:
        """Places in a prompt, rising, whose windows stay by period and end."""
        period = block_tokens if self.period_tokens is None else self.period_tokens
        return sorted(kept_places(prompt_tokens, period, (block_tokens, 1) if self.ends else None))


NOWHERE, EVERYWHERE = Retention(), Retention(None)


@dataclass(frozen=True)
class Policy:
    """Admission of requests, and the definition of a hit."""

    # ``hashed`` blocks of one pool, a ``radix`` tree of pages, or ``slots`` of requests
    index: Literal["hashed", "radix", "slots"] = "radix"
    finds_scheduled: bool = False  # a block is found once it is scheduled (vLLM)
    prompts_alone: bool = False  # prompts have steps of their own (SGLang)
    replays: bool = False  # a hit's last window is computed again; no hit is that short
    leaves_window: bool = False  # no hit covers a prompt's last window; else not its last token
    drops: bool = False  # a hit drops its last block, for a draft model to compute
    writes_evicted: bool = True  # evicted blocks can be written to the host
    host_by_ratio: bool = False  # host memory is sized by a ratio of the GPU's pools alone
    hit_blocks: int = 1  # blocks that a hit is a multiple of (groups of several sizes of blocks)
    slots: int = 0  # of a server: llama.cpp's four, ds4's one
    checkpoints: bool = False

    def uncovered(self, window_tokens: int) -> int:
        """Tokens at a prompt's end that no hit covers."""
        return window_tokens if self.leaves_window else 1

    def replayed(self, window_tokens: int) -> int:
        """Tokens at a hit's end that are computed again; no hit is that short."""
        return window_tokens if self.replays else 0


@dataclass(frozen=True)
class Need:
    """Cached blocks that every block table (``groups``) of one storage needs for a hit.

    ``tail_tokens`` before the hit's end and as many ``blocks`` in a row; None for all.
    """

    storage: str
    groups: int
    block_tokens: int
    tail_tokens: int | None = None
    blocks: int | None = None


@dataclass(frozen=True)
class Rule:
    """How one deployment keeps, finds and moves prefixes.

    A hit ends at a whole block of context, where every window and state must be cached too, and
    never covers a prompt's last token, whose logits are still wanted.
    Source: vLLM 0.33 (``kv_cache_manager.py``, ``single_type_kv_cache_manager.py``,
    ``scheduler.py``), SGLang 0.5.23 (radix tree; ``swa_reprefill_tail_tokens``), TensorRT-LLM's
    block reuse; report arXiv:2606.19348 §3.5.2 for the dsv4kv cache.
    """

    layout: Layout
    retention: Retention = EVERYWHERE
    policy: Policy = Policy()

    @property
    def block_tokens(self) -> int:
        """Hits are multiples of this; also the shortest hit."""
        return self.layout.groups[0].block_tokens

    @property
    def replayed_tokens(self) -> int:
        return self.policy.replayed(self.layout.window_tokens)

    @property
    def uncovered_tokens(self) -> int:
        return self.policy.uncovered(self.layout.window_tokens)

    @property
    def shortest_prompt_tokens(self) -> int:
        """The shortest prompt that can hit at all."""
        blocks = self.replayed_tokens // self.block_tokens + 1 + self.policy.drops
        return self.block_tokens * blocks + self.uncovered_tokens

    def hit_tokens(self, cached_tokens: int, prompt_tokens: int) -> int:
        """The longest hit of a prompt that shares its first ``cached_tokens`` with the cache."""
        usable = min(cached_tokens, prompt_tokens - self.uncovered_tokens)
        blocks = max(0, usable // self.block_tokens - self.policy.drops)
        found = blocks * self.block_tokens
        return found if found > self.replayed_tokens else 0

    @property
    def needs(self) -> tuple[Need, ...]:
        """Blocks that must be cached for a hit; with drafts, one more of windows."""
        full, *others = self.layout.groups
        needs = {full.storage: Need(full.storage, 1, full.block_tokens)}
        for group in others:
            if group.cached and not group.ring:
                tables = needs[group.storage].groups + 1 if group.storage in needs else 1
                blocks = group.needed + (self.policy.drops and group.storage == "window")
                needs[group.storage] = Need(
                    group.storage, tables, group.block_tokens, group.seen_tokens, blocks
                )
        return tuple(needs.values())


@dataclass(frozen=True)
class Speculation:
    """The effect of drafts on prefix hits.

    A draft layer's entry at a block's last position is computed from the token after it, so
    prompts that diverge right after a block cannot share that block as it is. Engines either let
    the block's key cover ``key_tokens`` after it, or drop the last block of a hit.
    """

    explains: str
    setting: str
    key_tokens: int = 0
    drops: bool = False


SPECULATIONS: dict[str, Speculation] = {
    "none": Speculation("no drafts", "serving without drafts"),
    "dspark": Speculation("DSpark's drafts leave hits as they are", "drafting by DSpark"),
    "mtp": Speculation(
        "a block is identified together with the token after it",
        "MTP without a KV connector",
        key_tokens=1,
    ),
    "mtp+connector": Speculation(
        "a hit drops the draft's last block", "MTP with a KV connector", drops=True
    ),
}
"""All ways to draft by name: vLLM 0.33 (``config/vllm.py``: ``num_hash_lookahead_tokens``;
``config/speculative.py``: ``use_eagle_block_drop``), SGLang 0.5.23 (``radix_cache.py``: keys of
pairs of tokens), each with one MTP module."""


@dataclass(frozen=True)
class Variant:
    """A rule that users name, for a deployment of its engine's newest version."""

    explains: str
    engine: str = ""  # whose rule, with its version; empty for the rule of no engine
    setting: str = ""  # what a user of the engine writes to have it
    flags: Mapping[str, Any] = field(default_factory=dict)  # inputs of ``budget`` that choose it
    kinds: tuple[str, ...] = KINDS
    default_for: tuple[str, ...] = ()  # generations that have it, with ``flags`` as given
    drafts: tuple[str, ...] = ("none",)  # ways to draft with which its hits are known
    groups: bool = False  # windows and states are kept in blocks; else in slots of requests
    retention: Retention = NOWHERE
    policy: Policy = Policy()
    block_tokens: int = ENGINE_BLOCK_TOKENS
    hopper_block_tokens: int | None = None
    remedies: Mapping[str, str] = field(default_factory=dict)  # by the reason of a loss

    @property
    def windows(self) -> bool:
        return self.groups and self.retention != NOWHERE

    def block_tokens_on(self, arch: str | None) -> int | None:
        """Tokens of a block by GPU; None where a trace's own are taken."""
        hopper = arch == "sm_90" and self.hopper_block_tokens
        return (hopper or self.block_tokens) if self.engine else None


@dataclass(frozen=True)
class Launch:
    """How servers of an engine are started.

    Texts are formatted with ``model``, ``tp``, ``dp``, ``pp``, ``ep``, ``ranks`` (tp · dp),
    ``count`` of drafts, ``verified`` (count + 1), ``host_gib`` and ``role``.
    """

    words: tuple[tuple[str, ...], ...] = ()  # words that begin a command, most specific first
    images: tuple[str, ...] = ()  # parts of names of container images
    program: str = ""
    arguments: str = ""
    stages: str = ""  # arguments for several pipeline stages
    replicas: str = ""  # arguments for several replicas
    drafts: str = ""  # arguments for drafts by MTP
    role: str = ""  # arguments for a prefill or decode side
    written: Mapping[str, str] = field(default_factory=dict)  # flags by ``input=value``
    counts_verified: bool = False  # draft tokens include the token that is verified with them
    tp_spans_replicas: bool = False  # tensor parallel ranks are counted over all replicas
    ranks_are_replicas: bool = False  # all ranks of a server are replicas, or it is one
    shortens: bool = False  # takes the beginning of a flag for it, as argparse does


class Limit(NamedTuple):
    """An input that an engine refuses for some generations of models, or is not sized with.

    ``said`` is what its newest version says; empty where it starts, and is not sized.
    """

    asked: str
    kinds: tuple[str, ...]
    said: str = ""


@dataclass(frozen=True)
class Family:
    """An engine: its folder's row."""

    name: str
    title: str
    sizes: str  # ``module:class`` in its folder, or its base's, that sizes caches of a version
    versions: tuple[Any, ...] = ()  # with ``newest`` and ``oldest``, the oldest first
    rules: Mapping[str, Variant] = field(default_factory=dict)
    assumes: Mapping[str, Any] = field(default_factory=dict)  # settings that are not given
    launch: Launch = Launch()
    flags: tuple[Flag, ...] = ()  # in the order in which they are listed
    limits: tuple[Limit, ...] = ()
    host_tiers: Mapping[str, str] = field(default_factory=dict)  # what they are, by name
    days: Mapping[str, str] = field(default_factory=dict)  # versions by their wheels' day
    sends: str = ""  # how prompts go from prefill to decode; empty if not known
    result_fields: tuple[str, ...] = ()  # fields that only results of its own benchmark have
    log_mark: str = ""  # what a log of its start has before the arguments
    by_layers: bool = False  # several GPUs share its layers, not its heads
    marks: tuple[str, ...] = ()  # flags that no other engine of its program has (a fork)
    base: str = ""  # the engine that it is a fork of
    offloads: bool = False  # some experts are on the CPU
    slots: bool = False  # caches are whole slots, whose logs ``recover`` reads
    block_tokens: int = ENGINE_BLOCK_TOKENS  # tokens of a block of V4, unless given
    batch_tokens: int = 0  # most of a step that is given, unless a flag says more; 0 for any

    @property
    def prompts_alone(self) -> bool:
        """Whether prompts are computed in steps of their own."""
        return any(rule.policy.prompts_alone for rule in self.rules.values())

    def load(self, module: str) -> Any:
        if module == "log" and self.slots:
            return import_module("dsv4kv.engines.recover")
        folder = (self.base or self.name).replace(".", "")
        return import_module(f"dsv4kv.engines.{folder}.{module}")
