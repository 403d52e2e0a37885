"""An exception on any line of an operation leaves the cache as it was; it can be done again."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dsv4kv.cache.allocators import make_allocator
from dsv4kv.cache.allocators.bitmask import SlotAllocator
from dsv4kv.cache.allocators.contract import Allocator
from dsv4kv.cache.allocators.lanes import InLanes
from dsv4kv.cache.allocators.paused import PausedRequests
from dsv4kv.cache.allocators.refcount import RefCountAllocator
from dsv4kv.cache.allocators.routing import RoutingStore
from dsv4kv.cache.allocators.stack import BlockAllocator
from dsv4kv.cache.allocators.states import ReleasePolicy
from dsv4kv.cache.checkpoints import CheckpointPool, resume_request
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.cache.prepare import prepare_forward
from dsv4kv.choices import ALLOCATORS
from tests.cache.allocators.blocks import cached, chain, ids, state
from tests.cache.caches import admit, bookkeeping, small_plan
from tests.interrupts import at_every_line

Operation = Callable[[Any], object]
ERRORS = pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])


def facts_of(allocator: Allocator) -> Any:
    """What is free and what is held, in which order it goes, and under which version."""
    if isinstance(allocator, InLanes):
        lanes = [facts_of(lane) for lane in allocator._each]
        # One that was taken in some lanes and given back has been handed out meanwhile.
        return [lane[:1] if isinstance(lane, tuple) else lane for lane in lanes]
    if isinstance(allocator, RefCountAllocator):
        known = state(allocator)
        found = allocator._states.hashes._blocks
        assert all(allocator._states.hashes.of_block[b] == hash_ for hash_, b in found.items())
        return known | {"by_hash": sorted(found)}, facts_of(allocator._states.stack)
    if isinstance(allocator, SlotAllocator):
        assert allocator.num_free == np.count_nonzero(allocator._free)
        return allocator._free.tolist(), allocator._version.tolist()
    assert isinstance(allocator, BlockAllocator)
    marks = allocator._mark.reshape(allocator.lanes, -1)
    held = marks == np.arange(marks.size).reshape(marks.shape)
    free = np.atleast_2d(allocator._free)[:, : allocator.num_free]
    assert (held.sum(1) == allocator.num_held).all()
    for lane, each in zip(free, held, strict=True):
        assert sorted(lane.tolist()) == np.flatnonzero(~each).tolist()
    return free.tolist()


# ---- allocators ---------------------------------------------------------------------------------


@ERRORS
@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("name", ALLOCATORS)
def test_an_allocator_takes_and_gives_back_whole_or_not_at_all(
    name: str, lanes: int, error: type[BaseException]
) -> None:
    def make() -> Allocator:
        allocator = make_allocator(name, 9, lanes)
        for count in (2, 3, 1):
            taken = allocator.acquire(count)
        allocator.release(taken)
        return allocator

    def held(*blocks: int) -> Any:
        row = np.array(blocks, dtype=np.int64)
        return row if lanes == 1 else np.tile(row, (lanes, 1))

    operations: list[Operation] = [
        lambda allocator: allocator.acquire(3),
        lambda allocator: allocator.release(held(4, 2)),
        lambda allocator: allocator.release(held(4, 2), allocator.generation(held(4, 2))),
        lambda allocator: allocator.check_held(held(0, 3)),
        lambda allocator: allocator.release(held()),
    ]
    assert all(at_every_line(make, each, facts_of, error) > 3 for each in operations)


@ERRORS
def test_slots_are_taken_across_pages_whole_or_not_at_all(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsv4kv.cache.allocators.bitmask._PAGE", 4)

    def make() -> SlotAllocator:
        slots = SlotAllocator(11)
        slots.acquire(6)
        slots.release(ids(1, 2))
        return slots

    operations: list[Operation] = [
        lambda slots: slots.acquire(5),
        lambda slots: slots.alloc(),
        lambda slots: slots.occupy(2),
        lambda slots: slots.release(ids(5, 0)),
        lambda slots: slots.free(4),
    ]
    for operate in operations:
        assert at_every_line(make, operate, facts_of, error) > 3


def counted(policy: ReleasePolicy = "lru") -> RefCountAllocator:
    """Twelve blocks: chains that are cached, held, shared and forked; two are unused."""
    allocator = RefCountAllocator(13, policy, RoutingStore(2, 1, 1))
    cached(allocator, 10, 11, 12)
    held = chain(allocator, 20, 21)
    allocator.retain_memory_blocks(held[:1])
    cached(allocator, 22, parent=20)
    chain(allocator, 30, 31)
    twin = allocator.acquire(1)
    allocator.register_kv_block_hashes(twin, [10], [0])
    allocator.acquire(1)
    return allocator


@ERRORS
@pytest.mark.parametrize("policy", ["lru", "ref_zero"])
def test_counted_blocks_change_whole_or_not_at_all(
    policy: ReleasePolicy, error: type[BaseException]
) -> None:
    def find(*hashes: int) -> Callable[[RefCountAllocator], Any]:
        return lambda allocator: allocator.find_kv_blocks(hashes)

    def release_what_is_named_again(allocator: RefCountAllocator) -> None:
        (first, second) = find(20, 21)(allocator).tolist()
        allocator.release_memory_blocks(ids(second, first, first))

    operations: list[Operation] = [
        lambda allocator: allocator.acquire(2),
        lambda allocator: allocator.acquire(allocator.num_unused + policy.count("lru")),
        lambda allocator: allocator.allocate_memory_blocks(1, find(10, 11)(allocator)),
        lambda allocator: allocator.retain_memory_blocks(find(20, 21)(allocator)),
        lambda allocator: allocator.retain_memory_blocks(find(10, 11)(allocator)),
        lambda allocator: allocator.release_memory_blocks(find(30, 31)(allocator)),
        lambda allocator: allocator.release_memory_blocks(find(30)(allocator)),
        lambda allocator: allocator.release_memory_blocks(find(20)(allocator)),
        release_what_is_named_again,
        lambda allocator: allocator.register_kv_block_hashes(
            np.flatnonzero(allocator._states.refs[:-1])[-1:], [23], [21]
        ),
        lambda allocator: allocator.update_timestamps(np.arange(12)),
        lambda allocator: allocator.evict_lru_blocks(1),
        lambda allocator: allocator.evict_lru_blocks(3),
        lambda allocator: allocator.reset(),
        lambda allocator: allocator.reset(preserve_prefix_cache=True),
    ]
    for operate in operations:
        assert at_every_line(lambda: counted(policy), operate, facts_of, error) > 3


@ERRORS
@pytest.mark.parametrize("policy", ["lru", "ref_zero"])
def test_requests_pause_resume_and_are_evicted_whole_or_not_at_all(
    policy: ReleasePolicy, error: type[BaseException]
) -> None:
    def make() -> PausedRequests:
        allocator = RefCountAllocator(13, policy)
        held = [chain(allocator, 10, 11), chain(allocator, 20), allocator.acquire(3)]
        allocator.retain_memory_blocks(held[0][:1])
        held.append(np.concatenate([held[0][:1], allocator.acquire(1)]))
        paused = PausedRequests(allocator, budget_blocks=2)
        for name, (blocks, missing) in enumerate(zip(held, (2, 2, 5, 1), strict=True)):
            paused.pause(name, blocks, missing)
        return paused

    def facts(paused: PausedRequests) -> Any:
        held = [(name, ids.tolist(), more) for name, (ids, more) in paused._paused.items()]
        return held, facts_of(paused._allocator)

    operations: list[Operation] = [
        lambda paused: paused.resume(),
        lambda paused: paused.evict_newest(),
        lambda paused: paused.evict_over_budget(),
        lambda paused: paused.forget(),
    ]
    for operate in operations:
        assert at_every_line(make, operate, facts, error) > 2


# ---- the cache ----------------------------------------------------------------------------------


def facts_of_cache(manager: KVCacheManager) -> Any:
    """Who holds what, in slots, tables and allocators."""
    free = [facts_of(table.allocator) for table in manager.tables]
    slots = manager.tokens.tolist(), facts_of(manager._slots)
    rows = [(table.blocks.tolist(), table.held.tolist()) for table in manager.tables]
    return slots, rows, [each[:1] if isinstance(each, tuple) else each for each in free]


@pytest.mark.parametrize(
    ("name", "sharing"), [("stack", "type"), ("bitmask", "layer"), ("refcount", "model")]
)
def test_a_cache_changes_whole_or_not_at_all(name: str, sharing: str) -> None:
    def make() -> KVCacheManager:
        manager = bookkeeping(name, sharing=sharing, num_blocks=12)
        for table in manager.tables:
            table.changes = []  # as if somebody kept a copy
        prepare_forward(manager, admit(manager, 2), [0, 0], [400, 500])
        return manager

    operations: list[Operation] = [
        lambda manager: manager.admit_request(),
        lambda manager: manager.release_request(1, manager.generation(1)),
        lambda manager: prepare_forward(manager, [0, 1], [400, 500], [900, 130]),
        lambda manager: prepare_forward(manager, [1, 0], [500, 400], [501, 401]),
        lambda manager: manager.allocate_block(),
    ]
    for operate in operations:
        assert at_every_line(make, operate, facts_of_cache) > 3


Resuming = tuple[KVCacheManager, CheckpointPool, int]


def resuming() -> Resuming:
    """A request that can go on behind another one's 300 tokens; no data."""
    plan = small_plan(layers=(2, 3), sharing="model", num_blocks=5)
    manager = KVCacheManager(plan, data=False, allocator="refcount")
    pool, (first, _) = CheckpointPool(manager, 2), admit(manager, 2)
    prepare_forward(manager, [first], [0], [384])
    return manager, pool, pool.save(first)


def facts_when_resuming(scene: Resuming) -> Any:
    manager, pool, _ = scene
    return facts_of_cache(manager), facts_of(pool._numbers)


@pytest.mark.parametrize("tokens", [256, 300])
def test_a_request_resumes_whole_or_not_at_all(tokens: int) -> None:
    def resume(scene: Resuming) -> None:
        manager, pool, checkpoint = scene
        blocks = manager.tables[0].blocks[0, 0, :3].astype(np.int64)
        resume_request(manager, 1, tokens, blocks, pool, checkpoint, None)

    assert at_every_line(resuming, resume, facts_when_resuming) > 3


def test_a_checkpoint_is_saved_and_released_whole_or_not_at_all() -> None:
    operations: list[Operation] = [
        lambda scene: scene[1].save(0),
        lambda scene: scene[1].release(scene[2]),
    ]
    for operate in operations:
        assert at_every_line(resuming, operate, facts_when_resuming) > 3
