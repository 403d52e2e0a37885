"""Every store does what a plain dict of bytes would."""

import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.bench.tiers.store import MemoryStore, Namespace, Store, open_memory, open_store
from dsv4kv.errors import ConfigError, StoreFull, StoreUnavailable
from tests.bench.tiers.kinds import (
    FLASH,
    KINDS,
    PRO,
    SEALED,
    SIZES,
    content,
    opened,
    poisoned,
    sealed,
)
from tests.examples import examples

NAMES = ("a", "b", "a/b", "a.b", "..", "-", "3f/8808405eec6fbe30.c4-_", "n" * 200)
CALLS = ("put", "get", "whole", "delete")
Step = tuple[str, list[tuple[str, int]]]
_objects = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(SIZES)), max_size=4)
STEPS = st.lists(st.tuples(st.sampled_from(CALLS), _objects), max_size=12)


@pytest.fixture
def folder() -> Iterator[Path]:
    """One for every example."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


@KINDS
@examples(60)
@given(steps=STEPS)
def test_a_store_holds_what_a_dict_would(kind: str, steps: list[Step]) -> None:
    """Objects are put, got at any length and at their own, and deleted."""
    plain: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as folder, opened(kind, Path(folder)) as store:
        for number, (call, wanted) in enumerate(steps):
            names = [name for name, _ in wanted]
            if call == "put":
                objects = {name: content(number, size) for name, size in wanted}
                store.put(list(objects), list(objects.values()))
                plain |= {name: each.tobytes() for name, each in objects.items()}
            elif call == "delete":
                store.delete(names)
                plain = {name: each for name, each in plain.items() if name not in names}
            elif call == "get":
                check_found(store, plain, wanted)
            else:
                check_found(store, plain, [(name, len(plain.get(name, b""))) for name in names])
            assert store.exists(NAMES).tolist() == [name in plain for name in NAMES]
        assert store.damaged == 0


def check_found(store: Store, plain: dict[str, bytes], wanted: list[tuple[str, int]]) -> None:
    """Objects of that length come, others are not found."""
    names = [name for name, _ in wanted]
    rooms = [poisoned(size) for _, size in wanted]
    found = store.get(names, rooms)
    assert found.dtype == np.bool_
    assert found.tolist() == [name in plain and len(plain[name]) == size for name, size in wanted]
    for name, room, whole in zip(names, rooms, found, strict=True):
        assert not whole or room.tobytes() == plain[name]


@KINDS
def test_only_its_own_bytes_of_the_destination_are_written(kind: str, folder: Path) -> None:
    with opened(kind, folder) as store:
        for size in SIZES:
            object_ = content(size, size)
            store.put(["x"], [object_])
            for start in (0, 1, 4096):
                memory = poisoned(start + size + 100)
                assert store.get(["x"], [memory[start : start + size]]).all()
                assert memory[start : start + size].tobytes() == object_.tobytes()
                assert (np.delete(memory, np.s_[start : start + size]) == poisoned(1)[0]).all()


@KINDS
def test_a_name_that_several_write_and_read_at_once_is_one_of_theirs_whole(
    kind: str, folder: Path
) -> None:
    names = [f"shared/{number}" for number in range(4)]

    def work(worker: int) -> None:
        rooms = [poisoned(20_000) for _ in names]
        for turn in range(6):
            store.put(names, [content(100 * worker + turn, 20_000)] * len(names))
            assert store.get(names, rooms).all()
            for room in rooms:
                seen = room.tobytes()
                assert seen in known

    known = {content(100 * worker + turn, 20_000).tobytes()
             for worker in range(4) for turn in range(6)}  # fmt: skip
    with opened(kind, folder) as store, ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
        assert store.exists(names).all()
        assert store.damaged == 0


@KINDS
@pytest.mark.parametrize("other", [
    PRO,
    Namespace("deepseek-ai/DeepSeek-V4-Flash", "0813", {"entries": "fp8_ds_mla"}),
    Namespace("deepseek-ai/DeepSeek-V4-Flash", "0731", {"entries": "bf16"}),
], ids=["model", "weights", "layout"])  # fmt: skip
def test_objects_of_other_models_weights_and_layouts_are_never_found(
    kind: str, other: Namespace, folder: Path
) -> None:
    with opened(kind, folder) as mine, opened(kind, folder, other) as theirs:
        theirs.put(["x"], [content(1, 100)])
        assert not mine.exists(["x"]).any()
        assert not mine.get(["x"], [poisoned(100)]).any()


FAULTS: dict[str, Callable[[bytes, bytes, bytes], bytes]] = {
    "half written": lambda mine, other, theirs: mine[: len(mine) // 2] + bytes(len(mine) // 2),
    "truncated": lambda mine, other, theirs: mine[:4096],
    "emptied": lambda mine, other, theirs: b"",
    "flipped bit": lambda mine, other, theirs: bytes([mine[0] ^ 1]) + mine[1:],
    "another object's bytes": lambda mine, other, theirs: other,
    "another model's": lambda mine, other, theirs: theirs,
}
"""What becomes of an object's sealed bytes, by them, another object's, and another model's."""


@SEALED
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_counted_and_removed(kind: str, fault: str, folder: Path) -> None:
    """And only there: the other object is still found, and what is put again is right."""
    mine, other, size = "aa/x.c4", "aa/y.c4", 37_440
    with opened(kind, folder) as store, opened(kind, folder, PRO) as theirs:
        store.put([mine, other], [content(1, size), content(2, size)])
        theirs.put([mine], [content(3, size)])
        places = [sealed(store, mine), sealed(store, other), sealed(theirs, mine)]
        places[0].write(FAULTS[fault](*(place.read() for place in places)))
        rooms = [poisoned(size), poisoned(size)]
        assert store.get([mine, other], rooms).tolist() == [False, True]
        assert store.damaged == 1
        assert store.exists([mine, other]).tolist() == [False, True]
        store.put([mine], [content(4, size)])
        assert store.get([mine], rooms[:1]).all()
        assert (rooms[0] == content(4, size)).all()
        assert store.damaged == 1


@pytest.mark.parametrize(
    "place", ["", "tape:/dev/st0", "memory", "memory:", "memory:much", "file"]
)
def test_a_place_that_names_no_store_is_a_sentence(place: str) -> None:
    with pytest.raises(ConfigError, match=r"\.$"):
        open_store(place, FLASH)


# ---- in memory ----------------------------------------------------------------------------------


def test_memory_keeps_as_much_as_it_was_given_and_no_more() -> None:
    store, room = MemoryStore(100), poisoned(60)
    store.put(["a", "b"], [content(1, 60), content(2, 40)])
    for data in (["c"], [content(3, 1)]), (["a"], [content(4, 61)]):
        with pytest.raises(StoreFull, match="B does not fit: 100 B of 100 B are in use"):
            store.put(*data)
    assert store.exists(["a", "b", "c"]).tolist() == [True, True, False]
    assert store.get(["a"], [room]).all()
    assert (room == content(1, 60)).all()
    store.put(["a"], [content(4, 60)])  # in place of what was there
    store.delete(["b", "nothing"])
    assert store.used_bytes == 60


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
