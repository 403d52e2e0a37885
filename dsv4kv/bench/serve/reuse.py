"""Prefix caching: prompts share cached blocks and resume from saved windows and states."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from dsv4kv.cache.blocks import Ids
from dsv4kv.cache.checkpoints import CheckpointPool, shared_table
from dsv4kv.cache.manager import KVCacheManager
from dsv4kv.config.bench import Windows
from dsv4kv.core.tree import Lease, PrefixTree
from dsv4kv.errors import ConfigError
from dsv4kv.model.plan import CHECKPOINT_TOKENS
from dsv4kv.ops.spec import Backend
from dsv4kv.traces.request import Request

NEVER = np.iinfo(np.int64).max


@dataclass
class _Prompt:
    keys: list[int]
    lease: Lease
    stops: list[int]


class PrefixReuse:
    """Shares blocks between requests, and resumes them from checkpoints."""

    def __init__(
        self,
        manager: KVCacheManager,
        index: PrefixTree,
        checkpoints: CheckpointPool,
        backend: Backend | None,
        *,
        key_tokens: int = CHECKPOINT_TOKENS,
        windows: Windows = "ends+junctions",
        period_tokens: int = 1024,
    ) -> None:
        """Reuse what ``index`` finds: its values are blocks.

        ``key_tokens``: tokens that one of its keys stands for, a multiple of 128; the positions
        where checkpoints are left and requests resume are multiples of it.
        """
        self.index, self.checkpoints = index, checkpoints
        self.saved: OrderedDict[int, int] = OrderedDict()  # key that ends there -> checkpoint
        self._manager, self._backend = manager, backend
        self._table, self._allocator = shared_table(manager)
        self._key_tokens = key_tokens
        self._windows: Windows = windows
        self._period_tokens = period_tokens
        self._block_tokens = manager.plan.schemas[0].block_tokens
        self._block_keys = self._block_tokens // key_tokens
        self._prompts: dict[int, _Prompt] = {}

    def begin(self, slot: int, request: Request) -> tuple[int, int]:
        """Resume a request that was just admitted: the tokens it need not compute, and a stop.

        The next prompt chunk must end there, for a checkpoint is due.
        """
        size = self._key_tokens
        keys = prompt_keys(request, size)
        usable = keys[: (request.input_tokens - 1) // size]  # one token is computed
        matched = self.index.match_length(usable)
        resumed = self._resume(slot, usable[:matched])
        whole = resumed * size // self._block_tokens * self._block_keys
        lease = self.index.pin(usable[:whole])
        stops = self._stops(len(keys) * size, matched * size, resumed * size)
        self._prompts[slot] = _Prompt(keys, lease, stops)
        return resumed * size, stops[0]

    def reach(self, slot: int, position: int) -> int:
        """A prompt is computed up to ``position``: save what is due; returns the next stop."""
        prompt = self._prompts[slot]
        if position == prompt.stops[0]:
            self._save(slot, prompt.keys[position // self._key_tokens - 1])
            prompt.stops.pop(0)
        return prompt.stops[0]

    def finish_prompt(self, slot: int) -> None:
        """A request has computed its whole prompt: others may share its blocks from now on."""
        prompt = self._prompts[slot]
        count = -(-len(prompt.keys) * self._key_tokens // self._block_tokens)
        if prompt.keys:
            blocks = self._table.blocks[0, slot, :count].tolist()
            taken = self.index.insert(prompt.keys, blocks)
            self._allocator.retain(np.array(taken, np.int64))

    def end(self, slot: int) -> None:
        """A request ends; what it has computed stays until room is needed."""
        self._let_go(self._prompts[slot])
        del self._prompts[slot]

    def forget(self) -> None:
        """Evict everything cached; no request may be running."""
        self._evict(self.index.evictable)
        while self.saved:
            self._drop_oldest()

    def make_room(self, slots: Ids, tokens: Ids) -> None:
        """Before slots are prepared for tokens: evict cached blocks where too few are free."""
        lacking = int((self._table.group.blocks_for(tokens) - self._table.held[slots]).sum())
        if not self._free(lacking):
            # Also pinned: blocks of which a prompt shares a part, and has a copy. What is its
            # own it still holds by reference.
            for prompt in self._prompts.values():
                self._let_go(prompt)
            self._free(lacking)

    def _free(self, blocks: int) -> bool:
        """Evict until ``blocks`` are free; False where requests hold too many."""
        allocator = self._allocator
        while (short := blocks - allocator.num_free) > 0:
            count = min(short, self.index.evictable)
            if not count:
                return False
            self._evict(count)
        return True

    def _evict(self, count: int) -> None:
        self._allocator.release(np.array(self.index.evict(count), np.int64))

    def _let_go(self, prompt: _Prompt) -> None:
        if prompt.lease.run is not None:
            self.index.release(prompt.lease)

    def _resume(self, slot: int, keys: list[int]) -> int:
        """Resume after the last of the cached keys that can be; returns how many that is."""
        count = self._deepest_checkpoint(keys)
        if count % self._block_keys:
            with self._pinned(keys[:count]):
                has_room = self._free(1)
            if not has_room:
                whole = keys[: count // self._block_keys * self._block_keys]
                count = self._deepest_checkpoint(whole)
                while count % self._block_keys:
                    count = self._deepest_checkpoint(keys[: count - 1])
        if count:  # share the chain's blocks, and copy one that will be written in
            key = keys[count - 1]
            with self._pinned(keys[:count]) as lease:
                blocks, tokens = np.array(lease.values, np.int64), count * self._key_tokens
                self.checkpoints.resume(slot, tokens, blocks, self.saved[key], self._backend)
            self.saved.move_to_end(key)
        return count

    @contextmanager
    def _pinned(self, keys: list[int]) -> Iterator[Lease]:
        lease = self.index.pin(keys)
        try:
            yield lease
        finally:
            self.index.release(lease)

    def _deepest_checkpoint(self, keys: list[int]) -> int:
        """How many keys the last one that has a checkpoint ends; 0 without."""
        for i in range(len(keys) - 1, -1, -1):
            if keys[i] in self.saved:
                return i + 1
        return 0

    def _stops(self, last: int, matched: int, resumed: int) -> list[int]:
        """Positions after ``resumed`` where checkpoints are due, in order, and one never reached.

        The last is at most ``last``.
        """
        if self._windows == "periodic":
            period = self._period_tokens
            return [*range((resumed // period + 1) * period, last + 1, period), NEVER]
        junction = {matched} if self._windows == "ends+junctions" else set()
        return [*sorted(stop for stop in {last} | junction if stop > resumed), NEVER]

    def _save(self, slot: int, key: int) -> None:
        if key in self.saved:
            self.saved.move_to_end(key)
            return
        if not self.checkpoints.num_free:
            self._drop_oldest()
        self.saved[key] = self.checkpoints.save(slot)

    def _drop_oldest(self) -> None:
        self.checkpoints.release(self.saved.popitem(last=False)[1])


def prompt_keys(request: Request, key_tokens: int) -> list[int]:
    """Keys of a prompt's whole ``key_tokens``; ``ConfigError`` where hashes cover no whole key."""
    hashes: Sequence[int] = request.prefix_hashes
    if not len(hashes):
        return []
    each, rest = divmod(request.hash_block_tokens, key_tokens)
    if rest or not each:
        raise ConfigError(
            f"a prefix hash of this trace covers {request.hash_block_tokens} tokens, and "
            f"prefixes are shared in steps of {key_tokens}: use a trace with a multiple of it, or "
            "smaller blocks (cache.block_tokens)."
        )
    keys = (np.asarray(hashes, dtype=np.int64)[:, None] * each + np.arange(each)).ravel()
    whole: list[int] = keys[: request.input_tokens // key_tokens].tolist()
    return whole
