"""In any order of requests, decoding and eviction the tree does what a plain index does.

A block's content is the whole prefix of each of its keys, so that reading another prompt's cache,
or what was overwritten, cannot go unnoticed.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.core.policies import Run, make_policy
from dsv4kv.core.tree import Lease, PrefixTree, path_to
from dsv4kv.errors import ConfigError, NotOwner, OutOfBlocks
from tests.core.plain_index import PlainIndex
from tests.examples import examples

LONGEST = 30
Tokens = list[int]


def every_run(run: Run) -> Iterator[Run]:
    for child in run.children.values():
        yield child
        yield from every_run(child)


def check_tree(tree: PrefixTree, leases: Sequence[Lease]) -> None:
    """Structure, pins and counts; ``leases`` are all that are out."""
    runs, pins = list(every_run(tree.root)), Counter[int]()
    for lease in leases:
        assert lease.run is not None
        assert lease.run.end == lease.length
        pins.update(id(run) for run in path_to(lease.run))
    for run in runs:
        assert run.parent is not None
        assert run.length == len(run.keys) > 0
        assert run.start == run.parent.end
        assert run.parent.children[run.keys[0]] is run
        assert run.pins == pins[id(run)]
        assert bool(run.ticket) == (not run.pins and not run.children)
    assert tree.cached == sum(run.length for run in runs)
    assert tree.held == sum(map(tree.count, runs))
    assert tree.pinned == sum(tree.count(run) for run in runs if run.pins)


@dataclass
class Running:
    number: int
    tokens: Tokens
    row: list[int]
    lease: Lease


@dataclass
class Engine:
    """The smallest engine that shares blocks, of ``size`` keys each."""

    blocks: int
    size: int
    chained: bool
    running: list[Running] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tree = PrefixTree(make_policy("lru"), self.size, chained=self.chained)
        self.plain = PlainIndex()
        self.names: dict[tuple[int, ...], int] = {}
        self.refs = Counter[int]()
        self.content: dict[tuple[int, int], tuple[int, ...]] = {}
        self.numbers = count()

    def keys(self, tokens: Tokens) -> list[int]:
        if not self.chained:
            return tokens
        prefixes = (tuple(tokens[: end + 1]) for end in range(len(tokens)))
        return [self.names.setdefault(prefix, len(self.names) + 10) for prefix in prefixes]

    @staticmethod
    def chain(tokens: Tokens) -> list[tuple[int, ...]]:
        return [tuple(tokens[: end + 1]) for end in range(len(tokens))]

    def start(self, tokens: Tokens) -> None:
        """Admit a request: match, share, copy the partial tail, compute the rest, store."""
        number, size, lease = next(self.numbers), self.size, self.tree.pin(self.keys(tokens))
        self.plain.pin(number, self.chain(tokens))
        self.check(tokens, lease.length, lease.values)
        whole = lease.values[: lease.length // size]
        fresh = self.take(-(-len(tokens) // size) - len(whole))
        if fresh is None:
            self.tree.release(lease)
            self.plain.release(number)
            return
        self.refs.update(whole)
        request = Running(number, tokens, whole + fresh, lease)
        for at in range(len(whole) * size, lease.length):  # copy on write
            self.content[request.row[at // size], at % size] = self.content[
                lease.values[-1], at % size
            ]
        self.compute(request, lease.length)
        self.running.append(request)

    def decode(self, request: Running, more: Tokens) -> None:
        """Append tokens; the blocks they fill can be found, too."""
        before, total = len(request.tokens), len(request.tokens) + len(more)
        fresh = self.take(-(-total // self.size) - len(request.row))
        if fresh is not None and total <= LONGEST:
            request.row += fresh
            request.tokens = request.tokens + more
            self.compute(request, before)
        elif fresh:
            self.drop(fresh)

    def finish(self, request: Running) -> None:
        self.running.remove(request)
        self.drop(request.row)
        self.tree.release(request.lease)
        self.plain.release(request.number)

    def take(self, wanted: int) -> list[int] | None:
        """Blocks for a request, evicting cached ones until enough are free, or None."""
        while wanted > self.blocks - len(+self.refs):
            if not self.tree.evictable:
                return None
            self.evict(min(wanted - self.blocks + len(+self.refs), self.tree.evictable))
        fresh = [block for block in range(self.blocks) if not self.refs[block]][:wanted]
        self.refs.update(fresh)
        return fresh

    def drop(self, blocks: Sequence[int]) -> None:
        self.refs.subtract(blocks)

    def evict(self, wanted: int) -> None:
        freed = self.tree.evict(wanted)
        assert freed == list(self.plain.evict(wanted))
        self.drop(freed)

    def compute(self, request: Running, start: int) -> None:
        tokens, chain, size = request.tokens, self.chain(request.tokens), self.size
        for at in range(start, len(tokens)):
            self.content[request.row[at // size], at % size] = tuple(tokens[: at + 1])
        blocks = [request.row[at // size] for at in range(len(tokens))]
        more = self.keys(tokens)[request.lease.length :]
        taken = self.tree.extend(request.lease, more, list(dict.fromkeys(blocks)))
        assert taken == self.plain.insert(request.number, chain, blocks)
        self.refs.update(taken)

    def check(self, tokens: Tokens, length: int, blocks: Sequence[int]) -> None:
        chain = self.plain.match(self.chain(tokens))
        assert length == len(chain)
        by_place = {(len(key) - 1) // self.size: self.plain.block_of[key] for key in chain}
        assert list(blocks) == list(by_place.values())
        for at in range(length):
            assert self.content[blocks[at // self.size], at % self.size] == tuple(tokens[: at + 1])

    def check_everything(self) -> None:
        tree, plain = self.tree, self.plain
        owners = Counter(block for request in self.running for block in request.row)
        owners.update(plain.held())
        assert +self.refs == owners
        check_tree(tree, [request.lease for request in self.running])
        assert (tree.held, tree.pinned) == (len(plain.held()), plain.pinned())
        assert tree.cached == len(plain.block_of)
        for request in self.running:
            assert tree.match_length(self.keys(request.tokens)) == len(request.tokens)
        with pytest.raises(OutOfBlocks):
            tree.evict(tree.evictable + 1)


def serve_a_day(engine: Engine, draw: random.Random, events: int) -> None:
    known: list[Tokens] = [[]]
    for _ in range(events):
        tokens = draw.choices((0, 1), k=draw.randint(1, 18))
        what = draw.choices(("start", "turn", "decode", "finish", "evict"), (4, 6, 8, 8, 2))[0]
        if what in ("start", "turn"):
            before = draw.choice(known) if what == "turn" else []
            known.append((before[: draw.randint(0, len(before))] + tokens)[:LONGEST])
            engine.start(known[-1])
        elif what == "evict":
            engine.evict(draw.randint(0, engine.tree.evictable))
        elif engine.running:
            request = draw.choice(engine.running)
            if what == "decode":
                engine.decode(request, tokens[:6])
            else:
                engine.finish(request)
                known.append(request.tokens)
        engine.check_everything()


@given(
    st.integers(4, 14), st.sampled_from([1, 4]), st.booleans(), st.integers(0, 2**20),
    st.integers(1, 60),
)  # fmt: skip
@examples(150)
def test_it_does_what_a_plain_index_does(
    blocks: int, size: int, chained: bool, seed: int, events: int
) -> None:
    serve_a_day(Engine(blocks, size, chained), random.Random(seed), events)


def test_misuse_is_refused_and_changes_nothing() -> None:
    tree = PrefixTree(make_policy("lru"), 1)
    lease = tree.pin([1, 2])
    with pytest.raises(ConfigError, match="Nothing was changed"):
        tree.extend(lease, [1, 2], [5, 6, 7])
    assert tree.extend(lease, [1, 2], [5, 6]) == [5, 6]
    tree.release(lease)
    for call in (lambda: tree.release(lease), lambda: tree.extend(lease, [3], [7])):
        with pytest.raises(NotOwner):
            call()
    assert (tree.held, tree.pinned, tree.cached) == (2, 0, 2)
    check_tree(tree, [])
