"""Pools: every layer has its own pages and table; V4's bytes go through every operation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from dsv4kv.bench.build import build_drive, build_manager, check_data_path, plan_from
from dsv4kv.bench.systems.timing import Rows
from dsv4kv.bench.systems.workload import Checks, Model, Outcome
from dsv4kv.cache.blocks import BlockPool, Ids
from dsv4kv.cache.layers import LayerCache
from dsv4kv.cache.manager import KVCacheManager, prepare_forward
from dsv4kv.cache.step import Step as CacheStep
from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.systems import SystemsConfig
from dsv4kv.errors import NotOwner
from dsv4kv.measure.recorder import Recorder
from dsv4kv.model.config import DSV4Config
from dsv4kv.model.formats import EntryFormat
from dsv4kv.model.plan import CHECKPOINT_TOKENS, plan_cache
from dsv4kv.model.presets import load_model
from dsv4kv.model.schedule import build_schedule
from dsv4kv.ops import reference, reference_codec
from dsv4kv.ops.registry import load_backend
from dsv4kv.ops.storage import PageStore
from dsv4kv.ops.tolerance import Rows as Entry
from dsv4kv.serve.executor import StepExecutor, StepTokens
from dsv4kv.serve.verifier import Verifier

_COUNT = 64  # blocks of a call
_PROMPT, _CONTEXT = 8192, 16_384  # tokens


@dataclass
class EveryOutput(Verifier):
    """Compares every output; what is equal, from step to step, is worked out once."""

    _windows: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    _entries: dict[tuple[int, bool, bytes, int], Entry] = field(default_factory=dict)
    _right: dict[tuple[int, bool, bytes, Entry], bool] = field(default_factory=dict)

    def chosen(self, count: int) -> Sequence[int]:
        """All of them."""
        return range(count)

    def window(self, form: EntryFormat, row: int) -> Tensor:
        """See ``Verifier``."""
        key = form.name, row
        if key not in self._windows:
            self._windows[key] = super().window(form, row)
        return self._windows[key]

    def entry(
        self, layer: LayerCache, indexer: bool, step: StepTokens, b: int, entry: int
    ) -> Entry:
        """See ``Verifier``."""
        compressor, spec = self.compressor_of(layer, indexer), layer.schema.layer
        end = (entry + 1) * spec.ratio
        pooled = compressor.rows if compressor else 1
        rows = step.rows(b, np.arange(max(0, end - pooled), end))
        key = spec.kv_owner, indexer, rows.tobytes(), entry
        if key not in self._entries:
            self._entries[key] = super().entry(layer, indexer, step, b, entry)
        return self._entries[key]

    def is_right(self, layer: LayerCache, indexer: bool, found: Tensor, expected: Entry) -> bool:
        """See ``Verifier``."""
        bits = found.view(torch.int16).numpy().tobytes()
        key = layer.schema.layer.kv_owner, indexer, bits, expected
        if key not in self._right:
            self._right[key] = super().is_right(layer, indexer, found, expected)
        return self._right[key]


def bench_config(config: SystemsConfig) -> BenchConfig:
    """The cache as ``dsv4kv bench`` would be asked for it."""
    section = config.pools
    tokens = section.prompt_tokens + section.decode_steps + section.draft_tokens
    tokens += section.requests  # prompts are of different lengths
    tokens += CHECKPOINT_TOKENS  # and there is a block next to theirs
    return BenchConfig.model_validate(
        {
            "device": "cpu",
            "model": {"preset": config.model, "layers": section.layers},
            "cache": {"sharing": "layer", "max_context_tokens": tokens},
            "workload": {
                "concurrency": section.requests,
                "step_tokens": tokens,
                "speculative": {"draft_tokens": section.draft_tokens},
            },
            "measure": {"seed": config.seed},
        }
    )


class PoolServer:
    """Serves requests over layers of the model: prompts, drafts that are rolled back, answers.

    Attributes:
        manager: The cache.
        verifier: Compares every gather with the reference.
        checks: What else is compared.
        handed_out: Blocks that requests took.
        given_back: Blocks that rolled back drafts gave back.
    """

    def __init__(self, config: SystemsConfig) -> None:
        """Build the cache; raises ``ConfigError``."""
        self._config, asked = config, bench_config(config)
        plan = plan_from(asked)
        check_data_path(plan)
        self.manager = build_manager(asked, plan, None)
        self._backend = load_backend("cpu")
        drive = build_drive(asked, self.manager, Recorder(), self._backend)
        self._executor: StepExecutor = drive.executor
        parts = drive.verifier.inputs, drive.verifier.compressors, drive.verifier.random
        self.verifier = EveryOutput(*parts)
        self._executor.observer = self.verifier
        self.checks = Checks()
        self.handed_out = self.given_back = 0
        self._left: list[tuple[int, int, CacheStep]] = []

    def serve(self) -> None:
        """Serve as many requests as there are slots, and as many again in the same slots."""
        for wave in range(2):
            self._serve(wave * self._config.pools.requests)
        self._check_block()
        for name, count in self.verifier.checks.items():
            self.checks.check(name, True, "", count)
        self.checks.failures += [f"pools: {failure}" for failure in self.verifier.failures]

    def _serve(self, first: int) -> None:
        section, manager = self._config.pools, self.manager
        serials = np.arange(first, first + section.requests)
        slots = np.array([manager.admit_request() for _ in serials])
        generations = [manager.generation(slot) for slot in slots.tolist()]
        self._check_gone()
        for i in range(len(slots)):
            prompt = np.array([section.prompt_tokens + i])  # not all at the same place in a block
            self._step(slots[i : i + 1], serials[i : i + 1], prompt, prompt, chunk=True)
        for _ in range(section.decode_steps):
            kept = manager.tokens[slots] + 1
            step = self._step(slots, serials, kept + section.draft_tokens, kept)
        self._read_in_place(step)
        for slot, generation in zip(slots.tolist(), generations, strict=True):
            manager.release_request(slot, generation)
            self._left.append((slot, generation, step.batch))
        self._check_gone()

    def _step(
        self, slots: Ids, serials: Ids, after: Ids, kept: Ids, *, chunk: bool = False
    ) -> StepTokens:
        """Run a step, and roll its rejected drafts back."""
        manager = self.manager
        before = manager.tokens[slots]
        held = manager.num_held_blocks
        prepare_forward(manager, slots, before, after)
        taken = manager.num_held_blocks
        batch = CacheStep.of(manager, slots, before, after)
        step = StepTokens(batch, serials, kept, observed=True)
        if chunk:
            self._executor.prefill(step)
        else:
            self._executor.decode(step)
        if (kept < after).any():
            prepare_forward(manager, slots, after, kept)
        self.handed_out += taken - held
        self.given_back += taken - manager.num_held_blocks
        return step

    def _read_in_place(self, last: StepTokens) -> None:
        """What kernels find through the views of a layer's handle is what gathers return."""
        manager, batch = self.manager, last.batch
        slots = batch.request_slots.numpy()
        before = manager.tokens[slots] - 1
        prepare_forward(manager, slots, before, before + 1)
        step = CacheStep.of(manager, slots, before, before + 1)
        for layer in self._executor.layers:
            window = layer.model.window_tokens
            out = torch.empty(len(slots), window, layer.model.head_dim, dtype=torch.bfloat16)
            places = {"slots": step.request_slots, "tokens": step.tokens_after}
            self._backend.gather_window(ring=layer.window, **places, out=out)
            if layer.window is not None:
                self._compare(layer, layer.window, None, int(step.tokens_after[0]), out, step)
            for part in map(layer.part, layer.parts):
                lengths, store = step.lengths[part.ratio], part.store
                shape = len(slots), int(lengths.max()), store.layout.format.dims
                out = torch.empty(shape, dtype=torch.bfloat16)
                self._backend.gather_all(
                    store=store,
                    table=layer.blocks,
                    slots=step.request_slots,
                    lengths=lengths,
                    out=out,
                )
                self._compare(layer, store, layer.blocks, int(lengths[0]), out, step)

    def _compare(
        self,
        layer: LayerCache,
        store: PageStore,
        blocks: Tensor | None,
        length: int,
        out: Tensor,
        step: CacheStep,
    ) -> None:
        entries = torch.arange(max(0, length - out.shape[1]), length)  # of one request: it is slow
        found = read_entries(store, blocks, int(step.request_slots[0]), entries)
        equal = torch.equal(found, out[0, : len(entries)])
        index = layer.schema.layer.layer_idx
        sentence = f"pools: what is read in place in layer {index} is not what is gathered."
        self.checks.check("read in place", equal, sentence, len(entries))

    def _check_gone(self) -> None:
        """Who has left a slot can neither release it, nor go on reading, whoever is there now."""
        for slot, generation, batch in self._left:
            release = partial(self.manager.release_request, slot, generation)
            refused = [_is_refused(late) for late in (release, batch.check_current)]
            sentence = f"pools: slot {slot} obeys a request that has left it."
            self.checks.check("stale handles refused", all(refused), sentence, 2)

    def _check_block(self) -> None:
        """A block outside any request holds what is copied into it."""
        source, target = (self.manager.allocate_block() for _ in range(2))
        for layer_idx, pool in self.manager.pools.items():
            pages = pool.main.pages
            pages[source] = torch.randint(0, 256, pages[source].shape, dtype=torch.uint8)
            numbers = {"sources": torch.from_numpy(source), "targets": torch.from_numpy(target)}
            self._backend.page_copy(store=pool.main, **numbers)
            equal = torch.equal(pages[source], pages[target])
            self.checks.check("page", equal, f"pools: a page of layer {layer_idx} is no copy.")
        self.manager.tables[0].allocator.release(np.concatenate([source, target]))
        held = self.manager.num_held_blocks
        self.checks.check("blocks", not held, f"pools: {held} are still held at the end.")


def _is_refused(call: Callable[[], None]) -> bool:
    try:
        call()
    except NotOwner:
        return True
    return False


def read_entries(store: PageStore, blocks: Tensor | None, slot: int, entries: Tensor) -> Tensor:
    """Entries int64[n] of a slot, found in the pages as a kernel would: bf16[n, D].

    blocks: int32[slots, width]; None for a ring, which is the slot's own page.
    """
    size = store.layout.entries
    pages = torch.full_like(entries, slot)
    if blocks is not None:
        pages = blocks[slot].long()[entries // size]
    physical = pages * size + entries % size
    decode = partial(reference_codec.decode, store.layout.format)
    rows = [decode(*reference.read_bytes(store, entry)) for entry in physical.tolist()]
    return torch.tensor(rows).reshape(len(rows), store.layout.format.dims).bfloat16()


def run_pools(config: SystemsConfig, _: Model) -> Outcome:
    """Move the layers' bytes, and time the manager's calls over a whole model."""
    server, rows = PoolServer(config), Rows(config.calls)
    server.serve()
    manager = server.manager
    pages = sum(pool.memory_bytes() for pool in manager.pools.values())
    states = sum(pool.memory_bytes() for pool in manager.states.values())
    rows.counted("pages of the layers", "B", pages)
    rows.counted("windows and states of the layers", "B", states)
    rows.counted("cache of the layers", "B", manager.memory_bytes())
    rows.counted("blocks handed out", "blocks", server.handed_out)
    rows.counted("of them by drafts, given back", "blocks", server.given_back)
    if config.calls.seconds:
        _time_calls(load_model(config.calls.model), rows, config.calls.batches)
    return Outcome("pools", rows, server.checks)


def _time_calls(model: DSV4Config, rows: Rows, batches: Sequence[int]) -> None:
    """Time the block pool, and the manager over all layers of a model."""
    pool = BlockPool(2**16)
    ids = pool.acquire(_COUNT)
    # The blocks last returned are handed out first: the ids stay the same.
    acquire, release = partial(pool.acquire, _COUNT), partial(pool.release, ids)
    rows.timed(f"acquire {_COUNT} of 65,536", acquire, release)
    release()
    rows.timed(f"release {_COUNT} of 65,536", release, acquire)
    layers = sum(spec.owns_kv for spec in build_schedule(model))
    for batch in batches:
        manager, prepare = _bookkeeping(model, batch)
        after = np.random.default_rng(0).integers(_PROMPT, _PROMPT + 1024, batch)
        before = after - 1
        prepare(np.zeros_like(before), after)

        def move(before: Ids = before, after: Ids = after) -> None:
            np.add(before, 1, out=before)
            np.add(after, 1, out=after)

        quantity = f"prepare a decode step of {batch}, {layers} layers"
        rows.timed(quantity, partial(prepare, before, after), move)
    none, prompt = np.zeros(batch, np.int64), np.full(batch, _PROMPT)
    prepare(after, none)
    start, back = partial(prepare, none, prompt), partial(prepare, prompt, none)
    start()
    rows.timed(f"prepare {batch} prompts of {_PROMPT:,}, {layers} layers", start, back)
    rows.timed(f"roll back {batch} prompts of {_PROMPT:,}", back, start)
    tables = sum(table.blocks.nbytes for table in manager.tables)
    rows.counted(f"block tables of {batch} requests", "B", tables)
    _time_requests(rows, *_bookkeeping(model, 8), layers)


Prepare = Callable[[Ids, Ids], None]


def _bookkeeping(model: DSV4Config, batch: int) -> tuple[KVCacheManager, Prepare]:
    """The manager without data with ``batch`` requests, and what prepares a step of all."""
    plan = plan_cache(model, max_context_tokens=_CONTEXT, num_slots=batch)
    manager = KVCacheManager(plan, data=False)
    slots = np.array([manager.admit_request() for _ in range(batch)])
    return manager, partial(prepare_forward, manager, slots)


def _time_requests(rows: Rows, manager: KVCacheManager, _: Prepare, layers: int) -> None:
    """Admit and release one request."""
    one, taken = np.array([0]), list[Ids]()

    def leave() -> None:
        if not manager.num_free_slots:
            manager.release_request(0, manager.generation(0))

    def enter() -> None:
        if manager.num_free_slots:
            manager.admit_request()
        prepare_forward(manager, one, manager.tokens[one], np.array([_PROMPT]))

    def give_back() -> None:
        while taken:
            manager.tables[0].allocator.release(taken.pop())

    rows.timed("admit_request", manager.admit_request, leave)
    rows.timed(f"release_request, {_PROMPT // 128} blocks, {layers} layers", leave, enter)
    rows.timed("allocate_block", lambda: taken.append(manager.allocate_block()), give_back)
