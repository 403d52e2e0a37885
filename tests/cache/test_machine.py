"""In any order of events no block is lost or doubled, and no entry is seen that is not one's own.

Every page entry of every layer has a tag (serial number of the request that wrote it, index of
the entry). A step tags the entries that it says it completes; whatever a request can see must
bear its own tags.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dsv4kv.cache.blocks import Ids
from dsv4kv.cache.manager import NO_BLOCK, BlockTable, KVCacheManager, prepare_forward
from dsv4kv.cache.step import Step
from dsv4kv.errors import CacheError, ContextOverflow, NotOwner, OutOfBlocks, OutOfSlots
from tests.cache.caches import bookkeeping, snapshot
from tests.examples import examples

RATIOS = {2: 4, 3: 128, 4: 4, 5: 128}  # of the layers that own compressed KV
NOBODY = -1
DRAFTS = 5
DRAWS = st.randoms(use_true_random=False)
EVENTS = (
    "admit resume take_a_block_outside_any_request give_a_block_back ask_for_what_cannot_be",
    "release prefill_chunk truncate decode run_out_then_make_room",
    "grow_while_others_shrink",
)
"""What can happen, by how many requests must be running for it."""


@dataclass
class Running:
    """What the model knows of a running request."""

    serial: int
    generation: int
    tokens: int = 0


def shuffle_free_blocks(manager: KVCacheManager, random: np.random.Generator) -> None:
    """Bring the free blocks into another order."""
    for table in manager.tables:
        every = table.allocator.acquire(table.allocator.num_blocks)
        table.allocator.release(random.permutation(every, axis=-1))


class CacheMachine(RuleBasedStateMachine):
    """Drives the bookkeeping of a small cache as a careless engine would."""

    @initialize(
        sharing=st.sampled_from(["model", "type", "layer"]),
        block_tokens=st.sampled_from([128, 256, 384]),
        num_blocks=st.integers(1, 12),
        num_slots=st.sampled_from([1, 2, 3, 4, 4]),
        running=st.integers(0, 4),
        context=st.sampled_from([640, 1000, 1289]),
        order=st.integers(0, 99),
    )
    def build(self, order: int, running: int, **sizes: Any) -> None:
        self.context: int = sizes.pop("context")
        self.manager = bookkeeping(max_context_tokens=self.context, **sizes)
        shuffle_free_blocks(self.manager, np.random.default_rng(order))
        self.per_block: dict[int, int] = {
            layer: sizes["block_tokens"] // ratio for layer, ratio in RATIOS.items()
        }
        self.tags = {
            layer: np.full((sizes["num_blocks"] * entries, 2), NOBODY)
            for layer, entries in self.per_block.items()
        }
        self.running: dict[int, Running] = {}
        self.serial = 0
        self.spare: list[tuple[BlockTable, Ids]] = []  # blocks taken outside any request
        self.gone: list[tuple[int, int]] = []  # (slot, generation) of released requests
        for _ in range(min(running, self.manager.plan.num_slots)):
            self.admit()

    # What the cache must know, told independently.

    def table_of(self, layer: int) -> BlockTable:
        return next(table for table in self.manager.tables if layer in table.group.layers)

    def needed(self, table: BlockTable, tokens: int) -> int:
        """Blocks of every lane: as many as the neediest layer's whole entries fill."""
        return max(
            -(-(tokens // RATIOS[layer]) // self.per_block[layer]) for layer in table.group.layers
        )

    def shortage(self, after: dict[int, int]) -> dict[int, int]:
        """Blocks lacking, by number of the table; tables with enough are left out."""
        short = {}
        for i, table in enumerate(self.manager.tables):
            new = sum(
                self.needed(table, tokens) - self.needed(table, self.running[slot].tokens)
                for slot, tokens in after.items()
            )
            if new > table.allocator.num_free:
                short[i] = new - table.allocator.num_free
        return short

    def refused(self, error: type[CacheError], call: Callable[[], object]) -> None:
        """The call is refused and nothing at all has changed."""
        before = snapshot(self.manager)
        with pytest.raises(error):
            call()
        assert snapshot(self.manager) == before

    # What an engine does.

    def prepare(self, after: dict[int, int]) -> bool:
        """Prepare a step or see it refused, as the shortage says; True where it was prepared."""
        slots, ends = list(after), list(after.values())
        starts = [self.running[slot].tokens for slot in slots]

        def call() -> None:
            prepare_forward(self.manager, slots, starts, ends)

        if self.shortage(after):
            self.refused(OutOfBlocks, call)
            return False
        call()
        once = snapshot(self.manager)
        call()
        assert snapshot(self.manager) == once
        for slot, end in after.items():
            self.running[slot].tokens = end
        return True

    def step(self, after: dict[int, int]) -> bool:
        """Prepare, then write all that the step completes."""
        before = {slot: self.running[slot].tokens for slot in after}
        if not self.prepare(after):
            return False
        batch = Step.of(self.manager, list(after), list(before.values()), list(after.values()))
        for layer, ratio in RATIOS.items():
            table = self.table_of(layer)
            lane = table.group.lane_of(layer)
            done = batch.completed[table, lane, ratio, self.per_block[layer]]
            entries = done.entries.numpy()
            assert len(entries) == sum(
                end // ratio - start // ratio
                for start, end in zip(before.values(), after.values(), strict=True)
            )
            assert len(np.unique(entries)) == len(entries)
            serials = [self.running[slot].serial for slot in done.slots.tolist()]
            self.tags[layer][entries, 0] = serials
            self.tags[layer][entries, 1] = done.positions.numpy() // ratio
        return True

    def restore(self, slot: int) -> None:
        """Write what a store of prefixes would: the entries a resumed request comes with."""
        request = self.running[slot]
        for layer in RATIOS:
            entries = self.visible(layer, slot)
            self.tags[layer][entries, 0] = request.serial
            self.tags[layer][entries, 1] = np.arange(len(entries))

    def visible(self, layer: int, slot: int) -> Ids:
        """Physical entries of a request's valid entries, through the view kernels read."""
        logical = np.arange(self.running[slot].tokens // RATIOS[layer])
        view = self.manager.view(self.table_of(layer), layer)
        blocks = view[slot].numpy().astype(np.int64)
        size = self.per_block[layer]
        return blocks[logical // size] * size + logical % size

    # What happens, drawn by Hypothesis or, many events at once, by chance.

    @rule(draw=DRAWS)
    def something_happens(self, draw: Random) -> None:
        names = " ".join(EVENTS[: 1 + len(self.running)])
        getattr(self, draw.choice(names.split()))(draw)

    @rule(seed=st.integers(0, 2**20), events=st.integers(1, 30))
    def much_happens(self, seed: int, events: int) -> None:
        draw = Random(seed)
        for _ in range(events):
            self.something_happens(draw)
            self.check_everything()

    def a_request(self, draw: Random) -> int:
        return draw.choice(sorted(self.running))

    def some_requests(self, draw: Random) -> list[int]:
        return draw.sample(sorted(self.running), draw.randint(1, len(self.running)))

    def some_tokens(self, draw: Random) -> int:
        """Around the end of a block as often as anywhere."""
        ends = [size + more for size in (128, 256, 384) for more in (-5, -1, 0, 1)]
        return draw.choice([draw.randint(1, 40), draw.randint(1, 700), draw.choice(ends)])

    def admit(self, draw: Random | None = None) -> None:
        if len(self.running) == self.manager.plan.num_slots:
            self.refused(OutOfSlots, self.manager.admit_request)
            return
        slot = self.manager.admit_request()
        assert slot not in self.running
        self.running[slot] = Running(self.serial, self.manager.generation(slot))
        self.serial += 1

    def prefill_chunk(self, draw: Random) -> None:
        slot = self.a_request(draw)
        end = min(self.running[slot].tokens + self.some_tokens(draw), self.context)
        if end > self.running[slot].tokens:
            self.step({slot: end})

    def decode(self, draw: Random) -> None:
        """One token of some requests and its drafts; some of the drafts are rolled back."""
        drafts = draw.randint(0, DRAFTS)
        after = {
            slot: self.running[slot].tokens + 1 + drafts
            for slot in self.some_requests(draw)
            if self.running[slot].tokens + 1 + drafts <= self.context
        }
        if after and self.step(after) and drafts:
            kept = {slot: end - draw.randint(0, drafts) for slot, end in after.items()}
            assert self.prepare({slot: end for slot, end in kept.items() if end < after[slot]})

    def truncate(self, draw: Random) -> None:
        """Go back to any earlier position of some requests."""
        slots = self.some_requests(draw)
        assert self.prepare({s: draw.randint(0, self.running[s].tokens) for s in slots})

    def grow_while_others_shrink(self, draw: Random) -> None:
        """One step of both directions: what is given back may be what is needed."""
        growing, *shrinking = draw.sample(sorted(self.running), len(self.running))
        after = {slot: self.running[slot].tokens // 2 for slot in shrinking}
        tokens = min(self.running[growing].tokens // 2 + self.some_tokens(draw), self.context)
        if self.prepare(after | {growing: tokens}):
            self.restore(growing)  # an engine would recompute or load what is new

    def release(self, draw: Random) -> None:
        self.leave(self.a_request(draw))

    def leave(self, slot: int) -> None:
        generation = self.running.pop(slot).generation
        self.gone.append((slot, generation))
        self.manager.release_request(slot, generation)

    def resume(self, draw: Random) -> None:
        """A request starts with a prefix that is already computed, and holds nothing yet."""
        if len(self.running) == self.manager.plan.num_slots:
            self.release(draw)
        self.admit()
        slot = next(slot for slot, r in self.running.items() if r.serial == self.serial - 1)
        tokens = min(self.some_tokens(draw), self.context)
        if self.prepare({slot: tokens}):
            self.restore(slot)
            end = min(tokens + draw.randint(0, 200), self.context)
            if end > tokens:
                self.step({slot: end})

    def run_out_then_make_room(self, draw: Random) -> None:
        """After a refusal others leave until it fits; the retry takes what it lacks, no more."""
        slot, *others = draw.sample(sorted(self.running), len(self.running))
        start, end = self.running[slot].tokens, draw.randint(300, self.context)
        if end <= start:
            return
        while not self.step({slot: end}):
            if not others:
                return
            self.leave(others.pop())
        for table in self.manager.tables:
            assert table.held[slot] == self.needed(table, end)

    def take_a_block_outside_any_request(self, draw: Random) -> None:
        group = draw.randrange(len(self.manager.tables))
        table = self.manager.tables[group]
        if table.allocator.num_free:
            self.spare.append((table, table.allocator.acquire(1)))
        else:
            self.refused(OutOfBlocks, lambda: table.allocator.acquire(1))

    def give_a_block_back(self, draw: Random) -> None:
        if self.spare:
            table, block = self.spare.pop(draw.randrange(len(self.spare)))
            table.allocator.release(block)
            self.refused(NotOwner, lambda: table.allocator.release(block))

    def ask_for_what_cannot_be(self, draw: Random) -> None:
        """A slot without a request, one named twice, a row that is too short, an old owner."""
        slots = self.manager.plan.num_slots
        running = sorted(self.running)
        free = draw.choice(sorted(set(range(-3 * slots, 3 * slots)) - set(running)))
        self.refused(NotOwner, lambda: self.prepare_at([*running, free]))
        if running:
            again = draw.choice(running)
            self.refused(NotOwner, lambda: self.prepare_at([*running, again]))
            draw.shuffle(running)
            longest = self.context + draw.randint(1, 200)
            self.refused(ContextOverflow, lambda: self.prepare_at(running, longest))
        if self.gone:
            slot, generation = draw.choice(self.gone)
            self.refused(NotOwner, lambda: self.manager.release_request(slot, generation))

    def prepare_at(self, slots: list[int], first_tokens: int = 0) -> None:
        after = [first_tokens] + [0] * (len(slots) - 1)
        prepare_forward(self.manager, slots, [0] * len(slots), after)

    # What always holds.

    @invariant()
    def check_everything(self) -> None:
        self.every_block_is_free_or_held_once()
        self.every_request_holds_what_it_needs_and_no_one_else_anything()
        self.slots_are_counted()
        self.every_visible_entry_is_the_requests_own_and_in_its_place()

    def every_block_is_free_or_held_once(self) -> None:
        for table in self.manager.tables:
            allocator = table.allocator
            spare = [block for owner, block in self.spare if owner is table]
            rows = table.blocks[0]
            held = np.concatenate([rows[rows != NO_BLOCK], *spare])
            assert (table.blocks == rows).all()
            assert allocator.num_held == len(held) == table.held.sum() + len(spare)
            assert allocator.num_free == allocator.num_blocks - allocator.num_held
            allocator.check_held(held)

    def every_request_holds_what_it_needs_and_no_one_else_anything(self) -> None:
        for slot in range(self.manager.plan.num_slots):
            tokens = self.running[slot].tokens if slot in self.running else 0
            assert self.manager.tokens[slot] == tokens
            for table in self.manager.tables:
                held = self.needed(table, tokens)
                assert table.held[slot] == held
                assert (table.blocks[:, slot, :held] != NO_BLOCK).all()
                assert (table.blocks[:, slot, held:] == NO_BLOCK).all()

    def slots_are_counted(self) -> None:
        manager = self.manager
        assert manager.num_free_slots == manager.plan.num_slots - len(self.running)
        for slot, request in self.running.items():
            assert manager.generation(slot) == request.generation

    def every_visible_entry_is_the_requests_own_and_in_its_place(self) -> None:
        for slot, request in self.running.items():
            for layer in RATIOS:
                found = self.tags[layer][self.visible(layer, slot)]
                assert (found[:, 0] == request.serial).all()
                assert found[:, 1].tolist() == list(range(len(found)))


TestCache = CacheMachine.TestCase
TestCache.settings = examples(75, stateful_step_count=20)
