"""An exception on any line of an operation leaves the index as it was; it can be done again."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dsv4kv.prefix.index import Digests, Keys, Lease
from dsv4kv.prefix.policies import make_policy
from dsv4kv.prefix.radix import PrefixCacheManager
from dsv4kv.prefix.store import PrefixStore
from dsv4kv.prefix.tree import Run
from tests.interrupts import at_every_line
from tests.prefix.indexes import INDEXES, make_index
from tests.prefix.trees import check_tree

BLOCK = 4
# Those that keep more than one order: the others recount alike.
SOME_POLICIES = pytest.mark.parametrize("policy", ["lru", "arc", "s3fifo", "sieve"])


@dataclass
class Scene:
    """An index with prompts that part inside blocks, and what is pinned in it."""

    index: PrefixStore
    leases: list[Lease]


def facts_of(scene: Scene) -> Any:
    """Counts, runs with all they hold, and leases; what is the order of eviction's is not told."""
    index = scene.index
    held = sorted(index._leases, key=lambda lease: lease.request)
    check_tree(index, held)
    leases = [(lease.length, lease.run is not None) for lease in scene.leases]
    return index.stats(), told(index._keeper.tree.root), leases, len(held)


def amounts(scene: Scene) -> Any:
    """How much is cached and held: which of it may depend on the use that was interrupted."""
    counts, _, leases, num_held = facts_of(scene)
    return counts.cached, counts.held, counts.pinned, counts.inserted, leases, num_held


def told(run: Run) -> Any:
    below = sorted(map(told, (run.children or {}).values()))
    return run.keys[: run.length * 16], run.start, run.length, run.values.tolist(), run.pins, below


def keys_of(kind: str, text: str) -> Keys:
    tokens = np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)
    if kind == "radix":
        return tokens
    whole = [text[:end] for end in range(BLOCK, len(text) + 1, BLOCK)]
    return Digests(b"".join(each.rjust(16).encode() for each in whole), np.arange(len(whole)))


def build(kind: str, policy: str) -> Scene:
    index = make_index(kind, BLOCK, make_policy(policy, 16))
    assert isinstance(index, PrefixStore)
    scene = Scene(index, [])
    for first, text in enumerate(("abcdefghij", "abcdefghxyzw", "mnopqr")):
        keys = keys_of(kind, text)
        lease = index.pin(keys)
        blocks = np.arange(10 * first, 10 * first + -(-len(text) // BLOCK))
        more = keys.after(lease.length) if isinstance(keys, Digests) else keys[lease.length :]
        index.extend(lease, more, blocks[: len(keys)])
        scene.leases.append(lease)
    index.release(scene.leases[0])
    index.release(scene.leases[2])
    return scene


@SOME_POLICIES
@pytest.mark.parametrize("kind", sorted(INDEXES))
def test_an_index_changes_whole_or_not_at_all(kind: str, policy: str) -> None:
    def key(text: str) -> Keys:
        return keys_of(kind, text)

    chain = key("abcdefghxyzwefgh")
    more = chain.after(3) if isinstance(chain, Digests) else chain[12:]
    operations: list[Callable[[Scene], object]] = [
        lambda scene: scene.index.pin(key("abcdef")),
        lambda scene: scene.index.insert(key("abcdxyzw"), np.arange(30, 32)),
        lambda scene: scene.index.insert(key("zyxw"), np.array([40])),
        lambda scene: scene.index.extend(scene.leases[1], more, np.array([50])),
        lambda scene: scene.index.release(scene.leases[1]),
        lambda scene: scene.index.evict(1),
        lambda scene: scene.index.evict(scene.index.evictable),
    ]
    for operate in operations:
        assert at_every_line(lambda: build(kind, policy), operate, facts_of, outcome=amounts) > 10


@SOME_POLICIES
def test_rows_are_remembered_and_found_whole_or_not_at_all(policy: str) -> None:
    def row(text: str) -> Keys:
        return keys_of("radix", text)

    def make() -> Scene:
        rows = PrefixCacheManager(12, make_policy(policy, 12), lambda *_: None)
        rows.insert_row(row("abcdef"), 0, 1)
        rows.insert_row(row("abcxyz"), 1, 1)
        return Scene(rows, [rows.pin(row("abcx"))])

    operations: list[Callable[[Any], object]] = [
        lambda scene: scene.index.find(row("abcd")),
        lambda scene: scene.index.insert_row(row("abmnopqrs"), 2, 1),  # others go for it
        lambda scene: scene.index.extend_row(scene.leases[0], row("qrst"), 2, 1),
    ]
    for operate in operations:
        assert at_every_line(make, operate, facts_of, outcome=amounts) > 10


def test_copying_that_is_interrupted_pins_nothing() -> None:
    def make() -> Scene:
        rows = PrefixCacheManager(12, None, lambda *_: None)
        rows.insert_row(keys_of("radix", "abcdef"), 0, 1)
        return Scene(rows, [])

    def copy(scene: Any) -> None:
        scene.index.copy_kv(keys_of("radix", "abcd"), 3)

    def cached_and_pinned(scene: Scene) -> Any:
        counts, _, _, num_leases = facts_of(scene)
        return counts.cached, counts.pinned, num_leases

    assert at_every_line(make, copy, cached_and_pinned) > 10
