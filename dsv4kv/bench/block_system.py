"""Blocks: requests of a batch share prefixes, pause where memory is short, resume, start again."""

from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import islice
from typing import get_args

import numpy as np

from dsv4kv.bench import systems
from dsv4kv.bench.library import page_digests
from dsv4kv.cache.blocks import NO_BLOCKS, NO_HASH, BlockEvent, BlockPool, Ids, Policy
from dsv4kv.config.experiments import SystemsConfig

LEAST_COMPUTED = 2
"""Tokens of a prompt that are computed however much of it is cached: one that was computed alone
would be taken for a decode step."""
_UNKNOWN = -1  # in place of an expert


def names_of(tokens: systems.Tokens, block_tokens: int) -> list[int]:
    """Names of the full blocks of ``tokens`` for the pool, each of all before it, too.

    The first 64 bits of SGLang's page hash as int64, never 0 or −1.
    """
    ids = np.frombuffer(b"".join(page_digests(tokens, block_tokens)), np.int64)[::4]
    names: list[int] = np.where((ids == 0) | (ids == -1), 2, ids).tolist()
    return names


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
    """Serves conversations; a step admits what fits and decodes a token of every request.

    ``kv`` uint64[N + 1, block_tokens, words] and ``experts`` int16[N, block_tokens, layers, k]
    are of the pool's N blocks; rows that pad the batch write into one more. Experts are known as
    long as their block has content.
    """

    def __init__(
        self, config: SystemsConfig, model: systems.Model, policy: Policy, outcome: systems.Outcome
    ) -> None:
        section, size = config.blocks, config.blocks.block_tokens
        total, words = section.total_blocks, systems.KV_WORDS
        self._section, self._size, self._model, self.outcome = section, size, model, outcome
        self.pool = BlockPool(total, policy=policy)
        self.kv: systems.Kv = np.zeros((total + 1, size, words), dtype=np.uint64)
        shape = total, size, len(model.layers), systems.TOP_K
        self.experts = np.full(shape, _UNKNOWN, dtype=np.int16)
        self.pool.on_freed = self._forget
        self.counts = Counter[str]()
        self.pool.observers.append(self._count)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.paused: deque[Request] = deque()  # oldest first; each lacks a block

    def step(self) -> list[Request]:
        """One step; returns what ended in it."""
        while self.paused and self.pool.num_free:  # the oldest first; none overtakes an older one
            self._grow(self.paused[0])
            self.running.append(self.paused.popleft())
        self._admit()
        finished = self._decode()
        restarted = self.restart_paused()
        if self.paused and not (self.running or restarted or finished):
            self._restart_newest()  # nobody is left who could give blocks back
        kept = "max blocks of paused requests"
        self.counts[kept] = max(self.counts[kept], self.held_by_paused())
        return finished

    def restart_paused(self) -> int:
        """Take the blocks of the newest paused requests that are over the budget; how many.

        No more of them than it takes. What they give back lets the oldest resume in the next
        step; the budget is for those that still cannot.
        """
        before = len(self.paused)
        while self.paused and (
            self.held_by_paused(self.pool.num_free) > self._section.paused_blocks
        ):
            self._restart_newest()
        return before - len(self.paused)

    def held_by_paused(self, first: int = 0) -> int:
        """Blocks that nobody holds but the paused requests from the ``first`` on, each once."""
        held = [request.blocks for request in islice(self.paused, first, None)]
        blocks, times = np.unique(np.concatenate([*held, NO_BLOCKS]), return_counts=True)
        return int(np.count_nonzero(self.pool.refs(blocks) == times))

    def reset(self, preserved: str) -> None:
        """Take all blocks from all requests, which are recomputed."""
        self.pool.reset(preserve_prefix_cache=preserved in ("prefix_cache", "both"))
        for request in reversed([*self.running, *self.paused]):
            self._preempt(request)
        self.running.clear()
        self.paused.clear()
        if preserved not in ("counters", "both"):
            self.counts.clear()

    def _count(self, event: BlockEvent) -> None:
        kind = "handed out" if event.kind == "acquired" else event.kind
        self.counts[f"blocks {kind}"] += event.ids.size

    def _forget(self, ids: Ids) -> None:
        self.experts[ids] = _UNKNOWN

    def _restart_newest(self) -> None:
        request = self.paused.pop()
        self.pool.release(request.blocks)
        self._preempt(request)
        self.counts["requests restarted"] += 1

    def _preempt(self, request: Request) -> None:
        request.blocks, request.written = NO_BLOCKS, 0
        self.waiting.appendleft(request)

    def _grow(self, request: Request) -> None:
        request.blocks = np.concatenate([request.blocks, self.pool.acquire(1)])

    # ---- prompts --------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Start what fits, in order; who needs what another one computes now waits a step."""
        computing, deferred = set[int](), list[Request]()
        admitted = list[tuple[Request, list[int]]]()
        while self.waiting and len(self.running) < self._section.requests:
            request = self.waiting.popleft()
            names = names_of(request.tokens, self._size)
            matched = self.pool.find(names)
            if computing.intersection(names[len(matched) :]):
                self.pool.touch(matched)  # so that they are there next time
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
            start = request.written
            self._compute(request)
            self._register(request, names, start // self._size)

    def _start(self, request: Request, matched: Ids) -> bool:
        tokens, size = len(request.tokens), self._size
        matched = matched[: max(0, (tokens - LEAST_COMPUTED) // size)]
        own = self.pool.allocate(-(-tokens // size) - len(matched), matched)
        if own is None:
            return False
        request.blocks = np.concatenate([matched, own])
        request.written = len(matched) * size
        self.counts["prompt tokens"] += tokens
        self.counts["prompt tokens reused"] += request.written
        return True

    def _compute(self, request: Request) -> None:
        """Write KV and experts of the tokens that are not written yet."""
        start, end = request.written, len(request.tokens)
        tokens, places = request.tokens[start:], np.arange(start, end)
        kv = self._model.compute(tokens, self._last(request) if start else None)
        where = request.blocks[places // self._size], places % self._size
        self.kv[where], self.experts[where] = kv, self._model.route(tokens, kv)
        request.written = end

    def _register(self, request: Request, names: list[int], first: int) -> None:
        blocks, parents = request.blocks[first : len(names)], [NO_HASH, *names][first:-1]
        self.pool.register(blocks, names[first:], parents)

    def _last(self, request: Request) -> systems.Kv:
        block, place = divmod(request.written - 1, self._size)
        last: systems.Kv = self.kv[request.blocks[block], place]
        return last

    # ---- answers --------------------------------------------------------------------------------

    def _decode(self) -> list[Request]:
        """A token of every request; rows that pad the batch write into the dummy block."""
        size, model, rows = self._size, self._model, self._section.requests
        self.running = ready = [request for request in self.running if self._has_room(request)]
        blocks, places = np.full(rows, self.pool.num_blocks), np.zeros(rows, dtype=np.int64)
        tokens = np.zeros(rows, dtype=np.int32)
        kv = np.zeros((rows, systems.KV_WORDS), dtype=np.uint64)
        for number, request in enumerate(ready):
            last = self._last(request)
            token = model.next_token(last)
            request.tokens = np.concatenate([request.tokens, token])
            column, places[number] = divmod(request.written, size)
            blocks[number], tokens[number] = request.blocks[column], token[0]
            kv[number] = model.compute(token, last)[0]
        self.kv[blocks, places] = kv
        own = slice(len(ready))
        self.experts[blocks[own], places[own]] = model.route(tokens[own], kv[own])
        for request in ready:
            request.written += 1
            if request.written % size == 0:
                names = names_of(request.tokens[: request.written], size)
                self._register(request, names, len(names) - 1)
        ended = [r for r in ready if len(r.tokens) == len(r.turn.prompt) + r.turn.answer_tokens]
        for request in ended:
            self._finish(request)
        return ended

    def _has_room(self, request: Request) -> bool:
        """Whether a request can write a token; it is paused if not."""
        if request.written < len(request.blocks) * self._size:
            return True
        if self.pool.num_free:
            self._grow(request)
            return True
        self.paused.append(request)
        self.counts["requests paused"] += 1
        return False

    def _finish(self, request: Request) -> None:
        turn, tokens, end = request.turn, request.tokens, request.written
        kv, experts = self.kv[request.blocks], self.experts[request.blocks]
        found = kv.reshape(-1, systems.KV_WORDS)[:end]
        self.outcome.check_answer(self._model, turn, tokens, found)
        right = self._model.route(tokens, self._model.compute(tokens, None))
        equal = np.array_equal(experts.reshape(-1, *right.shape[1:])[:end], right)
        sentence = f"question {turn.number} of user {turn.user} has other tokens' routing."
        self.outcome.check("routing", equal, sentence, end)
        self.pool.release(request.blocks)
        self.running.remove(request)

    def serve(self, config: SystemsConfig) -> None:
        """Answer all questions; half-way there is a reset, if any is asked for."""
        chat, reset, answered = systems.Chat(config.chat, config.seed), config.blocks.reset, 0
        half, turns = config.chat.users * config.chat.turns // 2, chat.join(config.chat.begin)
        while turns or self.waiting or self.running or self.paused:
            self.waiting.extend(Request(turn, turn.prompt) for turn in turns)
            ended = self.step()
            turns = [turn for each in ended for turn in chat.after(each.turn, each.tokens)]
            before, answered = answered, answered + len(ended)
            if reset != "none" and before < half <= answered:
                self.reset(reset)
        pool, check = self.pool, self.outcome.check
        check("blocks", not pool.num_held, f"{pool.num_held} are still held at the end.")
        cached = pool.num_cached
        gone = pool.evict(cached) and pool.num_unused == pool.num_blocks
        check("blocks", gone, f"not all {cached} cached ones can be evicted.")


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
