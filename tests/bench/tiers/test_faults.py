"""What goes wrong in the field is found: no request goes on from bytes that are not its own.

Each is a fault that an engine or a connector had; the names are those of the reports.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from dsv4kv.bench.library import Bytes, FileStore, Found, Library, MemoryStore, Restored, Store
from tests.bench.tiers.kinds import file_of
from tests.bench.tiers.world import World, tokens_of

TOKENS = 384


class Stored:
    """A prompt of 384 tokens in a store, its request gone, and a slot to restore it into."""

    def __init__(self, *settings: str, store: Store | None = None) -> None:
        self.world = World(*settings)
        self.store = store or MemoryStore()
        self.library = self.open()
        self.prefix = self.library.prefix(tokens_of(1, TOKENS))
        self.stayed, left = self.world.admit(), self.world.admit()
        for slot in (self.stayed, left):
            self.world.compute(slot, 1, 128, TOKENS)
        self.library.store_prefix(self.prefix, left)
        self.world.release(left)
        other = self.world.admit()  # takes its blocks
        self.world.compute(other, 2, TOKENS)
        self.slot = self.world.admit()

    def open(self) -> Library:
        """The library of a process that begins: it knows nothing of what it finds."""
        return self.world.library(self.store)

    @property
    def objects(self) -> dict[str, Bytes]:
        assert isinstance(self.store, MemoryStore)
        return self.store.objects

    def names(self, family: str) -> list[str]:
        return [name for name in self.objects if name.endswith(f".{family}")]

    def restore(self) -> Restored:
        return self.open().restore(self.prefix, self.slot)

    def is_refused(self) -> str:
        """Nothing is restored and the blocks are given back: which object was wrong."""
        held = self.world.manager.num_held_blocks
        restored = self.restore()
        assert (restored.tokens, restored.read_bytes) == (0, 0)
        assert self.world.manager.num_held_blocks == held
        assert self.world.manager.tokens[self.slot] == 0
        return restored.damaged


def swap(stored: Stored, name: str) -> Bytes:
    """Another page of the family (tokenspeed#660: page ids of one group applied to another's)."""
    return stored.objects[stored.names(name.rpartition(".")[2])[1]]


def cut(stored: Stored, name: str) -> Bytes:
    """19,008 of 32,768 B (vllm#57661)."""
    whole = stored.objects[name]
    return whole[: len(whole) * 19_008 // 32_768]


def without_drafts(stored: Stored, name: str) -> Bytes:
    """The windows of all layers but the last, the draft's (sglang#30461)."""
    return stored.objects[name][: -stored.library.cache.families["window"].piece_bytes]


def flipped(stored: Stored, name: str) -> Bytes:
    data = stored.objects[name].copy()
    data[40] ^= 1
    return data


@pytest.mark.parametrize(
    ("damage", "family"),
    [
        (swap, "csa"), (swap, "hca"),
        (cut, "window"), (cut, "csa_state"),
        (without_drafts, "window"),
        # of other weights: of the same size, under the same name, and nobody said so
        (lambda _, name: Stored("measure.seed=5").objects[name], "csa"),
        (flipped, "manifest"),
    ],
)  # fmt: skip
def test_a_damaged_object_is_found(damage: Callable[[Stored, str], Bytes], family: str) -> None:
    stored = Stored()
    name = stored.names(family)[0]
    stored.objects[name] = damage(stored, name)
    assert stored.is_refused() == name


@pytest.mark.parametrize("family", ["csa", "window", "manifest"])
def test_a_missing_object_is_no_resume_point(family: str) -> None:
    stored = Stored()
    del stored.objects[stored.names(family)[0]]
    assert stored.library.lookup(stored.prefix) == []
    assert stored.is_refused() == ""


IN_A_FILE: dict[str, Callable[[bytes, bytes], bytes]] = {
    "half written": lambda mine, other: mine[: len(mine) // 2] + bytes(len(mine) // 2),
    "truncated": lambda mine, other: mine[:4096],
    "emptied": lambda mine, other: b"",
    "flipped bit": lambda mine, other: bytes([mine[0] ^ 1]) + mine[1:],
    "another object's bytes": lambda mine, other: other,
    "longer": lambda mine, other: mine + other,
}
"""What becomes of an object's bytes in its file, by them and by another object's."""


@pytest.mark.parametrize("fault", IN_A_FILE)
def test_what_is_wrong_in_a_file_is_found(fault: str, tmp_path: Path) -> None:
    """And what is stored again is right."""
    with closing(FileStore(tmp_path)) as store:
        stored = Stored(store=store)
        mine, other = stored.prefix.names("csa", 2)
        place = file_of(store, mine)
        place.write_bytes(IN_A_FILE[fault](place.read_bytes(), file_of(store, other).read_bytes()))
        assert stored.is_refused() == mine
        stored.open().store_prefix(stored.prefix, stored.stayed)
        assert stored.restore().tokens == TOKENS


class Forgetful(MemoryStore):
    """Says that an object is there, and has lost it when it is asked for."""

    def get(self, names: Sequence[str], into: Sequence[Bytes]) -> Found:
        found = super().get(names, into)
        found &= np.array([not name.endswith(".hca") for name in names])
        return found


def test_what_is_lost_between_looking_and_reading_gives_the_blocks_back() -> None:
    assert Stored(store=Forgetful()).is_refused().endswith(".hca")
