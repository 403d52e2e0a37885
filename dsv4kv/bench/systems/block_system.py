"""Blocks: requests of a batch share prefixes, pause where memory is short, resume, start again."""

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import get_args

import numpy as np

from dsv4kv.bench.systems import workload as wl
from dsv4kv.bench.tiers.library import page_digests
from dsv4kv.cache.batching import KVBlockAllocator
from dsv4kv.cache.blocks import NO_BLOCKS, NO_HASH, BlockEvent, Ids, Policy
from dsv4kv.config.experiments import SystemsConfig

LEAST_COMPUTED = 2
"""Tokens of a prompt that are computed however much of it is cached: one that was computed alone
would be taken for a decode step."""


def names_of(tokens: wl.Tokens, block_tokens: int) -> list[int]:
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

    turn: wl.Turn
    tokens: wl.Tokens  # prompt and answer so far
    blocks: Ids = field(default_factory=NO_BLOCKS.copy)  # in order
    written: int = 0  # tokens whose KV is in them


_COUNTED: dict[str, wl.Unit] = {
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
        self, config: SystemsConfig, model: wl.Model, policy: Policy, outcome: wl.Outcome
    ) -> None:
        section, size = config.blocks, config.blocks.block_tokens
        total = section.total_blocks
        self._section, self._size, self._model = section, size, model
        shape = size, len(model.layers), wl.TOP_K
        self.blocks = KVBlockAllocator(total + 1, section.paused_blocks, shape, policy)
        self.kv: wl.Kv = np.zeros((total + 1, size, wl.KV_WORDS), dtype=np.uint64)
        self.counts, self.outcome = Counter[str](), outcome
        self.blocks.pool.observers.append(self._count)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def step(self) -> list[Request]:
        """One step; returns what ended in it."""
        paused = self.blocks.paused
        for request, blocks in paused.resume():
            assert isinstance(request, Request)
            request.blocks = np.concatenate([request.blocks, blocks])
            self.running.append(request)
        self._admit()
        finished = self._decode()
        evicted = paused.evict_over_budget()
        if not self.running and not evicted and len(paused) and not finished:
            evicted = [paused.evict_newest()]  # nobody is left who could give blocks back
        for each in evicted:
            assert isinstance(each, Request)
            self._preempt(each)
        self.counts["requests restarted"] += len(evicted)
        kept = "max blocks of paused requests"
        self.counts[kept] = max(self.counts[kept], self.blocks.get_paused_used())
        return finished

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

    def _last(self, request: Request) -> wl.Kv:
        block, place = divmod(request.written - 1, self._size)
        last: wl.Kv = self.kv[request.blocks[block], place]
        return last

    # ---- answers --------------------------------------------------------------------------------

    def _decode(self) -> list[Request]:
        """A token of every request; rows that pad the batch write into the dummy block."""
        size, model = self._size, self._model
        self.running = ready = [request for request in self.running if self._has_room(request)]
        blocks = np.full(self._section.requests, self.blocks.dummy_block_idx)
        places = np.zeros(self._section.requests, dtype=np.int64)
        rows = np.zeros((self._section.requests, wl.KV_WORDS), dtype=np.uint64)
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
        found = self.kv[request.blocks].reshape(-1, wl.KV_WORDS)[:end]
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
        chat, reset, answered = wl.Chat(config.chat, config.seed), config.blocks.reset, 0
        half, turns = config.chat.users * config.chat.turns // 2, chat.join(config.chat.begin)
        while turns or self.waiting or self.running or len(self.blocks.paused):
            self.waiting.extend(Request(turn, turn.prompt) for turn in turns)
            ended = self.step()
            turns = [turn for each in ended for turn in chat.after(each.turn, each.tokens)]
            before, answered = answered, answered + len(ended)
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
        check("blocks", evictable and gone, f"not all {cached} cached ones can be evicted.")


def run_blocks(config: SystemsConfig, model: wl.Model) -> wl.Outcome:
    """Serve the conversations by each policy."""
    outcome, chosen = wl.Outcome("blocks"), config.blocks.policy
    for policy in get_args(Policy) if chosen == "both" else (chosen,):
        batch = Batch(config, model, policy, outcome)
        batch.serve(config)
        if policy != "ref_zero" or chosen == policy:
            outcome.counted("pool of KV", "B", batch.kv.nbytes)
        for quantity, unit in _COUNTED.items():
            outcome.counted(f"{policy}: {quantity}", unit, batch.counts[quantity])
    return outcome
