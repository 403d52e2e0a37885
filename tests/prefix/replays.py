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


class PlainCache:
    """Prefix-closed eviction in the plainest way: every leaf is looked at for every block."""

    def __init__(self, capacity: int, rank: Callable[[Block], Any]) -> None:
        """``rank``: the least goes first."""
        self.capacity, self.rank = capacity, rank
        self.blocks: dict[int, Block] = {}
        self.age, self.hit = 0.0, 0

    def request(self, number: int, chain: Sequence[int], next_uses: Sequence[int]) -> None:
        cached = 0
        while cached < len(chain) and chain[cached] in self.blocks:
            cached += 1
        self.hit += cached
        for id_, next_use in zip(chain[:cached], next_uses, strict=False):
            block = self.blocks[id_]
            block.used, block.next_use = number, next_use
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
        gone = self.blocks.pop(min(leaves, key=lambda id_: self.rank(self.blocks[id_])))
        self.age = max(self.age, gone.score)
        if gone.parent is not None:
            self.blocks[gone.parent].children -= 1


def plain_hits(chains: Sequence[list[int]], capacity: int, rank: Callable[[Block], Any]) -> int:
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
