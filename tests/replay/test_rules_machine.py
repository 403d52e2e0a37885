"""Random arrivals by the engines' rules: blocks, locks and promises agree after every turn."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from dsv4kv.engines.rules import RULES
from dsv4kv.engines.sglang.cache import Node, PageTree, SglangCache
from dsv4kv.engines.sglang.windows import WindowTree
from dsv4kv.engines.vllm.cache import VllmCache
from dsv4kv.engines.vllm.groups import GroupPool, Running
from dsv4kv.replay.build import build_replay
from tests.examples import examples
from tests.replay.scenes import LONG, random_requests, small_config
from tests.replay.test_machine import ReplayMachine

ENGINES = [name for name, rule in RULES.items() if rule.open and "v4" in rule.kinds]
# the longest request has 14 blocks; beside it go windows and states of a chunk of 128 tokens
SMALLEST = {"vllm": 15, "sglang": 15, "vllm-v4": 140, "sglang-v4": 150}


def nodes_of(tree: PageTree) -> Iterator[Node]:
    """All nodes but the root."""
    left = list(tree.root.children.values())
    while left:
        node = left.pop()
        left += node.children.values()
        yield node


def check_tree(tree: PageTree) -> None:
    nodes = list(nodes_of(tree))
    assert tree.stored == sum(node.end - node.begin for node in nodes)
    assert tree.locked == sum(node.end - node.begin for node in nodes if node.locks)
    for node in nodes:
        assert not any(child.locks > node.locks for child in node.children.values())
    if isinstance(tree, WindowTree):
        kept = [node for node in nodes if node.window >= 0]
        assert tree.stored_windows == sum(node.end - node.begin for node in kept)
        assert all(node.locks for node in nodes if node.window_locks)
        assert tree.free_windows >= 0


def check_queue(cache: VllmCache) -> None:
    pool, queue = cache._pool, cache._pool.queue
    waiting = queue._queue[queue._front : queue._back]
    places = np.arange(queue._front, queue._back)
    there = waiting[queue._place[waiting] == places]
    assert queue.idle == queue._size[there].sum()
    taken = np.flatnonzero(queue._users)
    assert queue.busy == queue._size[taken].sum()
    every = np.concatenate([there, taken, queue._spare[: queue._spares]])
    assert sorted(every.tolist()) == list(range(len(queue._key)))
    running = cache._running
    context = {
        entry for one in running.values() for part in one.context for entry in part.tolist()
    }
    own = sum(
        -(-one.position // pool.size) - sum(map(len, one.context)) for one in running.values()
    )
    assert pool.context_used == len(context) + own
    assert cache.free >= 0
    held = {entry for one in running.values() for entry in held_by(pool, one)}
    assert held == set(taken.tolist())


def held_by(pool: GroupPool, one: Running) -> Iterator[int]:
    """Entries that a request uses, those that are parts of others too."""
    for part in one.context:
        yield from part.tolist()
    for group, begin, tails, ends in zip(
        pool.groups, one.starts, one.tails, one.ends, strict=True
    ):
        for entry, end in zip(tails, ends, strict=True):
            for behind, piece in pool.queue.pieces(entry):
                if end - behind * group.block_tokens > begin:
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
        ledger = self.scheduler.ledger
        if isinstance(ledger, SglangCache):
            check_tree(ledger._tree)
        else:
            assert isinstance(ledger, VllmCache)
            check_queue(ledger)

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "replay"):
            assert not self.watched.refused
            ledger = self.scheduler.ledger
            windows = getattr(ledger, "_total_windows", ledger.total)
            assert ledger.available == min(ledger.total, windows)  # nothing is promised any more
            tally = self.scheduler.prompts.tally
            told = tally.saved_tokens + tally.losses.total + tally.in_flight_tokens
            assert told == tally.seen_tokens
            assert min(tally.lost.values(), default=0) >= 0


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = examples(60, stateful_step_count=10)
