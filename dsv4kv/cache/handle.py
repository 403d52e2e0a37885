"""One layer's cache during one step: what a model's attention layer would call."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from dsv4kv.cache.manager import KVCacheManager, StateCachePool
from dsv4kv.cache.step import Completed, EntryGroup, StepView
from dsv4kv.cache.table import BlockTable
from dsv4kv.errors import ConfigError
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.schedule import keyed_layers
from dsv4kv.model.schema import LayerCacheSchema
from dsv4kv.ops.compressor import Compressor
from dsv4kv.ops.contract import Backend, Entries, PartWrite
from dsv4kv.ops.storage import PageStore


@dataclass(frozen=True)
class CompressedCache:
    """Entries of one kind in one layer, and how they come to be.

    Attributes:
        store: Pages of the entries.
        ratio: Tokens of an entry.
        compressor: Parameters; None where entries are stored as they are given (DeepSeek-V3.2).
        state: Compressor state of every slot; None where an entry is of one value, which nothing
            is pooled with (DeepSeek-V4.1's keys, and its entries where the ratio is 1).
    """

    store: PageStore
    ratio: int
    compressor: Compressor | None
    state: Tensor | None

    @property
    def dims(self) -> int:
        """Channels of an entry."""
        return self.store.layout.format.dims

    @property
    def rows(self) -> int:
        """Tokens that an entry comes from."""
        return self.compressor.rows if self.compressor else self.ratio

    @property
    def is_pooled(self) -> bool:
        """Whether entries are pooled from a state."""
        return self.state is not None

    def pooling(self) -> tuple[Compressor, Tensor]:
        """Compressor and state; raises ``ConfigError`` where entries are not pooled."""
        if self.compressor is None or self.state is None:
            raise ConfigError("entries of one value each have no state: insert them.")
        return self.compressor, self.state

    @property
    def max_append_tokens(self) -> int:
        """Most tokens of a request between flushes: more would overwrite what a flush reads."""
        compressor, state = self.pooling()
        return 1 if state.dim() == 3 else state.shape[2] - compressor.rows + 1


@dataclass(frozen=True)
class ReadView:
    """What a kernel is given that reads a layer's pages where they are.

    Attributes:
        store: The pages.
        blocks: int32[slots, width], block table of the layer: entry e of a request is in row
            e mod n of the page ``blocks[slot, e // n]``, n entries a page. None for the window,
            whose ring is the slot's own page: position p is in row p mod n.
        slots: int64[B], slot of every request.
        lengths: int64[B], valid entries of every request; of the window, its tokens.
        head_dim: Values of an entry, which every query head reads.
        num_query_heads: Heads that read it.
    """

    store: PageStore
    blocks: Tensor | None
    slots: Tensor
    lengths: Tensor
    head_dim: int
    num_query_heads: int


@dataclass(frozen=True)
class LayerCache:
    """Everything of one layer that stays the same from step to step.

    Nothing in it ever moves, so a captured graph may keep the addresses.

    Attributes:
        model: Facts of the model.
        schema: Layout of the layer.
        backend: Operations.
        window: Ring of every slot; None without window (DeepSeek-V3.2).
        main: Compressed KV that the layer reads, its own or its owner's; None without any.
        indexer: Indexer keys that it reads likewise; None where it selects no entries by them.
        table: Block table of these; None without compressed KV.
        blocks: int32[slots, width], the layer's view of the table.
        lane: The layer's lane in the table.
        hadamard: Indexer keys that are stored as they are given are rotated.
    """

    model: DSV4Config
    schema: LayerCacheSchema
    backend: Backend
    window: PageStore | None
    main: CompressedCache | None
    indexer: CompressedCache | None
    table: BlockTable | None
    blocks: Tensor | None
    lane: int
    hadamard: bool = False

    @property
    def parts(self) -> list[bool]:
        """Compressed KV (False) and indexer keys (True), as far as the layer writes them."""
        if not self.schema.layer.owns_kv:
            return []
        return [i for i, part in ((False, self.main), (True, self.indexer)) if part is not None]

    def part(self, indexer: bool) -> CompressedCache:
        """Compressed KV, or the indexer keys; raises ``ConfigError`` where there are none."""
        part = self.indexer if indexer else self.main
        if part is None:
            raise self.missing("indexer" if indexer else "compressed KV")
        return part

    def missing(self, what: str) -> ConfigError:
        """What is asked for and not here."""
        spec = self.schema.layer
        return ConfigError(f"layer {spec.layer_idx} ({spec.attn}) has no {what}.")

    @property
    def pooled_parts(self) -> list[bool]:
        """Those of ``parts`` that are pooled from a state."""
        return [indexer for indexer in self.parts if self.part(indexer).is_pooled]

    @property
    def entry_group(self) -> EntryGroup | None:
        """What decides which entries of a step are its own here; None without compressed KV."""
        if self.table is None or self.main is None:
            return None
        return self.table, self.lane, self.main.ratio, self.main.store.layout.entries

    def at(self, step: StepView) -> "LayerCacheHandle":
        """The layer during a step."""
        return LayerCacheHandle(self, step)


Compressors = dict[int, tuple[Compressor, Compressor | None]]
"""Compressor and indexer's compressor of every layer that owns compressed KV and has one."""


def build_layers(
    manager: KVCacheManager, backend: Backend, compressors: Compressors
) -> dict[int, LayerCache]:
    """Bind every layer held to its memory, by layer index; ``manager.acquire`` knows them then.

    Raises:
        ConfigError: The manager holds no data, or layers whose data path is not known.
    """
    plan = manager.plan
    if plan.schemas and not manager.states:
        raise ConfigError(f"{plan.config.name} has no data here: workload.data is none.")
    layers: dict[int, LayerCache] = {}
    left = {attn: _SlotMemory.of(states) for attn, states in manager.states.items()}
    keyed = keyed_layers(schema.layer for schema in plan.schemas)
    for schema in plan.schemas:
        spec = schema.layer
        slots = left[spec.attn]
        layer = LayerCache(
            model=plan.config,
            schema=schema,
            backend=backend,
            window=next(slots.windows) if schema.window else None,
            main=None,
            indexer=None,
            table=None,
            blocks=None,
            lane=0,
            hadamard=plan.hadamard,
        )
        if spec.owns_kv:
            layer = _bind(layer, manager, slots, compressors.get(spec.layer_idx, (None, None)))
            if spec.layer_idx not in keyed:
                layer = replace(layer, indexer=None)
        elif spec.ratio:
            layer = _bind_to(layer, layers[spec.kv_owner])
        layers[spec.layer_idx] = layer
    manager.layers = layers
    return layers


@dataclass(frozen=True)
class _SlotMemory:
    """Rings and states of one type's layers that are not bound yet, in model order."""

    windows: Iterator[PageStore]
    states: Iterator[Tensor]
    indexer_states: Iterator[Tensor]

    @classmethod
    def of(cls, pool: StateCachePool) -> "_SlotMemory":
        states = (() if each is None else each for each in (pool.state, pool.indexer_state))
        return cls(iter(pool.windows), *map(iter, states))


def _bind(
    layer: LayerCache,
    manager: KVCacheManager,
    slots: _SlotMemory,
    compressors: tuple[Compressor | None, Compressor | None],
) -> LayerCache:
    """A layer with the entries it owns."""
    schema, (main, indexer) = layer.schema, compressors
    spec = schema.layer
    pool = manager.pools[spec.layer_idx]
    table = next(each for each in manager.tables if spec.layer_idx in each.group.layers)
    state = next(slots.states) if schema.state_shape else None
    keys_state = next(slots.indexer_states) if schema.indexer_state_shape else None
    return replace(
        layer,
        main=CompressedCache(pool.main, spec.ratio, main, state),
        indexer=CompressedCache(pool.indexer, spec.ratio, indexer, keys_state)
        if pool.indexer
        else None,
        table=table,
        blocks=manager.view(table, spec.layer_idx),
        lane=table.group.lane_of(spec.layer_idx),
    )


def _bind_to(layer: LayerCache, owner: LayerCache) -> LayerCache:
    """A layer with the entries of another, whose keys it reads where it selects by them."""
    keys = owner.indexer if layer.schema.layer.selects else None
    table, blocks, lane = owner.table, owner.blocks, owner.lane
    return replace(layer, main=owner.main, indexer=keys, table=table, blocks=blocks, lane=lane)


class LayerCacheHandle:
    """Reads and writes one layer's cache for the requests of one step.

    Made anew for every layer and step, without allocating: it holds two references. Every call
    refuses to run (``NotOwner``) once a request of the step has left its slot. With ``indexer``
    a call works on the indexer keys instead of the compressed KV.
    """

    __slots__ = ("_step", "layer")

    def __init__(self, layer: LayerCache, step: StepView) -> None:
        """Bind ``layer`` to ``step``."""
        self.layer = layer
        self._step = step

    def write_swa(self, values: Tensor) -> None:
        """Store window entries of the step's tokens: bf16[T, D], RoPE applied."""
        step, ring = self._current(), self._window()
        self.layer.backend.window_insert(ring, values, step.token_slots, step.positions)

    def append_state(self, kv: Tensor, score: Tensor, *, indexer: bool = False) -> None:
        """Add the step's tokens to the compressor state: float32[T, C] each.

        Raises:
            ConfigError: More tokens of one request than the state can hold until the flush.
        """
        part, step = self.part(indexer), self._current()
        _check_append(part, step)
        self.layer.backend.state_append(
            *part.pooling(), kv, score, step.token_slots, step.positions
        )

    def insert_entries(self, values: Tensor, *, indexer: bool = False) -> None:
        """Store entries of one value each, of the step's tokens that complete one: bf16[T, d].

        Where the layer has a compressor they are normalised and rotated on the way.
        """
        part, step = self.part(indexer), self._current()
        backend, entries = self.layer.backend, step.token_entries(*self._entry_group())
        if part.compressor is not None:
            numbers = step.positions, part.store, entries
            backend.norm_rope_insert(part.compressor, values, *numbers)
        elif indexer:
            backend.indexer_insert(part.store, values, entries, self.layer.hadamard)
        else:
            backend.entry_insert(part.store, values, entries)

    def write_step(self, values: Tensor, tokens: Sequence[tuple[Tensor, Tensor]]) -> None:
        """All that the step's tokens write here, in one operation.

        values: as for ``write_swa``; tokens: kv and score as for ``append_state``, of each of the
        layer's ``pooled_parts``. Raises as ``append_state``.
        """
        step, entries = self._current(), self._step.token_entries(*self._entry_group())
        writes = []
        for indexer, (kv, score) in zip(self.layer.pooled_parts, tokens, strict=True):
            part = self.part(indexer)
            _check_append(part, step)
            writes.append(PartWrite(*part.pooling(), kv, score, part.store, entries))
        self.layer.backend.step_write(
            self._window(), values, step.token_slots, step.positions, tuple(writes)
        )

    def flush(self, *, indexer: bool = False) -> None:
        """Write the entries that the step's tokens complete; the state must have the tokens."""
        part, done = self.part(indexer), self.completed()
        self._current()
        if len(done):
            self.layer.backend.flush(
                *part.pooling(), done.slots, done.positions, part.store, done.entries
            )

    def compress_chunk(self, kv: Tensor, score: Tensor, *, indexer: bool = False) -> None:
        """Append and flush a prompt chunk of the step's only request: float32[T, C] each."""
        part, step = self.part(indexer), self._current()
        if step.num_requests != 1:
            raise ConfigError(f"a chunk belongs to one request, not to {step.num_requests}.")
        slot, start = step.chunk_start()
        entries = self.completed().entries
        self.layer.backend.compress_chunk(
            *part.pooling(), kv, score, slot, start, part.store, entries
        )

    def gather_compressed_kv(self, topk: Tensor, out: Tensor) -> None:
        """Dequantise chosen entries (CSA): topk int32[B, K], −1 for none; out bf16[B, K, D]."""
        part, step = self.part(indexer=False), self._current()
        self.layer.backend.gather_topk(
            part.store, self._blocks(), step.request_slots, topk, self.lengths(), out
        )

    def gather_all_compressed_kv(self, out: Tensor, *, indexer: bool = False) -> None:
        """Dequantise all visible entries: out bf16[B, M, D], M ≥ the largest length.

        Rows after the largest length are zeros or what they were.
        HCA layers read their compressed KV so, CSA indexers their keys.
        """
        part, step = self.part(indexer), self._current()
        self.layer.backend.gather_all(
            part.store, self._blocks(), step.request_slots, self.lengths(), out
        )

    def gather_swa_kv(self, out: Tensor) -> None:
        """Dequantise the window, oldest first: out bf16[B, W, D], zeros beyond."""
        step, ring = self._current(), self._window()
        self.layer.backend.gather_window(ring, step.request_slots, step.tokens_after, out)

    def make_queries(
        self, queries: Tensor, weights: Tensor, turns: Tensor, out: Tensor, out_weights: Tensor
    ) -> None:
        """An indexer's queries of the step's tokens, as ``contract.Backend.indexer_query``."""
        self._current()
        self.layer.backend.indexer_query(
            queries, weights, turns, self.layer.hadamard, out, out_weights
        )

    def score_keys(
        self, queries: Tensor, weights: Tensor, blocks: Tensor | None, out: Tensor
    ) -> None:
        """Score the indexer keys in their pages; see ``contract.Backend.index_scores``."""
        part, step = self.part(indexer=True), self._current()
        pages = part.store, self._blocks(), step.token_slots, step.seen(part.ratio)
        self.layer.backend.index_scores(*pages, queries, weights, blocks, out)

    def select_blocks(self, scores: Tensor, out: Tensor) -> None:
        """Candidate blocks for later layers; see ``contract.Backend.select_blocks``."""
        part, step, candidates = self.part(True), self._current(), self.layer.model.candidates
        if candidates is None:
            raise self.layer.missing("candidate blocks")
        size = candidates.block_entries
        self.layer.backend.select_blocks(scores, step.seen(part.ratio), size, out)

    def select_topk(
        self, scores: Tensor, blocks: Tensor | None, out: Tensor, entries: Tensor
    ) -> None:
        """Choose the best entries: logical and physical; see ``contract.Backend.select_topk``."""
        part, step = self.part(indexer=False), self._current()
        pages = self._blocks(), step.token_slots, part.store.layout.entries
        seen = step.seen(part.ratio)
        self.layer.backend.select_topk(scores, seen, blocks, *pages, out, entries)

    def attend(
        self, queries: Tensor, sinks: Tensor, indices: Tensor | None, out: Tensor, lse: Tensor
    ) -> None:
        """Attention over the window and, where the layer has them, compressed entries.

        indices: logical entries, int32[T, K], as ``select_topk`` gives them; None: all there are.
        The rest as for ``contract.Backend.attend``; logits are scaled by head_dim^-0.5.
        """
        step, model, entries = self._current(), self.layer.model, None
        if self.layer.main is not None:
            part = self.layer.main
            entries = Entries(part.store, self._blocks(), step.seen(part.ratio), indices)
        window = self._window(), step.token_slots, step.seen(1), model.window_tokens
        scale = model.head_dim**-0.5
        self.layer.backend.attend(*window, entries, queries, sinks, scale, out, lse)

    def window_view(self) -> ReadView:
        """The window where it is, for kernels that read it in place."""
        step, model = self._current(), self.layer.model
        window, after = self._window(), step.tokens_after
        return ReadView(window, None, step.request_slots, after, model.head_dim, model.num_heads)

    def compressed_view(self) -> ReadView:
        """The compressed KV where it is; raises ``ConfigError`` where there is none."""
        model = self.layer.model
        return self._view(self.part(indexer=False), model.head_dim, model.num_heads)

    def indexer_view(self) -> ReadView:
        """The indexer keys where they are; raises ``ConfigError`` where there are none."""
        model = self.layer.model
        return self._view(self.part(indexer=True), model.index_dim, model.index_heads)

    def _view(self, part: CompressedCache, head_dim: int, num_query_heads: int) -> ReadView:
        slots, blocks = self._current().request_slots, self._blocks()
        return ReadView(part.store, blocks, slots, self.lengths(), head_dim, num_query_heads)

    @property
    def num_requests(self) -> int:
        """Requests of the step."""
        return self._step.num_requests

    @property
    def num_tokens(self) -> int:
        """Tokens of the step."""
        return len(self._step.token_slots)

    def lengths(self) -> Tensor:
        """Valid entries of every request after the step, int64[B]."""
        return self._step.lengths(self.layer.schema.layer.ratio)

    def completed(self) -> Completed:
        """The entries this step completes in this layer."""
        return self._step.completed(*self._entry_group())

    def _entry_group(self) -> EntryGroup:
        group = self.layer.entry_group
        if group is None:
            raise self.layer.missing("compressed KV")
        return group

    def _window(self) -> PageStore:
        if self.layer.window is None:
            raise self.layer.missing("window")
        return self.layer.window

    def _current(self) -> StepView:
        self._step.check_current()
        return self._step

    def part(self, indexer: bool) -> CompressedCache:
        """Compressed KV, or the indexer keys; raises ``ConfigError`` where there are none."""
        return self.layer.part(indexer)

    def _blocks(self) -> Tensor:
        if self.layer.blocks is None:
            raise self.layer.missing("block table")
        return self.layer.blocks


def _check_append(part: CompressedCache, step: StepView) -> None:
    if step.max_request_tokens > part.max_append_tokens:
        raise ConfigError(
            f"{step.max_request_tokens} tokens of a request at once, and its compressor state "
            f"takes {part.max_append_tokens}: raise draft_tokens, or use compress_chunk."
        )
