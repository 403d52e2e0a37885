"""What the stand-in for a worker's copies tells: whose content a copy reads, and when."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsv4kv.diagnose.conform.driven import offloading
from dsv4kv.diagnose.conform.driven.broken import Broken

COPIES: Any = offloading.Copies  # nothing is typed that runs in the engine's environment
CHAIN, OTHER = [11, 12, 13, 14], [21, 22, 23, 24]
HELD = (1, 0, CHAIN, 16)  # a block of 16 tokens of group 1, with a name for every four
WANTED = (1, 0, 16, CHAIN[3], 4)


def spec(*numbers: int) -> SimpleNamespace:
    return SimpleNamespace(block_ids=np.array(numbers))


def copies_of(**content: Any) -> Any:
    result = lambda job_id, success: job_id  # noqa: E731
    return COPIES(result, {int(name[1:]): held for name, held in content.items()})


def test_what_was_stored_is_loaded_from_a_store_that_ended() -> None:
    content = {5: HELD}
    copies = COPIES(lambda job_id, success: job_id, content)
    copies.wanted |= {0: {2: WANTED}, 1: {7: WANTED}}
    copies.submit_store(0, spec(5), spec(2))
    assert copies.get_finished() == []
    copies.land(0)
    copies.submit_load(1, spec(2), spec(7))
    assert 7 not in content
    copies.wait({1, 99})
    assert content[7] == HELD
    assert copies.get_finished() == [0, 1]
    assert not copies.under_way


def store_then(act: Callable[[Any], Any], **content: Any) -> None:
    """A store of block 5 to chunk 2 is under way."""
    copies = copies_of(**content)
    copies.wanted |= {0: {2: WANTED}, 1: {7: WANTED}}
    copies.submit_store(0, spec(5), spec(2))
    act(copies)


def change(copies: Any) -> None:
    copies._content[5] = (1, 0, OTHER, 16)
    copies.land(0)


def give_away(copies: Any) -> None:
    copies.land(0)
    copies.submit_load(1, spec(2), spec(7))
    copies.submit_store(2, spec(8), spec(2))


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda copies: copies.submit_load(1, spec(2), spec(7)), "chunk 2 .* holds nothing"),
        (change, "block 5 changes under a copy of it"),
        (lambda copies: copies.submit_load(1, spec(2), spec(5)), "block 5 has another copy"),
        (lambda copies: copies.submit_store(2, spec(8), spec(2)), "chunk 2 .* has another copy"),
        (give_away, "chunk 2 .* has another copy"),
    ],
)
def test_a_copy_of_what_is_not_there_or_not_its_own_is_told(
    act: Callable[[Any], Any], says: str
) -> None:
    with pytest.raises(Broken, match=says) as raised:
        store_then(act, b5=HELD, b8=HELD)
    assert raised.value.kind == "reads"


@pytest.mark.parametrize(
    ("held", "says"),
    [
        (None, "holds nothing of them"),
        ((1, 0, CHAIN, 12), "holds nothing of them"),
        ((2, 0, CHAIN, 16), "holds nothing of them"),
        ((1, 0, OTHER, 16), "holds another prompt's"),
    ],
)
def test_a_store_reads_whole_entries_of_its_own_group_place_and_prompt(
    held: Any, says: str
) -> None:
    with pytest.raises(Broken, match=f"block 5 is copied as tokens to 16 of group 1, and {says}"):
        store_then(lambda _: None, b5=held)


def host_of(**told: Any) -> Any:
    """The host memory of a manager that has made four chunks, and a job for each key's sake."""
    chunks = told.pop("chunks")
    manager = SimpleNamespace(
        _policy=SimpleNamespace(chunks=chunks),
        _num_chunks=9,
        _num_allocated_chunks=4,
        _free_list=told.pop("free", []),
        _num_evictable_cache_chunks=told.pop("idle", 0),
    )
    manager._get_num_free_chunks = lambda: 5 + len(manager._free_list)
    host = object.__new__(offloading.Host)
    host._manager, host.copies = manager, copies_of()
    host._side = SimpleNamespace(_jobs=told.pop("jobs", {}))
    return host


def chunk(number: int, copies: int) -> SimpleNamespace:
    return SimpleNamespace(chunk_id=number, ref_cnt=copies)


STORE = SimpleNamespace(is_store=True, keys={"b"})
LOAD = SimpleNamespace(is_store=False, keys={"c"})
CHUNKS = {"a": chunk(0, 0), "b": chunk(1, -1), "c": chunk(3, 2)}
SOUND: dict[str, Any] = {
    "chunks": CHUNKS,
    "free": [2],
    "idle": 1,
    "jobs": {0: STORE, 1: LOAD, 2: LOAD},
}


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ({}, ""),
        ({"free": []}, "1 of 4 blocks are lost"),
        ({"free": [2, 3]}, "free and held"),
        ({"chunks": CHUNKS | {"d": chunk(3, 0)}}, "chunk 3 of host memory is held twice"),
        ({"jobs": {0: STORE, 1: LOAD}}, "says 2 copies, and 1 are under way"),
        ({"jobs": {1: LOAD, 2: LOAD}}, "says -1 copies, and 0 are under way"),
        ({"idle": 2}, "2 chunks of host memory are counted as idle, and 1 are"),
    ],
)
def test_chunks_are_free_or_held_and_know_their_copies(fault: dict[str, Any], says: str) -> None:
    host = host_of(**(SOUND | fault))
    if not says:
        host.check([])
        return
    with pytest.raises(Broken, match=says):
        host.check([])


def test_a_block_is_not_given_back_while_a_load_writes_it() -> None:
    host = host_of(**SOUND)
    host.copies.under_way[9] = False, [(2, 7, HELD)]
    host.check([1, 2])
    with pytest.raises(Broken, match="block 7 is free, and a load writes it"):
        host.check([1, 7])
