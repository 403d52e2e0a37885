"""Blocks with several holders: served as a batch, and every call of the allocator timed."""

from functools import partial
from typing import Any, get_args

import numpy as np
import torch

from dsv4kv.cache.allocators.paused import PausedRequests
from dsv4kv.cache.allocators.refcount import RefCountAllocator
from dsv4kv.cache.allocators.routing import RoutingStore
from dsv4kv.cache.allocators.stack import Ids
from dsv4kv.cache.allocators.states import ReleasePolicy
from dsv4kv.config.systems import SystemsConfig
from dsv4kv.core.policies import LRU
from dsv4kv.core.tree import PrefixTree
from dsv4kv.prefix.hashing import HASHES, BlockHasher
from dsv4kv.systems.batch import Batch, serve
from dsv4kv.systems.chat import Chat
from dsv4kv.systems.contents import EXPERTS, TOP_K, Model
from dsv4kv.systems.outcome import Checks, Outcome, Row, Unit, exact
from dsv4kv.systems.plain.blocks import PlainRefCounts, PlainRouting, plain_hashes
from dsv4kv.systems.timing import CallTimer, Timed

SYSTEM = "blocks"
_COUNT = 64  # blocks of a call: 8,192 tokens at 128 a block


def run_blocks(config: SystemsConfig, model: Model) -> Outcome:
    """Serve the conversations by each policy, and time the calls."""
    timer, checks = CallTimer(SYSTEM, config.calls), Checks()
    chosen = config.blocks.policy
    policies = get_args(ReleasePolicy) if chosen == "both" else (chosen,)
    for policy in policies:
        batch = serve_by(config, model, policy, checks)
        _count(timer, batch, policy)
    if config.calls.seconds:
        time_calls(config, model, timer)
    return Outcome(SYSTEM, timer.rows, checks)


def serve_by(config: SystemsConfig, model: Model, policy: ReleasePolicy, checks: Checks) -> Batch:
    """Serve the conversations; what is checked is added to ``checks``."""
    batch = Batch(config.blocks, config.chat, model, policy)
    batch.checks = checks
    half = config.chat.users * config.chat.turns // 2
    serve(batch, Chat(config.chat, config.seed), config.blocks.reset, half)
    _check_end(batch.allocator, checks)
    return batch


def _check_end(allocator: RefCountAllocator, checks: Checks) -> None:
    """Nothing is held at the end, and what is cached can be evicted to the last block."""
    held = allocator.num_held
    checks.check("blocks", not held, f"blocks: {held} are still held at the end.")
    cached = allocator.num_cached
    evictable = allocator.get_evictable_block_count() == cached
    gone = allocator.evict_lru_blocks(cached) and allocator.num_unused == allocator.num_blocks
    sentence = f"blocks: not all {cached} cached ones can be evicted."
    checks.check("blocks", evictable and gone, sentence)


def _count(timer: CallTimer, batch: Batch, policy: str) -> None:
    counts, blocks = batch.counts, batch.totals.blocks
    found: list[tuple[str, Unit, int]] = [
        ("prompt tokens reused", "tokens", counts.reused),
        ("prompt tokens", "tokens", counts.prompt_tokens),
        ("requests deferred", "requests", counts.deferred),
        ("requests paused", "requests", counts.paused),
        ("requests restarted", "requests", counts.restarted),
        ("most kept by paused requests", "blocks", counts.kept_blocks),
        ("blocks handed out", "blocks", blocks["acquired"]),
        ("blocks evicted", "blocks", blocks["evicted"]),
        ("blocks registered", "blocks", blocks["registered"]),
    ]
    if policy == "lru":
        timer.count(Row(SYSTEM, "pool of KV", "B", exact(batch.kv.nbytes)))
    for quantity, unit, number in found:
        timer.count(Row(SYSTEM, f"{policy}: {quantity}", unit, exact(number)))


def time_calls(config: SystemsConfig, model: Model, timer: CallTimer) -> None:
    """Time allocator, hashing and routing, each next to its re-statement."""
    _time_holding(timer, 4096)
    _time_registration(timer)
    _time_eviction(timer, config.calls.cached_blocks)
    _time_pausing(timer)
    _time_hashing(timer, config)
    _time_index(timer, config)
    _time_routing(timer, len(model.layers))


def _chains(allocator: Any, first: int, count: int) -> Ids:
    """Blocks that are registered one after the other, hashes from ``first`` on."""
    ids: Ids = np.asarray(allocator.allocate_memory_blocks(count))
    hashes = list(range(first, first + count))
    allocator.register_kv_block_hashes(ids, hashes, [0, *hashes[:-1]])
    return ids


def _time_holding(timer: CallTimer, num_blocks: int) -> None:
    """Allocate with a cache that is full, release into it, retain what is cached."""
    ours, plain = RefCountAllocator(num_blocks + 1), PlainRefCounts(num_blocks)
    for first in range(1, num_blocks, _COUNT):
        ours.release_memory_blocks(_chains(ours, first, _COUNT))
        ids = plain.allocate(_COUNT)
        plain.register(ids, list(range(first, first + _COUNT)))
        plain.release(ids)
    held: list[Any] = []
    plain_held: list[Any] = []
    timer.time(
        "is_memory_available",
        Timed(partial(ours.is_memory_available, _COUNT, _COUNT)),
    )
    timer.time(
        f"allocate {_COUNT}, evicting",
        Timed(lambda: held.append(ours.allocate_memory_blocks(_COUNT)), lambda: _drop(ours, held)),
        Timed(
            lambda: plain_held.append(plain.allocate(_COUNT)),
            lambda: _drop_plain(plain, plain_held),
        ),
    )
    _drop(ours, held)
    _drop_plain(plain, plain_held)
    numbers = iter(range(10**6, 10**9, _COUNT))

    def register() -> None:
        held.append(_chains(ours, next(numbers), _COUNT))

    def register_plain() -> None:
        ids, first = plain.allocate(_COUNT), next(numbers)
        plain.register(ids, list(range(first, first + _COUNT)))
        plain_held.append(ids)

    timer.time(
        f"release {_COUNT} into the cache",
        Timed(lambda: ours.release_memory_blocks(held.pop()), register),
        Timed(lambda: plain.release(plain_held.pop()), register_plain),
    )
    cached = _chains(ours, 5 * 10**9, _COUNT)
    ours.release_memory_blocks(cached)
    plain_cached = plain.allocate(_COUNT)
    plain.register(plain_cached, list(range(5 * 10**9, 5 * 10**9 + _COUNT)))
    plain.release(plain_cached)
    timer.time(
        f"retain {_COUNT} cached",
        Timed(partial(ours.retain_memory_blocks, cached), _Released(ours, cached)),
        Timed(partial(plain.retain, plain_cached), _Released(plain, plain_cached)),
    )


class _Released:
    """Gives up what the call before took; there is none before the first."""

    def __init__(self, allocator: Any, ids: Any) -> None:
        self._allocator, self._ids, self._began = allocator, ids, False

    def __call__(self) -> None:
        if self._began:
            self._allocator.release(self._ids)
        self._began = True


def _drop(allocator: RefCountAllocator, held: list[Any]) -> None:
    """Release what is held, registered, so that the pool stays full of cached blocks."""
    while held:
        ids = held.pop()
        first = int(allocator.generation(ids)[0]) * _COUNT + 10**9
        hashes = list(range(first, first + _COUNT))
        allocator.register_kv_block_hashes(ids, hashes, [0, *hashes[:-1]])
        allocator.release_memory_blocks(ids)


def _drop_plain(allocator: PlainRefCounts, held: list[Any]) -> None:
    while held:
        ids = held.pop()
        first = allocator.now * _COUNT + 10**9
        allocator.register(ids, list(range(first, first + _COUNT)))
        allocator.release(ids)


def _time_registration(timer: CallTimer) -> None:
    """Register a chain of new blocks, and find it."""
    ours, plain = RefCountAllocator(_COUNT + 1), PlainRefCounts(_COUNT)
    hashes = list(range(1, _COUNT + 1))
    parents = [0, *hashes[:-1]]
    held: list[Any] = [None, None]

    def begin() -> None:
        ours.reset()
        held[0] = ours.acquire(_COUNT)

    def begin_plain() -> None:
        fresh = PlainRefCounts(_COUNT)
        vars(plain).update(vars(fresh))
        held[1] = plain.allocate(_COUNT)

    timer.time(
        f"register {_COUNT}",
        Timed(lambda: ours.register_kv_block_hashes(held[0], hashes, parents), begin),
        Timed(lambda: plain.register(held[1], hashes), begin_plain),
    )
    timer.time(
        f"find {_COUNT}",
        Timed(partial(ours.find_kv_blocks, hashes)),
        Timed(lambda: [plain.blocks.get(each) for each in hashes]),
    )
    timer.time(
        f"reset, {_COUNT} held, prefix cache preserved",
        Timed(
            partial(ours.reset, preserve_prefix_cache=True),
            lambda: ours.retain_memory_blocks(held[0]),
        ),
    )


def _time_eviction(timer: CallTimer, num_blocks: int) -> None:
    """Evict one of a full cache."""
    ours, plain = RefCountAllocator(num_blocks + 1), PlainRefCounts(num_blocks)
    ours.release_memory_blocks(_chains(ours, 1, num_blocks))
    ids = plain.allocate(num_blocks)
    plain.register(ids, list(range(1, num_blocks + 1)))
    plain.release(ids)
    timer.time(
        f"evict 1 of {num_blocks:,}",
        Timed(partial(ours.evict_lru_blocks, 1)),
        Timed(partial(plain.evict, 1)),
    )


def _time_pausing(timer: CallTimer) -> None:
    """Pause a request that cannot go on, and resume it."""
    allocator = RefCountAllocator(2 * _COUNT + 1)
    paused, blocks = PausedRequests(allocator, _COUNT), allocator.acquire(_COUNT)
    taken: list[Ids] = []

    def resume() -> None:
        taken.extend(ids for _, ids in paused.resume())

    def give_back() -> None:
        while taken:
            allocator.release(taken.pop())

    def begin() -> None:
        resume()
        give_back()

    timer.time("pause", Timed(partial(paused.pause, "request", blocks), begin))
    begin()

    def pause() -> None:
        give_back()
        paused.pause("request", blocks)

    timer.time("resume", Timed(resume, pause))


def _time_hashing(timer: CallTimer, config: SystemsConfig) -> None:
    length = config.calls.prompt_tokens
    prompt = np.random.default_rng(config.seed).integers(0, 129_280, length).astype(np.int32)
    words = torch.from_numpy(prompt).long()
    for name in HASHES:
        hasher = BlockHasher(128, name)
        timer.time(
            f"hash {length:,} tokens, {name}",
            Timed(partial(hasher.digest, prompt)),
            Timed(partial(plain_hashes, words, 128)),
        )


def _time_index(timer: CallTimer, config: SystemsConfig) -> None:
    """An index of blocks by digests."""
    length = config.calls.prompt_tokens
    prompt = np.random.default_rng(config.seed).integers(0, 129_280, length).astype(np.int32)
    names = BlockHasher(128).digest(prompt).block_ids().tolist()
    index = PrefixTree(LRU(1 << 62), 1)
    blocks = {name: block for block, name in enumerate(names)}
    leases = [index.pin(names)]
    index.extend(leases[0], names, list(range(len(names))))

    def release() -> None:
        while leases:
            index.release(leases.pop())

    timer.time(
        f"pin {length:,} tokens by digests",
        Timed(lambda: leases.append(index.pin(names)), release),
        Timed(lambda: [blocks.get(name) for name in names]),
    )


def _time_routing(timer: CallTimer, num_layers: int) -> None:
    """Store the experts of 1,024 tokens in blocks of 128, and put them together again."""
    ours, plain = RoutingStore(128, num_layers, TOP_K), PlainRouting(128)
    flat = np.random.default_rng(0).integers(0, EXPERTS, (1024, num_layers, TOP_K))
    routing, ids = flat.astype(np.int16), np.arange(8)
    numbers = ids.tolist()
    timer.time(
        "store routing, 1,024 tokens",
        Timed(partial(ours.store_per_block, ids, routing)),
        Timed(partial(plain.store, numbers, routing)),
    )
    timer.time(
        "reconstruct routing, 1,024 tokens",
        Timed(partial(ours.reconstruct, ids, 1024)),
        Timed(partial(plain.reconstruct, numbers, 1024)),
    )
