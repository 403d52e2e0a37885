"""Blocks: requests of a batch share prefixes, pause where memory is short, resume, start again."""

import hashlib
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import get_args

import numpy as np
import xxhash
from numpy.typing import NDArray

from dsv4kv.bench.systems.workload import (
    EXPERTS,
    KV_WORDS,
    TOP_K,
    VOCABULARY,
    Chat,
    Kv,
    Model,
    Outcome,
    Tokens,
    Turn,
    Unit,
)
from dsv4kv.cache.batching import KVBlockAllocator
from dsv4kv.cache.blocks import NO_BLOCKS, NO_HASH, BlockEvent, Ids, Policy
from dsv4kv.config.experiments import SystemsConfig
from dsv4kv.errors import ConfigError

Keys = list[bytes]
"""Of a prompt's full blocks, 16 bytes each."""

LEAST_COMPUTED = 2
"""Tokens of a prompt that are computed however much of it is cached: one that was computed alone
would be taken for a decode step."""

# xxh3 is fast and made for accidents: across a trust boundary take one of the others.
HASHES: dict[str, Callable[[bytes], bytes]] = {
    "xxh3": xxhash.xxh3_128_digest,
    "blake2b": lambda data: hashlib.blake2b(data, digest_size=16).digest(),
    "sha256": lambda data: hashlib.sha256(data).digest()[:16],
}


def digest(
    tokens: NDArray[np.integer], block_tokens: int, before: Keys | None = None, name: str = "xxh3"
) -> Keys:
    """Keys of the full blocks of ``tokens``, each of all before it, too, after those of others.

    Tokens are whole numbers 0..2^31−1; an incomplete last block has no key.
    """
    whole = np.ascontiguousarray(tokens[: len(tokens) // block_tokens * block_tokens], np.int32)
    data, hash_, keys = whole.tobytes(), HASHES[name], list(before or ())
    key = keys[-1] if keys else hash_(b"")
    for at in range(0, len(data), 4 * block_tokens):
        key = hash_(key + data[at : at + 4 * block_tokens])
        keys.append(key)
    return keys


def names_of(keys: Keys) -> list[int]:
    """The first 64 bits of every key as int64, never 0 or −1: names for allocators."""
    ids = np.frombuffer(b"".join(keys), np.int64)[::2]
    names: list[int] = np.where((ids == 0) | (ids == -1), 2, ids).tolist()
    return names


def resumable_blocks(matched: int, prompt_tokens: int, block_tokens: int) -> int:
    """Max cached blocks a prompt may resume after, ``LEAST_COMPUTED`` tokens before its end."""
    return max(0, min(matched, (prompt_tokens - LEAST_COMPUTED) // block_tokens))


_COUNT = 64  # blocks of a timed call: 8,192 tokens at 128 a block


@dataclass(eq=False)
class Request:
    """A turn in the batch."""

    turn: Turn  # what is asked
    tokens: Tokens  # prompt and answer so far
    blocks: Ids = field(default_factory=NO_BLOCKS.copy)  # int64: its blocks in order
    written: int = 0  # tokens whose KV is in them
    keys: Keys = field(default_factory=list)  # of the full blocks that have been registered

    @property
    def answer_left(self) -> int:
        """Tokens still to be generated."""
        return len(self.turn.prompt) + self.turn.answer_tokens - len(self.tokens)


_COUNTED: dict[str, Unit] = {
    "prompt tokens reused": "tokens",
    "prompt tokens": "tokens",  # with those computed again after a preemption
    "requests deferred": "requests",  # a step for a prefix that another one was computing
    "requests paused": "requests",  # times a request could not cross the end of its last block
    "requests restarted": "requests",  # paused, then preempted: they lost their blocks
    "most kept by paused requests": "blocks",  # of theirs alone, between two steps
    "blocks handed out": "blocks",
    "blocks evicted": "blocks",
    "blocks registered": "blocks",
}
_EVENTS = {"acquired": "blocks handed out"}


class Batch:
    """Serves conversations; a step admits what fits and decodes a token of every request."""

    def __init__(
        self, config: SystemsConfig, model: Model, policy: Policy, outcome: Outcome
    ) -> None:
        """Allocate the pool; ``ConfigError`` if the longest conversation does not fit into it."""
        section, size = config.blocks, config.blocks.block_tokens
        # All ranks of a pipeline hold blocks of the same ids, so the least of them counts. In
        # unified memory paused requests keep their blocks next to the device's.
        total = min(section.rank_blocks) + (section.paused_blocks if section.unified else 0)
        longest = -(-config.chat.longest_tokens // size)
        if longest > total:
            raise ConfigError(
                f"a conversation of {config.chat.longest_tokens} tokens takes {longest} blocks "
                f"and there are {total}: raise blocks.rank_blocks, or shorten chat."
            )
        self._section, self._size, self._model = section, size, model
        shape = size, len(model.layers), TOP_K
        self.blocks = KVBlockAllocator(total + 1, section.paused_blocks, shape, policy)
        self.kv: Kv = np.zeros((total + 1, size, KV_WORDS), dtype=np.uint64)
        self.counts, self.outcome = Counter[str](), outcome
        self.blocks.pool.observers.append(self._count)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.finished: list[Request] = []

    def step(self) -> None:
        """One step; ``finished`` has what ended in it."""
        self.finished.clear()
        paused = self.blocks.paused
        for request, blocks in paused.resume():
            assert isinstance(request, Request)
            request.blocks = np.concatenate([request.blocks, blocks])
            self.running.append(request)
        self._admit()
        self._decode()
        evicted = paused.evict_over_budget()
        if not self.running and not evicted and len(paused) and not self.finished:
            evicted = [paused.evict_newest()]  # nobody is left who could give blocks back
        for each in evicted:
            assert isinstance(each, Request)
            self._preempt(each)
        self.counts["requests restarted"] += len(evicted)
        kept = "most kept by paused requests"
        self.counts[kept] = max(self.counts[kept], self.blocks.get_paused_used())

    def reset(self, *, preserve_prefix_cache: bool, preserve_counters: bool) -> None:
        """Take all blocks from all requests, which are recomputed."""
        asleep = [each for each in self.blocks.paused.forget() if isinstance(each, Request)]
        self.blocks.reset(preserve_prefix_cache=preserve_prefix_cache)
        for request in reversed([*self.running, *asleep]):
            self._preempt(request)
        self.running.clear()
        if not preserve_counters:
            self.counts.clear()

    def _count(self, event: BlockEvent) -> None:
        self.counts[_EVENTS.get(event.kind, f"blocks {event.kind}")] += event.ids.size

    def _preempt(self, request: Request) -> None:
        request.blocks, request.written, request.keys = NO_BLOCKS, 0, []
        self.waiting.appendleft(request)

    # ---- prompts --------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Start what fits, in order; who needs what another one computes now waits a step."""
        computing, deferred = set[int](), list[Request]()
        admitted = list[tuple[Request, Keys]]()
        while self.waiting and len(self.running) < self._section.requests:
            request = self.waiting.popleft()
            keys = digest(request.tokens, self._size)
            names = names_of(keys)
            matched = self.blocks.find_kv_blocks(names)
            if computing.intersection(names[len(matched) :]):
                self.blocks.update_timestamps(matched)  # so that they are there next time
                deferred.append(request)
            elif self._start(request, matched):
                computing.update(names)
                admitted.append((request, keys))
                self.running.append(request)
            else:
                self.waiting.appendleft(request)
                break
        self.counts["requests deferred"] += len(deferred)
        self.waiting.extendleft(reversed(deferred))
        for request, keys in admitted:
            self._write(request, len(request.tokens), keys)

    def _start(self, request: Request, matched: Ids) -> bool:
        tokens, size = len(request.tokens), self._size
        matched = matched[: resumable_blocks(len(matched), tokens, size)]
        own = self.blocks.allocate_memory_blocks(-(-tokens // size) - len(matched), matched)
        if own is None:
            return False
        request.blocks = np.concatenate([matched, own])
        request.written = len(matched) * size
        self.counts["prompt tokens"] += tokens
        self.counts["prompt tokens reused"] += request.written
        return True

    def _write(self, request: Request, end: int, keys: Keys) -> None:
        start, size = request.written, self._size
        tokens, places = request.tokens[start:end], np.arange(start, end)
        kv = self._model.compute(tokens, self._last(request) if start else None)
        self.kv[request.blocks[places // size], places % size] = kv
        experts = self._model.route(tokens, kv)
        self.blocks.store_routing_per_block(request.blocks[start // size :], experts)
        request.written = end
        self._register(request, keys, start // size)

    def _register(self, request: Request, keys: Keys, first: int) -> None:
        request.keys, names = keys, [NO_HASH, *names_of(keys)]
        blocks, parents = request.blocks[first : len(keys)], names[first : len(keys)]
        self.blocks.register_kv_block_hashes(blocks, names[first + 1 :], parents)

    def _last(self, request: Request) -> Kv:
        block, place = divmod(request.written - 1, self._size)
        last: Kv = self.kv[request.blocks[block], place]
        return last

    # ---- answers --------------------------------------------------------------------------------

    def _decode(self) -> None:
        """A token of every request; rows that pad the batch write into the dummy block."""
        self.running = ready = [request for request in self.running if self._has_room(request)]
        blocks = np.full(self._section.requests, self.blocks.dummy_block_idx)
        places = np.zeros(self._section.requests, dtype=np.int64)
        rows = np.zeros((self._section.requests, KV_WORDS), dtype=np.uint64)
        for number, request in enumerate(ready):
            last = self._last(request)
            token = self._model.next_token(last)
            request.tokens = np.concatenate([request.tokens, token])
            column, places[number] = divmod(request.written, self._size)
            blocks[number] = request.blocks[column]
            rows[number] = self._model.compute(token, last)[0]
        self.kv[blocks, places] = rows
        for number, request in enumerate(ready):
            experts = self._model.route(request.tokens[-1:], rows[number : number + 1])
            self.blocks.store_block_routing(int(blocks[number]), int(places[number]), experts)
            request.written += 1
            if request.written % self._size == 0:
                known, size = request.keys, self._size
                keys = digest(request.tokens[len(known) * size :], size, known)
                self._register(request, keys, len(known))
        for request in [request for request in ready if not request.answer_left]:
            self._finish(request)

    def _has_room(self, request: Request) -> bool:
        if request.written < len(request.blocks) * self._size:
            return True
        block = self.blocks.allocate_memory_blocks(1)
        if block is None:
            self.blocks.paused.pause(request, request.blocks)
            self.counts["requests paused"] += 1
            return False
        request.blocks = np.concatenate([request.blocks, block])
        return True

    def _finish(self, request: Request) -> None:
        turn, tokens, end = request.turn, request.tokens, request.written
        found = self.kv[request.blocks].reshape(-1, KV_WORDS)[:end]
        self.outcome.check_answer(self._model, turn, tokens, found)
        experts = self.blocks.reconstruct_routing_from_blocks(request.blocks, end)
        right = self._model.route(tokens, self._model.compute(tokens, None))
        equal = experts is not None and np.array_equal(experts, right)
        who = f"question {turn.number} of user {turn.user}"
        sentence = f"the routing of {who} is not its tokens'."
        self.outcome.check("routing", equal, sentence, end)
        self.blocks.release_memory_blocks(request.blocks)
        self.running.remove(request)
        self.finished.append(request)

    def _submit(self, turns: list[Turn]) -> None:
        self.waiting.extend(Request(turn, turn.prompt) for turn in turns)

    def serve(self, config: SystemsConfig) -> None:
        """Answer all questions; half-way there is a reset, if any is asked for."""
        chat, reset, answered = Chat(config.chat, config.seed), config.blocks.reset, 0
        half = config.chat.users * config.chat.turns // 2
        self._submit(chat.first())
        while self.waiting or self.running or len(self.blocks.paused):
            self.step()
            for request in self.finished:
                self._submit(chat.after(request.turn, request.tokens))
            before, answered = answered, answered + len(self.finished)
            if reset != "none" and before < half <= answered:
                self.reset(
                    preserve_prefix_cache=reset in ("prefix_cache", "both"),
                    preserve_counters=reset in ("counters", "both"),
                )
        pool, check = self.blocks.pool, self.outcome.check
        check("blocks", not pool.num_held, f"{pool.num_held} are still held at the end.")
        cached = pool.num_cached
        evictable = self.blocks.get_evictable_block_count() == cached
        gone = self.blocks.evict_lru_blocks(cached) and pool.num_unused == pool.num_blocks
        sentence = f"not all {cached} cached ones can be evicted."
        check("blocks", evictable and gone, sentence)


def run_blocks(config: SystemsConfig, model: Model) -> Outcome:
    """Serve the conversations by each policy, and time the calls."""
    outcome, chosen = Outcome("blocks", config.calls), config.blocks.policy
    for policy in get_args(Policy) if chosen == "both" else (chosen,):
        batch = Batch(config, model, policy, outcome)
        batch.serve(config)
        if policy != "ref_zero" or chosen == policy:
            outcome.counted("pool of KV", "B", batch.kv.nbytes)
        for quantity, unit in _COUNTED.items():
            outcome.counted(f"{policy}: {quantity}", unit, batch.counts[quantity])
    if config.calls.seconds:
        _time_blocks(outcome, config.calls.cached_blocks, len(model.layers))
        length, draw = config.calls.prompt_tokens, np.random.default_rng(config.seed)
        prompt = draw.integers(0, VOCABULARY, length).astype(np.int32)
        for name in HASHES:
            call = partial(digest, prompt, 128, name=name)
            outcome.timed(f"hash {length:,} tokens, {name}", call)
    return outcome


def _chain(blocks: KVBlockAllocator, count: int, first: int) -> Ids:
    """New blocks, registered as a chain with hashes from ``first`` on."""
    ids, hashes = blocks.allocate_memory_blocks(count), range(first, first + count)
    assert ids is not None
    blocks.register_kv_block_hashes(ids, hashes, [NO_HASH, *hashes[:-1]])
    return ids


def _time_blocks(outcome: Outcome, num_cached: int, num_layers: int) -> None:
    blocks = KVBlockAllocator(4096 + 1, _COUNT, (128, num_layers, TOP_K))
    numbers, held = iter(range(1, 2**62, _COUNT)), list[Ids]()

    def register() -> None:
        held.append(_chain(blocks, _COUNT, next(numbers)))

    def cache() -> None:
        while held:
            blocks.release_memory_blocks(held.pop())

    for _ in range(4096 // _COUNT):
        register()
        cache()
    outcome.timed(f"allocate {_COUNT}, evicting, and register", register, cache)
    cache()
    outcome.timed(f"release {_COUNT} into the cache", cache, register)
    register()
    chain, last = held[-1], next(numbers) - _COUNT
    cache()
    outcome.timed(f"find {_COUNT}", partial(blocks.find_kv_blocks, range(last, last + _COUNT)))

    def retain() -> None:
        blocks.retain_memory_blocks(chain)
        held.append(chain)

    outcome.timed(f"retain {_COUNT} cached", retain, cache)
    large = KVBlockAllocator(num_cached + 1, 0, (128, 1, TOP_K))
    large.release_memory_blocks(_chain(large, num_cached, 1))
    outcome.timed(f"evict 1 of {num_cached:,}", partial(large.evict_lru_blocks, 1))
    flat = np.random.default_rng(0).integers(0, EXPERTS, (1024, num_layers, TOP_K), np.int16)
    ids = _chain(blocks, 8, next(numbers))
    store = partial(blocks.store_routing_per_block, ids, flat)
    outcome.timed("store routing, 1,024 tokens", store)
    reconstruct = partial(blocks.reconstruct_routing_from_blocks, ids, 1024)
    outcome.timed("reconstruct routing, 1,024 tokens", reconstruct)
