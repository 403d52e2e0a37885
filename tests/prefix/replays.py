"""Chains of ids through an index, one request at a time; and the same told block by block."""

from collections.abc import Callable, Sequence
from typing import Any

from dsv4kv.core.policies import Policy
from dsv4kv.core.tree import PrefixTree

NEVER = 10**9


def replay(chains: Sequence[list[int]], capacity: int, policy: Policy) -> int:
    """Serve every chain in turn; keys hit by all."""
    return sum(PrefixTree(policy).serve(chains, capacity))


class Block:
    """One cached block and all that any policy may want to know about it."""

    def __init__(self, parent: int | None, request: int, order: int, next_use: int) -> None:
        self.parent = parent
        self.children = 0
        self.stored = self.used = request
        self.order = order  # of a request's blocks the last comes first
        self.uses = 1
        self.score = 0.0
        self.next_use = next_use
        self.visited = False


class PlainCache:
    """Prefix-closed eviction in the plainest way: every leaf is looked at for every block."""

    def __init__(self, capacity: int, rank: Callable[[Block], Any] | None) -> None:
        """``rank``: the least goes first; None is SIEVE."""
        self.capacity, self.rank = capacity, rank
        self.blocks: dict[int, Block] = {}
        self.age, self.hand, self.hit = 0.0, -NEVER, 0

    def request(self, number: int, chain: Sequence[int], next_uses: Sequence[int]) -> None:
        cached = 0
        while cached < len(chain) and chain[cached] in self.blocks:
            cached += 1
        self.hit += cached
        for id_, next_use in zip(chain[:cached], next_uses, strict=False):
            block = self.blocks[id_]
            block.used, block.next_use, block.visited = number, next_use, True
            block.uses += 1
            block.score = self.age + block.uses
        while len(self.blocks) + len(chain) - cached > self.capacity:
            self.drop(set(chain[:cached]))
        for at in range(cached, len(chain)):
            parent = chain[at - 1] if at else None
            if parent is not None:
                self.blocks[parent].children += 1
            block = Block(parent, number, number * 1000 - at, next_uses[at])
            block.score = self.age + 1
            self.blocks[chain[at]] = block

    def drop(self, kept: set[int]) -> None:
        leaves = [i for i, b in self.blocks.items() if not b.children and i not in kept]
        victim = self.sieve(leaves) if self.rank is None else self.first(leaves)
        gone = self.blocks.pop(victim)
        self.age = max(self.age, gone.score)
        if gone.parent is not None:
            self.blocks[gone.parent].children -= 1
        if self.rank is None:
            self.hand = gone.order + 1
            ahead = (
                b.order >= self.hand
                for i, b in self.blocks.items()
                if not b.children and i not in kept
            )
            if not any(ahead):
                self.hand = -NEVER

    def first(self, leaves: list[int]) -> int:
        assert self.rank is not None
        rank = self.rank
        return min(leaves, key=lambda i: rank(self.blocks[i]))

    def sieve(self, leaves: list[int]) -> int:
        leaves.sort(key=lambda i: self.blocks[i].order)
        ahead = [i for i in leaves if self.blocks[i].order >= self.hand]
        for id_ in ahead + leaves:
            if not self.blocks[id_].visited:
                return id_
            self.pass_by(self.blocks[id_])
        return leaves[0]

    def pass_by(self, block: Block) -> None:
        """The hand passes a block and those before it that have always been used with it."""
        block.visited = False
        above = None if block.parent is None else self.blocks[block.parent]
        if above and (above.children, above.stored, above.uses) == (1, block.stored, block.uses):
            self.pass_by(above)


def plain_hits(
    chains: Sequence[list[int]], capacity: int, rank: Callable[[Block], Any] | None
) -> int:
    """Blocks hit by all chains, told block by block."""
    cache = PlainCache(capacity, rank)
    upcoming: dict[int, list[int]] = {}
    for number, chain in enumerate(chains):
        for id_ in chain:
            upcoming.setdefault(id_, []).append(number)
    for number, chain in enumerate(chains):
        for id_ in chain:
            upcoming[id_].pop(0)
        cache.request(number, chain, [(upcoming[id_] or [NEVER])[0] for id_ in chain])
    return cache.hit
