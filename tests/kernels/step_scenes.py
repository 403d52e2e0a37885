"""Decode steps of a layer, as a decoder may have them: what to write, and where."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dsv4kv.model.formats import FORMATS, EntryFormat
from dsv4kv.model.presets import load_model
from dsv4kv.model.schedule import AttentionType, LayerSpec
from dsv4kv.ops.compressor import Compressor, make_rope, random_compressor
from dsv4kv.ops.launches.launch import Launch
from dsv4kv.ops.launches.state import plan_step_write
from dsv4kv.ops.storage import PageStore, PartWrite
from tests.ops.samples import generator, poisoned_store, random_values

MAIN, WINDOW = FORMATS["main"]["fp8_ds_mla"], FORMATS["window"]["fp8_ds_mla"]
KEYS = FORMATS["indexer"]["mxfp4"]
SLOTS, PAGE_ENTRIES, PAGES = 6, 32, 2
RING_ENTRIES = 128

Runs = Sequence[tuple[int, int, int]]
"""(slot, position of the first token, tokens) of each request of a step."""


@dataclass(frozen=True)
class Step:
    """Arguments of a ``step_write``: tensors of their own."""

    ring: PageStore
    values: Tensor
    slots: Tensor
    positions: Tensor
    parts: tuple[PartWrite, ...]

    def copy(self) -> "Step":
        """The same step on memory of its own."""
        parts = tuple(
            replace(part, state=part.state.clone(), store=_copied(part.store))
            for part in self.parts
        )
        return replace(self, ring=_copied(self.ring), parts=parts)

    def written(self) -> dict[str, Tensor]:
        """Every memory that a step writes to."""
        found = {"ring": self.ring.pages}
        for name, part in zip(("main", "keys"), self.parts, strict=False):
            found |= {f"{name} state": part.state, f"{name} pages": part.store.pages}
        return found

    def plan(self, arrivals: Tensor | None = None) -> Launch:
        """Its launch; blocks meet in scratch that nobody has cleared."""
        tokens, dim = len(self.slots), self.parts[0].compressor.dim
        if arrivals is None:
            arrivals = torch.zeros(tokens, dtype=torch.int32)
        scratch = torch.full((tokens, dim), torch.nan)
        arguments = self.ring, self.values, self.slots, self.positions, self.parts
        return plan_step_write(*arguments, scratch=scratch, arrivals=arrivals)


def make_step(
    kinds: Sequence[str],
    runs: Runs,
    *,
    model: str = "v4-flash",
    drafts: int = 0,
    online: bool = False,
    main: EntryFormat = MAIN,
    keys: EntryFormat = KEYS,
) -> Step:
    """A step of requests in the middle of things: every row of the states is taken."""
    slots = torch.cat([torch.full((count,), slot) for slot, _, count in runs])
    positions = torch.cat([torch.arange(first, first + count) for _, first, count in runs])
    formats = {"csa": main, "hca": main, "indexer": keys}
    parts = tuple(
        _part(compressor_of(model, kind), slots, positions, formats[kind], drafts, online)
        for kind in kinds
    )
    ring = poisoned_store(WINDOW, RING_ENTRIES + drafts if drafts else RING_ENTRIES, SLOTS)
    return Step(ring, random_values(WINDOW, len(slots), 1), slots, positions, parts)


def compressor_of(model: str, kind: str) -> Compressor:
    """A model's compressor of ``csa`` or ``hca`` layers, or of an ``indexer``."""
    attention = AttentionType.HCA if kind == "hca" else AttentionType.CSA
    spec = LayerSpec(2, attention, 128 if kind == "hca" else 4, 2)
    config, indexer = load_model(model), kind == "indexer"
    rope = make_rope(config, spec.ratio, 2048, "float32")
    return random_compressor(
        config, spec, generator(7), rope=rope, indexer=indexer, hadamard=indexer
    )


def _part(
    compressor: Compressor,
    slots: Tensor,
    positions: Tensor,
    entry: EntryFormat,
    drafts: int,
    online: bool,
) -> PartWrite:
    random, tokens = generator(len(slots)), len(slots)
    shape = (3,) if online else (2, compressor.rows + drafts)
    state = torch.randn(SLOTS, *shape, compressor.channels, generator=random)
    state[:, 1] = 1 + 10 * state[:, 1].abs() if online else 3 * state[:, 1]
    kv, score = (torch.randn(tokens, compressor.channels, generator=random) for _ in range(2))
    store = poisoned_store(entry, PAGE_ENTRIES, PAGES)
    entries = torch.randperm(store.num_entries, generator=random)[:tokens]
    entries[((positions + 1) % compressor.ratio != 0) | (slots < 0)] = -1
    return PartWrite(compressor, state, kv, 3 * score, store, entries)


def _copied(store: PageStore) -> PageStore:
    return PageStore(store.layout, store.pages.clone())
