"""A batch over blocks with several holders: shares prefixes, pauses, resumes, preempts."""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from dsv4kv.cache.allocators.paused import BlockBudget, PausedRequests, common_budget
from dsv4kv.cache.allocators.refcount import NO_BLOCKS, BlockTotals, RefCountAllocator
from dsv4kv.cache.allocators.routing import RoutingStore
from dsv4kv.cache.allocators.stack import Ids
from dsv4kv.cache.allocators.states import NO_HASH, ReleasePolicy
from dsv4kv.config.systems import BlocksSection, ChatSection
from dsv4kv.errors import ConfigError
from dsv4kv.prefix.hashing import BlockHasher, Digests, resumable_blocks
from dsv4kv.systems.chat import Chat, Turn, generate
from dsv4kv.systems.contents import KV_WORDS, TOP_K, Kv, Model, Tokens
from dsv4kv.systems.outcome import Checks


@dataclass(eq=False)
class Request:
    """A turn in the batch.

    Attributes:
        turn: What is asked.
        tokens: Prompt and answer so far.
        blocks: int64: its blocks in order.
        written: Tokens whose KV is in them.
        digests: Keys of the full blocks that have been registered.
    """

    turn: Turn
    tokens: Tokens
    blocks: Ids = field(default_factory=NO_BLOCKS.copy)
    written: int = 0
    digests: Digests | None = None

    @property
    def answer_left(self) -> int:
        """Tokens still to be generated."""
        return len(self.turn.prompt) + self.turn.answer_tokens - len(self.tokens)


@dataclass
class BatchCounts:
    """What happened, since the start or a reset of the counters.

    Attributes:
        prompt_tokens: Tokens of prompts, with those computed again after a preemption.
        reused: Those of them that were cached.
        deferred: Times a request waited a step for a prefix that another one was computing.
        paused: Times a request could not cross the end of its last block.
        restarted: Requests that were paused, then preempted: they lost their blocks.
        kept_blocks: Most blocks that paused requests alone held between two steps.
    """

    prompt_tokens: int = 0
    reused: int = 0
    deferred: int = 0
    paused: int = 0
    restarted: int = 0
    kept_blocks: int = 0


class Batch:
    """Serves conversations; a step admits what fits and decodes a token of every request.

    Attributes:
        allocator: The blocks.
        counts: What happened.
        totals: What happened to blocks.
        checks: Answers, KV and routing compared with what they are without a cache.
    """

    def __init__(
        self, section: BlocksSection, chat: ChatSection, model: Model, policy: ReleasePolicy
    ) -> None:
        """Allocate the pool; ``ConfigError`` if the longest conversation does not fit into it."""
        budget = common_budget(
            [BlockBudget(n, section.paused_blocks) for n in section.rank_blocks]
        )
        blocks, size = budget.pool_blocks(unified=section.unified), section.block_tokens
        longest = -(-chat.longest_tokens // size)
        if longest > blocks:
            raise ConfigError(
                f"a conversation of {chat.longest_tokens} tokens takes {longest} blocks and there "
                f"are {blocks}: raise blocks.rank_blocks, or shorten chat."
            )
        self._section, self._size, self._model = section, size, model
        routing = RoutingStore(size, len(model.layers), TOP_K)
        self.routing = routing
        self.allocator = RefCountAllocator(blocks + 1, policy, routing)  # and the dummy
        self.paused = PausedRequests(self.allocator, budget.paused)
        self.kv: Kv = np.zeros((blocks + 1, size, KV_WORDS), dtype=np.uint64)
        self.counts, self.checks, self.totals = BatchCounts(), Checks(), BlockTotals()
        self.allocator.observers.add(self.totals)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.finished: list[Request] = []
        self._hasher = BlockHasher(size)

    def submit(self, turns: list[Turn]) -> None:
        """Queue turns."""
        self.waiting.extend(Request(turn, turn.prompt) for turn in turns)

    def step(self) -> None:
        """One step; ``finished`` has what ended in it."""
        self.finished.clear()
        for request, blocks in self.paused.resume():
            assert isinstance(request, Request)
            request.blocks = np.concatenate([request.blocks, blocks])
            self.running.append(request)
        self._admit()
        self._decode()
        evicted = self.paused.evict_over_budget()
        if not self.running and not evicted and len(self.paused) and not self.finished:
            evicted = [self.paused.evict_newest()]  # nobody is left who could give blocks back
        for each in evicted:
            assert isinstance(each, Request)
            self.counts.restarted += 1
            self._preempt(each)
        kept = self.paused.counts().paused_used
        self.counts.kept_blocks = max(self.counts.kept_blocks, kept)

    def reset(self, *, preserve_prefix_cache: bool, preserve_counters: bool) -> None:
        """Take all blocks from all requests, which are recomputed."""
        asleep = [request for request in self.paused.forget() if isinstance(request, Request)]
        self.allocator.reset(preserve_prefix_cache=preserve_prefix_cache)
        for request in reversed([*self.running, *asleep]):
            self._preempt(request)
        self.running.clear()
        if not preserve_counters:
            self.counts = BatchCounts()
            self.totals.clear()

    def _preempt(self, request: Request) -> None:
        request.blocks, request.written, request.digests = NO_BLOCKS, 0, None
        self.waiting.appendleft(request)

    # ---- prompts --------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Start what fits, in order; who needs what another one computes now waits a step."""
        computing, deferred = set[int](), list[Request]()
        admitted = list[tuple[Request, Digests]]()
        while self.waiting and len(self.running) < self._section.requests:
            request = self.waiting.popleft()
            digests = self._hasher.digest(request.tokens)
            names = digests.block_ids().tolist()
            matched = self.allocator.find_kv_blocks(names)
            if computing.intersection(names[len(matched) :]):
                self.allocator.update_timestamps(matched)  # so that they are there next time
                deferred.append(request)
            elif self._start(request, matched):
                computing.update(names)
                admitted.append((request, digests))
                self.running.append(request)
            else:
                self.waiting.appendleft(request)
                break
        self.counts.deferred += len(deferred)
        self.waiting.extendleft(reversed(deferred))
        for request, digests in admitted:
            self._write(request, len(request.tokens), digests)

    def _start(self, request: Request, matched: Ids) -> bool:
        """Share the blocks it found and take the others; False if there are too few."""
        tokens, size = len(request.tokens), self._size
        matched = matched[: resumable_blocks(len(matched), tokens, size)]
        own = self.allocator.allocate_memory_blocks(-(-tokens // size) - len(matched), matched)
        if own is None:
            return False
        request.blocks = np.concatenate([matched, own])
        request.written = len(matched) * size
        self.counts.prompt_tokens += tokens
        self.counts.reused += request.written
        return True

    def _write(self, request: Request, end: int, digests: Digests) -> None:
        """Compute a prompt's tokens up to ``end``."""
        start, size = request.written, self._size
        tokens = request.tokens[start:end]
        kv = self._model.compute(tokens, self._last(request) if start else None)
        places = np.arange(start, end)
        self.kv[request.blocks[places // size], places % size] = kv
        experts = self._model.route(tokens, kv)
        self.routing.store_per_block(request.blocks[start // size :], experts)
        request.written = end
        self._register(request, digests, start // size)

    def _register(self, request: Request, digests: Digests, first: int) -> None:
        """Let full blocks from ``first`` on be found."""
        request.digests = digests
        names = [NO_HASH, *digests.block_ids().tolist()]
        blocks = request.blocks[first : len(digests)]
        parents = names[first : len(digests)]
        self.allocator.register_kv_block_hashes(blocks, names[first + 1 :], parents)

    def _last(self, request: Request) -> Kv:
        """KV of the last token that has been written."""
        block, place = divmod(request.written - 1, self._size)
        last: Kv = self.kv[request.blocks[block], place]
        return last

    # ---- answers --------------------------------------------------------------------------------

    def _decode(self) -> None:
        """A token of every request; rows that pad the batch write into the dummy block."""
        ready = [request for request in self.running if self._has_room(request)]
        self.running = ready
        blocks = np.full(self._section.requests, self.allocator.dummy_block)
        places = np.zeros(self._section.requests, dtype=np.int64)
        rows = np.zeros((self._section.requests, KV_WORDS), dtype=np.uint64)
        for number, request in enumerate(ready):
            last = self._last(request)
            token = np.array([self._model.next_token(last)], dtype=np.int32)
            request.tokens = np.concatenate([request.tokens, token])
            column, places[number] = divmod(request.written, self._size)
            blocks[number] = request.blocks[column]
            rows[number] = self._model.compute(token, last)[0]
        self.kv[blocks, places] = rows
        for number, request in enumerate(ready):
            self._note(request, int(blocks[number]), places[number : number + 1], rows[number])
        for request in [request for request in ready if not request.answer_left]:
            self._finish(request)

    def _has_room(self, request: Request) -> bool:
        """Whether the next token has a block; pauses the request if none can be had."""
        if request.written < len(request.blocks) * self._size:
            return True
        block = self.allocator.allocate_memory_blocks(1)
        if block is None:
            self.paused.pause(request, request.blocks)
            self.counts.paused += 1
            return False
        request.blocks = np.concatenate([request.blocks, block])
        return True

    def _note(self, request: Request, block: int, place: Ids, kv: Kv) -> None:
        """A token has been written: keep its routing, and register the block if it is full."""
        experts = self._model.route(request.tokens[-1:], kv[None])
        self.routing.store_block(block, place, experts)
        request.written += 1
        if request.written % self._size == 0:
            known, size = request.digests, self._size
            assert known is not None
            digests = self._hasher.digest(request.tokens[len(known) * size :], known)
            self._register(request, digests, len(known))

    def _finish(self, request: Request) -> None:
        turn, tokens, end = request.turn, request.tokens, request.written
        who = f"question {turn.number} of user {turn.user}"
        right = self._model.compute(tokens, None)
        found = self.kv[request.blocks].reshape(-1, KV_WORDS)[:end]
        check = self.checks.check
        sentence = f"blocks: the KV of {who} is another's."
        check("KV", np.array_equal(found, right), sentence, end)
        equal = np.array_equal(tokens, generate(self._model, turn))
        sentence = f"blocks: the answer to {who} is not the one without a cache."
        check("tokens", equal, sentence, turn.answer_tokens)
        experts = self.routing.reconstruct(request.blocks, end)
        equal = experts is not None and np.array_equal(experts, self._model.route(tokens, right))
        check("routing", equal, f"blocks: the routing of {who} is not its tokens'.", end)
        self.allocator.release_memory_blocks(request.blocks)
        self.running.remove(request)
        self.finished.append(request)


def serve(batch: Batch, chat: Chat, reset: str, half: int) -> None:
    """Answer all questions; after ``half`` of them there is a reset, if any is asked for."""
    batch.submit(chat.first())
    answered = 0
    while batch.waiting or batch.running or len(batch.paused):
        batch.step()
        for request in batch.finished:
            batch.submit(chat.after(request.turn, request.tokens))
        before, answered = answered, answered + len(batch.finished)
        if reset != "none" and before < half <= answered:
            batch.reset(
                preserve_prefix_cache=reset in ("prefix_cache", "both"),
                preserve_counters=reset in ("counters", "both"),
            )
