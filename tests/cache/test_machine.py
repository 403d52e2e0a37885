"""In any order of events no block is lost or doubled, and no entry is seen that is not one's own.

Every page entry of every layer has a tag (serial number of the request that wrote it, index of
the entry). A step tags the entries that it says it completes; whatever a request can see must
bear its own tags.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dsv4kv.cache.allocator import BlockAllocator, Ids
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.cache.prepare import prepare_forward
from dsv4kv.cache.step import StepBatch
from dsv4kv.cache.table import NO_BLOCK, BlockTable
from dsv4kv.errors import CacheError, ContextOverflow, NotOwner, OutOfBlocks, OutOfSlots
from tests.cache.caches import bookkeeping, snapshot

RATIOS = {2: 4, 3: 128, 4: 4, 5: 128}  # of the layers that own compressed KV
NOBODY = -1
DRAFTS = 5


@dataclass
class Running:
    """What the model knows of a running request."""

    serial: int
    generation: int
    tokens: int = 0


@dataclass
class Past:
    """A step as it was, and the requests it was made for."""

    batch: StepBatch
    requests: dict[int, tuple[int, int]] = field(default_factory=dict)
    """(serial, tokens after) by slot."""


def shuffle_free_blocks(manager: KVCacheManager, random: np.random.Generator) -> None:
    """Bring the free blocks of every lane into an order of its own."""
    for table in manager.tables:
        every = table.allocator.acquire(table.allocator.num_blocks)
        table.allocator.release(random.permuted(every, axis=-1))


class CacheMachine(RuleBasedStateMachine):
    """Drives the bookkeeping of a small cache as a careless engine would."""

    @initialize(
        sharing=st.sampled_from(["model", "type", "layer"]),
        block_tokens=st.sampled_from([128, 256, 384]),
        num_blocks=st.integers(1, 12),
        num_slots=st.integers(1, 4),
        context=st.sampled_from([640, 1000, 1289]),
        order=st.integers(0, 99),
    )
    def build(self, order: int, **sizes: Any) -> None:
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
        self.past: list[Past] = []
        self.gone: list[tuple[int, int]] = []  # (slot, generation) of released requests

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
        batch = StepBatch(self.manager, list(after), list(before.values()), list(after.values()))
        for layer, ratio in RATIOS.items():
            table = self.table_of(layer)
            lane = table.group.lane_of(layer)
            done = batch.completed(table, lane, ratio, self.per_block[layer])
            entries = done.entries.numpy()
            assert len(done) == sum(
                end // ratio - start // ratio
                for start, end in zip(before.values(), after.values(), strict=True)
            )
            assert len(np.unique(entries)) == len(entries)
            serials = [self.running[slot].serial for slot in done.slots.tolist()]
            self.tags[layer][entries, 0] = serials
            self.tags[layer][entries, 1] = done.positions.numpy() // ratio
        made_for = {slot: (self.running[slot].serial, end) for slot, end in after.items()}
        self.past = [*self.past[-5:], Past(batch, made_for)]
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
        blocks = self.table_of(layer).view(layer)[slot].numpy().astype(np.int64)
        size = self.per_block[layer]
        return blocks[logical // size] * size + logical % size

    def some_running(self) -> list[int]:
        """Slots of the running requests; the first is admitted where none runs."""
        if not self.running:
            self.admit()
        return sorted(self.running)

    @rule()
    def admit(self) -> None:
        if len(self.running) == self.manager.plan.num_slots:
            self.refused(OutOfSlots, self.manager.admit_request)
            return
        slot = self.manager.admit_request()
        assert slot not in self.running
        self.running[slot] = Running(self.serial, self.manager.generation(slot))
        self.serial += 1

    @rule(data=st.data(), tokens=st.integers(1, 700))
    def prefill_chunk(self, data: st.DataObject, tokens: int) -> None:
        slot = data.draw(st.sampled_from(self.some_running()))
        end = min(self.running[slot].tokens + tokens, self.context)
        if end > self.running[slot].tokens:
            self.step({slot: end})

    @rule(data=st.data(), drafts=st.integers(0, DRAFTS))
    def decode(self, data: st.DataObject, drafts: int) -> None:
        """One token of some requests and its drafts; some of the drafts are rolled back."""
        slots = data.draw(st.permutations(self.some_running()))
        slots = slots[: data.draw(st.integers(1, len(slots)))]
        window = 1 + drafts
        after = {
            slot: self.running[slot].tokens + window
            for slot in slots
            if self.running[slot].tokens + window <= self.context
        }
        if after and self.step(after) and drafts:
            kept = {slot: end - data.draw(st.integers(0, drafts)) for slot, end in after.items()}
            assert self.prepare({slot: end for slot, end in kept.items() if end < after[slot]})

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        """Go back to any earlier position of some requests."""
        slots = data.draw(st.lists(st.sampled_from(sorted(self.running)), unique=True))
        after = {slot: data.draw(st.integers(0, self.running[slot].tokens)) for slot in slots}
        assert self.prepare(after)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), tokens=st.integers(1, 700))
    def grow_while_others_shrink(self, data: st.DataObject, tokens: int) -> None:
        """One step of both directions: what is given back may be what is needed."""
        growing, *shrinking = data.draw(st.permutations(sorted(self.running)))
        after = {slot: self.running[slot].tokens // 2 for slot in shrinking}
        tokens = min(tokens, self.context)
        if self.prepare(after | {growing: tokens}):
            self.restore(growing)  # an engine would recompute or load what is new

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.running)))
        request = self.running.pop(slot)
        self.manager.release_request(slot, data.draw(st.sampled_from([None, request.generation])))
        self.gone.append((slot, request.generation))

    @precondition(lambda self: len(self.running) < self.manager.plan.num_slots)
    @rule(tokens=st.integers(1, 640), more=st.integers(0, 200))
    def resume(self, tokens: int, more: int) -> None:
        """A request starts with a prefix that is already computed, and holds nothing yet."""
        self.admit()
        slot = next(slot for slot, r in self.running.items() if r.serial == self.serial - 1)
        if self.prepare({slot: tokens}):
            self.restore(slot)
            end = min(tokens + more, self.context)
            if end > tokens:
                self.step({slot: end})

    @precondition(lambda self: len(self.running) > 1)
    @rule(data=st.data(), tokens=st.integers(300, 1289))
    def run_out_then_make_room(self, data: st.DataObject, tokens: int) -> None:
        """After a refusal others leave until it fits; the retry takes what it lacks, no more."""
        slot, *others = data.draw(st.permutations(sorted(self.running)))
        start, end = self.running[slot].tokens, min(tokens, self.context)
        if end <= start:
            return
        while not self.step({slot: end}):
            if not others:
                return
            victim = others.pop()
            self.gone.append((victim, self.running.pop(victim).generation))
            self.manager.release_request(victim)
        for table in self.manager.tables:
            assert table.held[slot] == self.needed(table, end)

    @rule(data=st.data())
    def take_a_block_outside_any_request(self, data: st.DataObject) -> None:
        group = data.draw(st.integers(0, len(self.manager.tables) - 1))
        table = self.manager.tables[group]
        if table.allocator.num_free:
            self.spare.append((table, self.manager.allocate_block(group)))
        else:
            self.refused(OutOfBlocks, lambda: self.manager.allocate_block(group))

    @precondition(lambda self: self.spare)
    @rule(data=st.data())
    def give_a_block_back(self, data: st.DataObject) -> None:
        table, block = self.spare.pop(data.draw(st.integers(0, len(self.spare) - 1)))
        table.allocator.release(block)
        self.refused(NotOwner, lambda: table.allocator.release(block))

    # What must be refused.

    @rule(data=st.data())
    def prepare_a_slot_without_request(self, data: st.DataObject) -> None:
        slots = self.manager.plan.num_slots
        anywhere = set(range(-3 * slots, 3 * slots))
        free = data.draw(st.sampled_from(sorted(anywhere - set(self.running))))
        every = [*self.running, free]
        zeros = [0] * len(every)
        self.refused(NotOwner, lambda: prepare_forward(self.manager, every, zeros, zeros))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def prepare_a_slot_twice(self, data: st.DataObject) -> None:
        slots = [*self.running, data.draw(st.sampled_from(sorted(self.running)))]
        zeros = [0] * len(slots)
        self.refused(NotOwner, lambda: prepare_forward(self.manager, slots, zeros, zeros))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), beyond=st.integers(1, 200))
    def outgrow_the_row(self, data: st.DataObject, beyond: int) -> None:
        slot = data.draw(st.sampled_from(sorted(self.running)))
        slots = [slot, *(other for other in self.running if other != slot)]
        after = [self.context + beyond] + [0] * (len(slots) - 1)
        self.refused(
            ContextOverflow, lambda: prepare_forward(self.manager, slots, [0] * len(slots), after)
        )

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def release_as_an_old_owner(self, data: st.DataObject) -> None:
        slot, generation = data.draw(st.sampled_from(self.gone))
        self.refused(NotOwner, lambda: self.manager.release_request(slot, generation))

    # What always holds.

    @invariant()
    def every_block_is_free_or_held_once(self) -> None:
        for table in self.manager.tables:
            allocator = table.allocator
            assert isinstance(allocator, BlockAllocator)
            spare = [block for owner, block in self.spare if owner is table]
            assert allocator.num_held == table.held.sum() + len(spare)
            free = np.atleast_2d(allocator._free)[:, : allocator.num_free].tolist()
            for lane, rows in enumerate(table.blocks):
                held = rows[rows != NO_BLOCK].tolist()
                held += [int(block.reshape(-1)[lane]) for block in spare]
                assert sorted(held + free[lane]) == list(range(allocator.num_blocks))

    @invariant()
    def every_request_holds_what_it_needs_and_no_one_else_anything(self) -> None:
        for slot in range(self.manager.plan.num_slots):
            tokens = self.running[slot].tokens if slot in self.running else 0
            assert self.manager.tokens[slot] == tokens
            for table in self.manager.tables:
                held = self.needed(table, tokens)
                assert table.held[slot] == held
                assert (table.blocks[:, slot, :held] != NO_BLOCK).all()
                assert (table.blocks[:, slot, held:] == NO_BLOCK).all()

    @invariant()
    def slots_are_counted(self) -> None:
        manager = self.manager
        assert manager.num_free_slots == manager.plan.num_slots - len(self.running)
        for slot, request in self.running.items():
            assert manager.generation(slot) == request.generation

    @invariant()
    def every_visible_entry_is_the_requests_own_and_in_its_place(self) -> None:
        for slot, request in self.running.items():
            for layer in RATIOS:
                found = self.tags[layer][self.visible(layer, slot)]
                assert (found[:, 0] == request.serial).all()
                assert found[:, 1].tolist() == list(range(len(found)))

    @invariant()
    def a_step_is_current_while_its_requests_stand_where_it_left_them(self) -> None:
        for past in self.past:
            current = all(
                slot in self.running and self.standing(slot) == made_for
                for slot, made_for in past.requests.items()
            )
            if current:
                past.batch.check_current()
            else:
                with pytest.raises(NotOwner):
                    past.batch.check_current()

    def standing(self, slot: int) -> tuple[int, int]:
        return self.running[slot].serial, self.running[slot].tokens


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=150, stateful_step_count=45, deadline=None)
