"""The smallest engine that shares blocks: what every cached token holds can be checked.

A block's content is the whole prefix of each of its tokens, so that reading another prompt's
cache, or what was overwritten, cannot go unnoticed. A plain index does all that the real one
does, and both must find, hold and give up the same blocks in the same order.
"""

from dataclasses import dataclass, field
from itertools import count

import numpy as np

from dsv4kv.cache.blocks import BlockPool
from dsv4kv.prefix.index import BlockHasher, Digests, Keys, Lease
from dsv4kv.prefix.policies import make_policy
from dsv4kv.prefix.tree import Ids
from tests.prefix.indexes import make_index
from tests.prefix.plain_index import PlainIndex

BLOCK_TOKENS = 4
Tokens = list[int]


@dataclass
class Running:
    number: int
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
        self.allocator = BlockPool(self.blocks)
        capacity = self.blocks * (BLOCK_TOKENS if self.by_token else 1)
        self.hasher = BlockHasher(BLOCK_TOKENS)
        self.index = make_index(self.kind, BLOCK_TOKENS, make_policy(self.policy, capacity))
        self.plain = PlainIndex(self.policy, capacity)
        self.content: dict[tuple[int, int], tuple[int, ...]] = {}
        self.numbers = count()

    @property
    def by_token(self) -> bool:
        return self.kind == "radix"

    @property
    def key_tokens(self) -> int:
        return 1 if self.by_token else BLOCK_TOKENS

    def keys(self, tokens: Tokens) -> Keys:
        row = np.array(tokens, dtype=np.int32)
        return row if self.by_token else self.hasher.digest(row)

    def chain(self, tokens: Tokens) -> list[tuple[int, ...]]:
        """The same keys told plainly: every prefix that ends at one."""
        size = self.key_tokens
        return [tuple(tokens[:end]) for end in range(size, len(tokens) + 1, size)]

    def start(self, tokens: Tokens) -> bool:
        """Admit a request: match, share, copy the partial tail, compute the rest, store."""
        number, lease = next(self.numbers), self.index.pin(self.keys(tokens))
        self.plain.pin(number, self.chain(tokens))
        matched = lease.length * self.key_tokens
        self.check(tokens, lease.length, lease.values)
        whole = lease.values[: matched // BLOCK_TOKENS]
        fresh = self.take(-(-len(tokens) // BLOCK_TOKENS) - len(whole))
        if fresh is None:
            self.index.release(lease)
            self.plain.release(number)
            return False
        if len(whole):
            self.allocator.retain(whole)
        row = [*whole.tolist(), *fresh.tolist()]
        for at in range(len(whole) * BLOCK_TOKENS, matched):  # copy on write
            here = (row[at // BLOCK_TOKENS], at % BLOCK_TOKENS)
            self.content[here] = self.content[int(lease.values[-1]), at % BLOCK_TOKENS]
        request = Running(number, tokens, row, lease)
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
        self.allocator.release(np.array(request.row))
        self.index.release(request.lease)
        self.plain.release(request.number)

    def collide(self, tokens: Tokens, at: int) -> None:
        """Ask for a prompt whose keys are cached but, from ``at`` on, for other tokens."""
        keys, chain, number = self.keys(tokens), self.chain(tokens)[:at], next(self.numbers)
        assert isinstance(keys, Digests)
        before = self.index.stats().collisions
        forged = Digests(keys.data, keys.guards + (np.arange(len(keys)) == at))
        lease = self.index.pin(forged)
        self.plain.pin(number, chain)
        assert self.index.stats().collisions == before + 1
        self.check(tokens[: at * BLOCK_TOKENS], lease.length, lease.values)
        inserted = self.index.extend(lease, forged.after(lease.length), np.arange(len(keys)))
        self.plain.insert(number, chain, [])
        assert (inserted.stored, inserted.taken.size) == (at, 0)
        self.index.release(lease)
        self.plain.release(number)

    def take(self, count: int) -> Ids | None:
        """Blocks for a request, evicting cached ones until enough are free, or None."""
        while (short := count - self.allocator.num_free) > 0:
            evictable = self.index.stats().evictable
            if not evictable:
                return None
            self.evict(min(short, evictable))
        return self.allocator.allocate(count)

    def evict(self, count: int) -> None:
        freed = self.index.evict(count)
        assert freed.tolist() == list(self.plain.evict(count))
        self.allocator.release(freed)

    def compute(self, request: Running, start: int) -> None:
        tokens, chain = request.tokens, self.chain(request.tokens)
        for at in range(start, len(tokens)):
            block = request.row[at // BLOCK_TOKENS]
            self.content[block, at % BLOCK_TOKENS] = tuple(tokens[: at + 1])
        blocks = [request.row[(len(key) - 1) // BLOCK_TOKENS] for key in chain]
        row = np.array(list(dict.fromkeys(blocks)), dtype=np.int64)
        present = len(self.plain.match(chain))
        keys, lease = self.keys(tokens), request.lease
        more = keys.after(lease.length) if isinstance(keys, Digests) else keys[lease.length :]
        inserted = self.index.extend(lease, more, row)
        taken = self.plain.insert(request.number, chain, blocks)
        assert (inserted.present, inserted.stored) == (present, len(chain))
        assert inserted.taken.tolist() == taken
        self.allocator.retain(inserted.taken)

    def check_match(self, tokens: Tokens) -> None:
        """What is found of a prompt is what the plain index has, and was computed for it."""
        match = self.index.match(self.keys(tokens))
        self.check(tokens, match.length, match.values)

    def check(self, tokens: Tokens, length: int, blocks: Ids) -> None:
        chain = self.plain.match(self.chain(tokens))
        assert length == len(chain)
        by_place = {(len(key) - 1) // BLOCK_TOKENS: self.plain.block_of[key] for key in chain}
        assert blocks.tolist() == list(by_place.values())
        for at in range(length * self.key_tokens):
            place = int(blocks[at // BLOCK_TOKENS]), at % BLOCK_TOKENS
            assert self.content[place] == tuple(tokens[: at + 1])
