"""The store in memory keeps as much as it was given, and no more."""

from itertools import pairwise

import pytest
import torch

from dsv4kv.errors import StoreFull, StoreUnavailable
from dsv4kv.tiers.stores.memory import MemoryStore, open_memory
from tests.tiers.stores.kinds import FLASH, content, poisoned


def test_the_last_byte_is_used_and_one_more_refused() -> None:
    store = MemoryStore(100)
    store.put(["a", "b"], [content(1, 60), content(2, 40)])
    assert store.used_bytes == 100
    with pytest.raises(StoreFull, match="c of 1 B does not fit: 100 B of 100 B are in use"):
        store.put(["c"], [content(3, 1)])
    assert store.exists(["a", "b", "c"]).tolist() == [True, True, False]
    store.put(["a"], [content(4, 60)])  # in place of what was there
    store.delete(["b", "nothing"])
    assert store.used_bytes == 60


def test_an_object_that_does_not_fit_leaves_the_one_that_it_was_to_replace() -> None:
    store, room = MemoryStore(100), poisoned(90)
    store.put(["a"], [content(1, 90)])
    with pytest.raises(StoreFull):
        store.put(["a"], [content(2, 101)])
    assert store.get(["a"], [room]).all()
    assert (room == content(1, 90)).all()


def test_sizes_in_any_order_fill_it_to_the_byte() -> None:
    sizes = [1, 4096, 7, 37_440, 512, 37_440, 3]
    store = MemoryStore(sum(sizes))
    for before, after in pairwise([sizes, sizes[::-1], sorted(sizes)]):
        store.delete([str(number) for number in range(len(before))])
        assert store.used_bytes == 0
        store.put(
            [str(n) for n in range(len(after))], [content(n, s) for n, s in enumerate(after)]
        )
        assert store.used_bytes == store.capacity_bytes


@pytest.mark.skipif(torch.cuda.is_available(), reason="memory can be pinned here")
def test_memory_that_cannot_be_pinned_is_a_sentence() -> None:
    store = open_memory("pinned:1MiB", FLASH)
    with pytest.raises(StoreUnavailable, match=r"cannot be pinned here .*: leave it unpinned"):
        store.put(["a"], [content(1, 10)])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU to pin memory for")
def test_pinned_memory_holds_what_it_was_given() -> None:
    store, room = open_memory("pinned:1MiB", FLASH), poisoned(5000)
    store.put(["a"], [content(1, 5000)])
    assert store.get(["a"], [room]).all()
    assert (room == content(1, 5000)).all()
