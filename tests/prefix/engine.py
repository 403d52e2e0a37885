"""The smallest engine that shares blocks: what every cached token holds can be checked.

A block's content is the whole prefix of each of its tokens, so that reading another prompt's
cache, or what was overwritten, cannot go unnoticed.
"""

from dataclasses import dataclass, field

import numpy as np

from dsv4kv.cache.allocators.refcount import RefCountAllocator
from dsv4kv.prefix.hashing import BlockHasher
from dsv4kv.prefix.index import Keys, Lease
from dsv4kv.prefix.indexes import make_index
from dsv4kv.prefix.policies import make_policy
from dsv4kv.prefix.run import Ids

BLOCK_TOKENS = 4
Tokens = list[int]


@dataclass
class Running:
    tokens: Tokens
    row: list[int]
    lease: Lease


@dataclass
class Engine:
    """Requests over ``blocks`` blocks, an index and a policy by name."""

    blocks: int
    kind: str
    policy: str
    running: list[Running] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.allocator = RefCountAllocator(self.blocks + 1)
        policy = make_policy(self.policy, self.blocks * (BLOCK_TOKENS if self.by_token else 1))
        self.hasher = BlockHasher(BLOCK_TOKENS)
        self.index = make_index(self.kind, BLOCK_TOKENS, policy)
        self.content: dict[tuple[int, int], tuple[int, ...]] = {}
        self.cached: dict[int, int] = {}  # references the index holds, by block

    @property
    def by_token(self) -> bool:
        return self.kind == "radix"

    def keys(self, tokens: Tokens) -> Keys:
        row = np.array(tokens, dtype=np.int32)
        return row if self.by_token else self.hasher.digest(row)

    def start(self, tokens: Tokens) -> bool:
        """Admit a request: match, share, copy the partial tail, compute the rest, store."""
        lease = self.index.pin(self.keys(tokens))
        matched = lease.length * (1 if self.by_token else BLOCK_TOKENS)
        self.check(tokens[:matched], lease.values)
        whole = lease.values[: matched // BLOCK_TOKENS]
        fresh = self.take(-(-len(tokens) // BLOCK_TOKENS) - len(whole))
        if fresh is None:
            self.index.release(lease)
            return False
        if len(whole):
            self.allocator.retain_memory_blocks(whole)
        row = [*whole.tolist(), *fresh.tolist()]
        for at in range(len(whole) * BLOCK_TOKENS, matched):  # copy on write
            here = (row[at // BLOCK_TOKENS], at % BLOCK_TOKENS)
            self.content[here] = self.content[int(lease.values[-1]), at % BLOCK_TOKENS]
        request = Running(tokens, row, lease)
        self.compute(request, matched)
        self.running.append(request)
        return True

    def decode(self, request: Running, more: Tokens) -> bool:
        """Append tokens; the blocks they fill can be found, too."""
        before = len(request.tokens)
        total = before + len(more)
        fresh = self.take(-(-total // BLOCK_TOKENS) - len(request.row))
        if fresh is None:
            return False
        request.row += fresh.tolist()
        request.tokens = request.tokens + more
        self.compute(request, before)
        return True

    def finish(self, request: Running) -> None:
        self.running.remove(request)
        self.allocator.release_memory_blocks(np.array(request.row))
        self.index.release(request.lease)

    def take(self, count: int) -> Ids | None:
        """Blocks for a request, evicting cached ones until enough are free, or None."""
        while count > self.allocator.num_free and self.index.stats().evictable:
            self.evict(1)
        return self.allocator.allocate_memory_blocks(count)

    def evict(self, count: int) -> None:
        freed = self.index.evict(count)
        assert len(freed) == count
        held = {block for request in self.running for block in self.leased(request)}
        assert not held & set(freed.tolist())
        for block in freed.tolist():
            self.cached[block] -= 1
        self.allocator.release_memory_blocks(freed)

    def leased(self, request: Running) -> set[int]:
        """Blocks that the index holds for a running request."""
        return set(self.index.match(self.keys(request.tokens)).values.tolist())

    def compute(self, request: Running, start: int) -> None:
        tokens = request.tokens
        for at in range(start, len(tokens)):
            block = request.row[at // BLOCK_TOKENS]
            self.content[block, at % BLOCK_TOKENS] = tuple(tokens[: at + 1])
        count = len(request.row) if self.by_token else len(tokens) // BLOCK_TOKENS
        row = np.array(request.row[:count], dtype=np.int64)
        inserted = self.index.insert(self.keys(tokens), row, request.lease)
        assert inserted.stored == len(self.keys(tokens))
        self.allocator.retain_memory_blocks(inserted.taken)
        for block in inserted.taken.tolist():
            self.cached[block] = self.cached.get(block, 0) + 1

    def check(self, tokens: Tokens, blocks: Ids) -> None:
        """Every token's place holds what that prefix computes to."""
        assert len(blocks) == -(-len(tokens) // BLOCK_TOKENS)
        for at in range(len(tokens)):
            block = int(blocks[at // BLOCK_TOKENS])
            assert self.content[block, at % BLOCK_TOKENS] == tuple(tokens[: at + 1])
