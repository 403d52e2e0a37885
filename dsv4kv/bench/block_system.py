"""Blocks: requests of a batch share prefixes, pause where memory is short, resume, start again."""

from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from dsv4kv.bench import systems
from dsv4kv.bench.library import page_digests
from dsv4kv.cache.blocks import NO_BLOCKS, NO_HASH, BlockEvent, BlockPool, Ids, Policy
from dsv4kv.config.experiments import SystemsConfig
from dsv4kv.errors import CacheError, ConfigError

Routing = NDArray[np.int16]


class PausedRequests:
    """Paused requests, oldest first: the oldest resume first, the newest are evicted first."""

    def __init__(self, pool: BlockPool, budget_blocks: int) -> None:
        """``budget_blocks``: what paused requests may keep together."""
        if not 0 <= budget_blocks <= pool.num_blocks:
            raise ConfigError(
                f"paused requests cannot keep {budget_blocks} blocks of {pool.num_blocks}: "
                f"give 0..{pool.num_blocks}."
            )
        self._pool, self.budget = pool, budget_blocks
        self._paused: dict[Any, tuple[Ids, int]] = {}  # blocks, and how many are missing

    def __len__(self) -> int:
        return len(self._paused)

    def pause(self, request: Hashable, ids: Ids, missing: int = 1) -> None:
        """Pause a request that holds ``ids`` and needs ``missing`` blocks to go on."""
        if request in self._paused:
            raise CacheError(f"request {request} is paused already. Nothing was changed.")
        self._pool.check_held(np.unique(ids))
        self._paused[request] = ids.copy(), missing

    def resume(self) -> list[tuple[Any, Ids]]:
        """Resume those that memory allows, oldest first; none overtakes an older one.

        Returns each request with the blocks it was missing, already taken for it.
        """
        return [
            (request, self._pool.acquire(self._paused.pop(request)[1]))
            for request in list(islice(self._paused, self._num_able()))
        ]

    def evict_over_budget(self) -> list[Any]:
        """Take the blocks of the newest paused requests, no more of them than it takes.

        What they give back lets the oldest resume, which is left to ``resume``; the budget is for
        those that still cannot.
        """
        evicted = list[Any]()
        while self._paused and self._held_alone(self._num_able()) > self.budget:
            evicted.append(self.evict_newest())
        return evicted

    def evict_newest(self) -> Any:
        if not self._paused:
            raise CacheError("no request is paused. Nothing was changed.")
        request, (ids, _) = self._paused.popitem()
        self._pool.release(ids)
        return request

    def forget(self) -> list[Any]:
        """Forget all of them, oldest first: a reset takes their blocks."""
        paused, self._paused = self._paused, {}
        return list(paused)

    @property
    def num_held(self) -> int:
        """Blocks that paused requests alone hold, each counted once however many share it."""
        return self._held_alone(0)

    def _num_able(self) -> int:
        needed = accumulate(missing for _, missing in self._paused.values())
        return sum(blocks <= self._pool.num_free for blocks in needed)

    def _held_alone(self, first: int) -> int:
        """Blocks that no other request holds than the paused ones from the ``first`` on."""
        held = [ids for ids, _ in islice(self._paused.values(), first, None)]
        blocks, times = np.unique(np.concatenate([*held, NO_BLOCKS]), return_counts=True)
        return int(np.count_nonzero(self._pool.refs(blocks) == times))


class RoutingStore:
    """Which experts were chosen for the tokens of every block: kept as long as its content is.

    Indices are int16[tokens, layers, top_k]. The dummy block and free blocks have none.
    """

    def __init__(self, pool: BlockPool, block_tokens: int, num_layers: int, top_k: int) -> None:
        self.block_tokens = block_tokens
        self._pool, self._shape = pool, (num_layers, top_k)
        self._blocks: dict[int, tuple[Routing, NDArray[np.bool_]]] = {}
        pool.on_freed = self._drop

    def store(self, ids: Ids, routing: Routing, first: int = 0) -> None:
        """Store indices of consecutive tokens, the first at place ``first`` of ``ids[0]``.

        Raises:
            ConfigError: Another shape, or more tokens than fit into the blocks.
        """
        routing, size = np.asarray(routing), self.block_tokens
        if routing.shape[1:] != self._shape:
            raise ConfigError(f"routing must have shape (n, {self._shape}), not {routing.shape}.")
        if first < 0 or first + len(routing) > len(ids) * size:
            raise ConfigError(
                f"{len(routing)} tokens from place {first} on do not fit into {len(ids)} blocks "
                f"of {size}."
            )
        places = np.arange(first, first + len(routing))
        for number in dict.fromkeys((places // size).tolist()):
            block, some = int(ids[number]), places // size == number
            if block >= self._pool.num_blocks or not self._pool.has_content(block):
                continue
            if block not in self._blocks:
                indices = np.zeros((size, *self._shape), dtype=np.int16)
                self._blocks[block] = indices, np.zeros(size, dtype=np.bool_)
            indices, known = self._blocks[block]
            indices[places[some] % size], known[places[some] % size] = routing[some], True

    def of_block(self, block: int) -> Routing | None:
        """Copy of the indices of a block's tokens up to the first unknown; None without any."""
        if block not in self._blocks:
            return None
        indices, known = self._blocks[block]
        count = len(known) if known.all() else int(known.argmin())
        return indices[:count].copy() if count else None

    def reconstruct(self, ids: Ids, total: int) -> Routing | None:
        """Indices of the first ``total`` tokens of a chain of blocks; None if one misses."""
        parts = [np.zeros((0, *self._shape), dtype=np.int16)]
        for number in range(-(-total // self.block_tokens)):
            part = self.of_block(int(ids[number])) if number < len(ids) else None
            wanted = min(self.block_tokens, total - number * self.block_tokens)
            if part is None or len(part) < wanted:
                return None
            parts.append(part[:wanted])
        return np.concatenate(parts)

    def _drop(self, ids: Ids) -> None:
        for block in ids.tolist() if self._blocks else ():
            self._blocks.pop(block, None)


class KVBlockAllocator:
    """Blocks 0..N−1, the last a dummy for padding rows, with paused requests and routing."""

    def __init__(
        self,
        total_blocks: int,
        paused_blocks: int,
        routing_shape: tuple[int, int, int],
        policy: Policy = "lru",
    ) -> None:
        """``routing_shape``: tokens of a block, layers, experts of a token."""
        self.pool = pool = BlockPool(total_blocks - 1, policy=policy)
        self.paused = PausedRequests(pool, paused_blocks)
        self.routing = RoutingStore(pool, *routing_shape)
        self.dummy_block_idx = pool.num_blocks
        self.reset = pool.reset
        self.allocate_memory_blocks = pool.allocate
        self.retain_memory_blocks = pool.retain
        self.release_memory_blocks = pool.release
        self.register_kv_block_hashes = pool.register
        self.find_kv_blocks = pool.find
        self.update_timestamps = pool.touch
        self.evict_lru_blocks = pool.evict
        self.store_routing_per_block = self.routing.store
        self.get_block_routing = self.routing.of_block
        self.reconstruct_routing_from_blocks = self.routing.reconstruct

    def is_memory_available(self, count: int, potential_matched_count: int = 0) -> bool:
        """Whether ``count`` blocks can be had if matched cached ones are retained."""
        return 0 <= count <= self.pool.num_free - max(potential_matched_count, 0)

    def get_evictable_block_count(self) -> int:
        """Cached blocks that no held one follows."""
        return self.pool.num_evictable

    def get_total_used(self) -> int:
        return self.pool.num_held

    def get_active_used(self) -> int:
        """Blocks that running requests hold, alone or with others."""
        return self.pool.num_held - self.paused.num_held

    def get_paused_used(self) -> int:
        """Blocks that paused requests alone hold."""
        return self.paused.num_held

    def get_paused_avail(self) -> int:
        """What is left of the paused requests' budget; negative beyond it."""
        return self.paused.budget - self.paused.num_held

    def get_active_avail(self) -> int:
        """Blocks that running requests may take once paused ones have used up their budget."""
        return max(self.pool.num_free - max(self.get_paused_avail(), 0), 0)

    def store_block_routing(self, block: int, position: int, routing: Routing) -> None:
        """Store experts int16[n, L, k] of tokens of one block, from ``position`` on."""
        self.routing.store(np.array([block]), routing, position)


LEAST_COMPUTED = 2
"""Tokens of a prompt that are computed however much of it is cached: one that was computed alone
would be taken for a decode step."""


def names_of(tokens: systems.Tokens, block_tokens: int) -> list[int]:
    """Names of the full blocks of ``tokens`` for allocators, each of all before it, too.

    The first 64 bits of SGLang's page hash as int64, never 0 or −1.
    """
    ids = np.frombuffer(b"".join(page_digests(tokens, block_tokens)), np.int64)[::4]
    names: list[int] = np.where((ids == 0) | (ids == -1), 2, ids).tolist()
    return names


def resumable_blocks(matched: int, prompt_tokens: int, block_tokens: int) -> int:
    """Max cached blocks a prompt may resume after, ``LEAST_COMPUTED`` tokens before its end."""
    return max(0, min(matched, (prompt_tokens - LEAST_COMPUTED) // block_tokens))


@dataclass(eq=False)
class Request:
    """A turn in the batch."""

    turn: systems.Turn
    tokens: systems.Tokens  # prompt and answer so far
    blocks: Ids = field(default_factory=NO_BLOCKS.copy)  # in order
    written: int = 0  # tokens whose KV is in them


_COUNTED: dict[str, systems.Unit] = {
    "prompt tokens reused": "tokens",
    "prompt tokens": "tokens",  # with those computed again after a preemption
    "requests deferred": "requests",  # a step for a prefix that another one was computing
    "requests paused": "requests",  # times a request could not cross the end of its last block
    "requests restarted": "requests",  # paused, then preempted: they lost their blocks
    "max blocks of paused requests": "blocks",  # of theirs alone, between two steps
    "blocks handed out": "blocks",
    "blocks evicted": "blocks",
    "blocks registered": "blocks",
}


class Batch:
    """Serves conversations; a step admits what fits and decodes a token of every request."""

    def __init__(
        self, config: SystemsConfig, model: systems.Model, policy: Policy, outcome: systems.Outcome
    ) -> None:
        section, size = config.blocks, config.blocks.block_tokens
        total = section.total_blocks
        self._section, self._size, self._model = section, size, model
        shape = size, len(model.layers), systems.TOP_K
        self.blocks = KVBlockAllocator(total + 1, section.paused_blocks, shape, policy)
        self.kv: systems.Kv = np.zeros((total + 1, size, systems.KV_WORDS), dtype=np.uint64)
        self.counts, self.outcome = Counter[str](), outcome
        self.blocks.pool.observers.append(self._count)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def step(self) -> list[Request]:
        """One step; returns what ended in it."""
        paused = self.blocks.paused
        for request, blocks in paused.resume():
            request.blocks = np.concatenate([request.blocks, blocks])
            self.running.append(request)
        self._admit()
        finished = self._decode()
        evicted = paused.evict_over_budget()
        if not self.running and not evicted and len(paused) and not finished:
            evicted = [paused.evict_newest()]  # nobody is left who could give blocks back
        for each in evicted:
            self._preempt(each)
        self.counts["requests restarted"] += len(evicted)
        kept = "max blocks of paused requests"
        self.counts[kept] = max(self.counts[kept], self.blocks.get_paused_used())
        return finished

    def reset(self, preserved: str) -> None:
        """Take all blocks from all requests, which are recomputed."""
        asleep = self.blocks.paused.forget()
        self.blocks.reset(preserve_prefix_cache=preserved in ("prefix_cache", "both"))
        for request in reversed([*self.running, *asleep]):
            self._preempt(request)
        self.running.clear()
        if preserved not in ("counters", "both"):
            self.counts.clear()

    def _count(self, event: BlockEvent) -> None:
        kind = "handed out" if event.kind == "acquired" else event.kind
        self.counts[f"blocks {kind}"] += event.ids.size

    def _preempt(self, request: Request) -> None:
        request.blocks, request.written = NO_BLOCKS, 0
        self.waiting.appendleft(request)

    # ---- prompts --------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Start what fits, in order; who needs what another one computes now waits a step."""
        computing, deferred = set[int](), list[Request]()
        admitted = list[tuple[Request, list[int]]]()
        while self.waiting and len(self.running) < self._section.requests:
            request = self.waiting.popleft()
            names = names_of(request.tokens, self._size)
            matched = self.blocks.find_kv_blocks(names)
            if computing.intersection(names[len(matched) :]):
                self.blocks.update_timestamps(matched)  # so that they are there next time
                deferred.append(request)
            elif self._start(request, matched):
                computing.update(names)
                admitted.append((request, names))
                self.running.append(request)
            else:
                self.waiting.appendleft(request)
                break
        self.counts["requests deferred"] += len(deferred)
        self.waiting.extendleft(reversed(deferred))
        for request, names in admitted:
            start, size, end = request.written, self._size, len(request.tokens)
            tokens, places = request.tokens[start:], np.arange(start, end)
            kv = self._model.compute(tokens, self._last(request) if start else None)
            self.kv[request.blocks[places // size], places % size] = kv
            experts = self._model.route(tokens, kv)
            self.blocks.store_routing_per_block(request.blocks[start // size :], experts)
            request.written = end
            self._register(request, names, start // size)

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

    def _register(self, request: Request, names: list[int], first: int) -> None:
        blocks, parents = request.blocks[first : len(names)], [NO_HASH, *names][first:-1]
        self.blocks.register_kv_block_hashes(blocks, names[first:], parents)

    def _last(self, request: Request) -> systems.Kv:
        block, place = divmod(request.written - 1, self._size)
        last: systems.Kv = self.kv[request.blocks[block], place]
        return last

    # ---- answers --------------------------------------------------------------------------------

    def _decode(self) -> list[Request]:
        """A token of every request; rows that pad the batch write into the dummy block."""
        size, model = self._size, self._model
        self.running = ready = [request for request in self.running if self._has_room(request)]
        blocks = np.full(self._section.requests, self.blocks.dummy_block_idx)
        places = np.zeros(self._section.requests, dtype=np.int64)
        rows = np.zeros((self._section.requests, systems.KV_WORDS), dtype=np.uint64)
        for number, request in enumerate(ready):
            last = self._last(request)
            token = model.next_token(last)
            request.tokens = np.concatenate([request.tokens, token])
            column, places[number] = divmod(request.written, size)
            blocks[number] = request.blocks[column]
            rows[number] = model.compute(token, last)[0]
        self.kv[blocks, places] = rows
        for number, request in enumerate(ready):
            experts = model.route(request.tokens[-1:], rows[number : number + 1])
            self.blocks.store_block_routing(int(blocks[number]), int(places[number]), experts)
            request.written += 1
            if request.written % size == 0:
                names = names_of(request.tokens[: request.written], size)
                self._register(request, names, len(names) - 1)
        ended = [r for r in ready if len(r.tokens) == len(r.turn.prompt) + r.turn.answer_tokens]
        for request in ended:
            self._finish(request)
        return ended

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
        found = self.kv[request.blocks].reshape(-1, systems.KV_WORDS)[:end]
        self.outcome.check_answer(self._model, turn, tokens, found)
        experts = self.blocks.reconstruct_routing_from_blocks(request.blocks, end)
        right = self._model.route(tokens, self._model.compute(tokens, None))
        equal = experts is not None and np.array_equal(experts, right)
        sentence = f"question {turn.number} of user {turn.user} has other tokens' routing."
        self.outcome.check("routing", equal, sentence, end)
        self.blocks.release_memory_blocks(request.blocks)
        self.running.remove(request)

    def serve(self, config: SystemsConfig) -> None:
        """Answer all questions; half-way there is a reset, if any is asked for."""
        chat, reset, answered = systems.Chat(config.chat, config.seed), config.blocks.reset, 0
        half, turns = config.chat.users * config.chat.turns // 2, chat.join(config.chat.begin)
        while turns or self.waiting or self.running or len(self.blocks.paused):
            self.waiting.extend(Request(turn, turn.prompt) for turn in turns)
            ended = self.step()
            turns = [turn for each in ended for turn in chat.after(each.turn, each.tokens)]
            before, answered = answered, answered + len(ended)
            if reset != "none" and before < half <= answered:
                self.reset(reset)
        pool, check = self.blocks.pool, self.outcome.check
        check("blocks", not pool.num_held, f"{pool.num_held} are still held at the end.")
        cached = pool.num_cached
        evictable = self.blocks.get_evictable_block_count() == cached
        gone = self.blocks.evict_lru_blocks(cached) and pool.num_unused == pool.num_blocks
        check("blocks", evictable and gone, f"not all {cached} cached ones can be evicted.")


def run_blocks(config: SystemsConfig, model: systems.Model) -> systems.Outcome:
    outcome, chosen = systems.Outcome("blocks"), config.blocks.policy
    for policy in get_args(Policy) if chosen == "both" else (chosen,):
        batch = Batch(config, model, policy, outcome)
        batch.serve(config)
        if policy != "ref_zero" or chosen == policy:
            outcome.counted("pool of KV", "B", batch.kv.nbytes)
        for quantity, unit in _COUNTED.items():
            outcome.counted(f"{policy}: {quantity}", unit, batch.counts[quantity])
    return outcome
