"""Random arrivals by the engines' rules: blocks and references agree after every turn."""

import gc
from collections import Counter
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize

from dsv4kv.core.hashed import BlockPool, Entry, HashedCache, Held
from dsv4kv.core.radix import SglangCache, SglangWindowCache, TreeNode
from dsv4kv.engines.names import RULES
from dsv4kv.replay.build import build_replay
from tests.examples import examples
from tests.replay.scenes import LONG, random_requests, replay, small_config
from tests.replay.test_machine import ReplayMachine

# the longest request has 14 blocks; beside it go windows and states of a chunk of 128 tokens
SMALLEST = {"vllm": 15, "sglang": 15, "vllm-v4": 140, "sglang-v4": 150}
ENGINES = [
    name
    for name, rule in RULES.items()
    if "v4" in rule.kinds and name.partition(":")[0] in SMALLEST
]


def nodes_of(cache: SglangCache) -> Iterator[TreeNode]:
    """All nodes but the root."""
    left = list(cache.root.children.values())
    while left:
        node = left.pop()
        left += node.children.values()
        yield node


def check_tree(cache: SglangCache) -> None:
    nodes = list(nodes_of(cache))
    assert cache.cached + cache.shared == sum(node.end - node.begin for node in nodes)
    assert cache.shared == sum(node.end - node.begin for node in nodes if node.lock_ref)
    for node in nodes:
        assert node.end - node.begin == len(node.key)
        assert not any(child.lock_ref > node.lock_ref for child in node.children.values())
        assert node.queued or node.children or node.lock_ref
    if isinstance(cache, SglangWindowCache):
        kept = [node for node in nodes if node.window >= 0]
        assert cache.stored_windows == sum(node.end - node.begin for node in kept)
        assert all(node.lock_ref for node in nodes if node.swa_lock_ref)
        assert cache.free_windows >= 0
        aged, younger = list[TreeNode](), cache._oldest.behind
        while younger is not None and younger is not cache._newest:
            aged.append(younger)
            younger = younger.behind
        assert aged == sorted(aged, key=lambda node: (node.window, node.begin))
        assert set(aged) == {node for node in kept if node.behind is not None}
        assert all(node.swa_lock_ref for node in set(kept) - set(aged))


def check_pool(cache: HashedCache) -> None:
    """Every block is free, in the queue, used as often as its references say, or one request's."""
    own = 0
    waiting = list(queue_of(cache))
    assert not any(entry.refs for entry in waiting)
    assert cache.cached == sum(entry.blocks for entry in waiting)
    held = Counter[Entry]()
    for one in cache._running:  # those that do not run hold nothing
        cached = list(held_by(one))
        held.update(cached)
        own += -(-one.position // cache.block_tokens)
        for table in one.tables:
            own += -(-one.position // table.group.block_tokens)
            start = table.group.start(one.slid) if one.steady else table.start
            own -= start // table.group.block_tokens
        own -= sum(entry.blocks for entry in cached)
    assert {entry: entry.refs for entry in held} == held
    assert cache.shared == sum(entry.blocks for entry in held)
    assert cache.uncached >= 0
    assert cache.uncached + cache.cached + cache.shared + own == cache.total
    for key, entry in cache.entries.items():
        assert entry.key == key
        assert entry.found
    for request in range(len(cache._running)):  # ``HashedCache._look_up`` bisects
        there = [number in cache.entries for number in cache._path_of(request)[0]]
        assert there == sorted(there, reverse=True)


def queue_of(pool: BlockPool) -> Iterator[Entry]:
    entry = pool._front.behind
    while entry is not None and entry is not pool._back:
        yield entry
        entry = entry.behind


def held_by(one: Held) -> Iterator[Entry]:
    """Entries and pieces that a request uses."""
    yield from one.context
    for table in one.tables:
        for entry, end in zip(table.entries, table.ends, strict=True):
            for piece in entry.pieces or [entry]:
                if end - piece.after * table.group.block_tokens > table.start:
                    yield piece


class EngineMachine(ReplayMachine):
    """The same by an engine's rule."""

    @initialize(
        seed=st.integers(0, 10**6),
        rule=st.sampled_from(ENGINES),
        spare=st.sampled_from([0, 1, 40, 300]),
        drafts=st.sampled_from([0, 3]),
        defer=st.booleans(),
    )
    def choose(self, seed: int, **chosen: Any) -> None:
        config = small_config(
            cache__num_blocks=SMALLEST[chosen["rule"].partition(":")[0]] + chosen["spare"],
            cache__block_tokens=128,
            prefix__rule=chosen["rule"],
            prefix__defer=chosen["defer"],
            scheduler__step_tokens=128,
            scheduler__speculative__draft_tokens=chosen["drafts"],
        )
        self.watch(build_replay(config, random_requests(seed, 30, 8, LONG)))

    def check(self) -> None:
        super().check()
        ledger = self.scheduler.cache
        if isinstance(ledger, SglangCache):
            check_tree(ledger)
        else:
            assert isinstance(ledger, HashedCache)
            check_pool(ledger)

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "replay"):
            assert not self.replay.outcome.rejected
            ledger = self.scheduler.cache
            windows = getattr(ledger, "total_windows", ledger.total)
            assert ledger.available == min(ledger.total, windows)  # nothing is held any more


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = examples(60, stateful_step_count=10)


def entries() -> int:
    return sum(isinstance(each, Entry) for each in gc.get_objects())


def test_evicted_blocks_are_freed_without_a_search_for_cycles() -> None:
    """Replays run without one: a pool of some hundred blocks must not grow with the trace."""
    chosen = {"cache__num_blocks": 140, "cache__block_tokens": 128, "scheduler__step_tokens": 128}
    gc.collect()
    gc.disable()
    try:
        before = entries()
        made = replay(random_requests(3, 120, 8, LONG), prefix__rule="vllm-v4:semantic", **chosen)
        alive = entries() - before
    finally:
        gc.enable()
    assert made.scheduler.cache.evicted > 10 * made.scheduler.cache.total
    assert alive < 2 * made.scheduler.cache.total
