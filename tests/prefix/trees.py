"""What must be true of an index's tree at any time."""

from collections import Counter
from collections.abc import Iterator, Sequence

from dsv4kv.prefix.index import Lease
from dsv4kv.prefix.store import PrefixStore
from dsv4kv.prefix.tree import Run, path_to


def every_run(run: Run) -> Iterator[Run]:
    for child in (run.children or {}).values():
        yield child
        yield from every_run(child)


def check_tree(index: PrefixStore, leases: Sequence[Lease]) -> None:
    """Structure, pins and counts; ``leases`` are all that are out."""
    keeper, width = index._keeper, index._key_bytes
    runs = list(every_run(keeper.tree.root))
    pins: Counter[int] = Counter()
    for lease in leases:
        assert lease.run is not None
        assert lease.run.end == lease.length
        pins.update(id(run) for run in path_to(lease.run))
    for run in runs:
        assert run.parent is not None
        assert run.length > 0
        assert run.start == run.parent.end
        assert len(run.keys) >= run.length * width
        assert run.children != {}
        assert run.parent.children is not None
        assert run.parent.children[run.keys[:width]] is run
        assert run.pins == pins[id(run)]
        assert not (run.ticket and not run.evictable)
        assert run.ticket or not run.evictable, "what may go has been offered"
    stats = index.stats()
    assert stats.runs == len(runs)
    assert stats.cached == sum(run.length for run in runs)
    assert stats.held == sum(keeper.layout.count(run) for run in runs)
    assert stats.pinned == sum(keeper.layout.count(run) for run in runs if run.pins)
    assert stats.evictable == stats.held - stats.pinned
    assert stats.inserted - stats.evicted == stats.cached
