"""Every store does what a plain dict of bytes would; files hold objects whole or not at all."""

import errno
import os
import socket
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.bench.library import FileStore, Store
from dsv4kv.errors import StoreFull, StoreUnavailable
from tests.bench.tiers.kinds import KINDS, SIZES, content, file_of, opened, poisoned
from tests.examples import examples

NAMES = ("a", "b", "a.b", "..", "-", "8808405eec6fbe30.c4-_", "n" * 200)
CALLS = ("put", "get", "whole", "delete")
Step = tuple[str, list[tuple[str, int]]]
_objects = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(SIZES)), max_size=4)
STEPS = st.lists(st.tuples(st.sampled_from(CALLS), _objects), max_size=12)


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
def test_a_name_that_several_write_and_read_at_once_is_one_of_theirs_whole(
    kind: str, tmp_path: Path
) -> None:
    names = [f"shared-{number}" for number in range(4)]

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
    with opened(kind, tmp_path) as store, ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
        assert store.exists(names).all()


MINE, OTHER = "x.c4", "y.c4"
SIZE = 37_440


@pytest.mark.parametrize(("code", "kind"), [
    (errno.ENOSPC, StoreFull), (errno.EDQUOT, StoreFull),
    (errno.EROFS, StoreUnavailable), (errno.EACCES, StoreUnavailable),
])  # fmt: skip
def test_a_disk_that_takes_no_more_is_a_sentence_and_leaves_what_was_there(
    code: int, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: int) -> None:
        raise OSError(code, os.strerror(code))

    store = FileStore(tmp_path, threads=1)
    store.put([MINE], [content(1, SIZE)])
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refuse)
        with pytest.raises(kind, match=rf"{tmp_path}.*: .*\.$") as caught:
            store.put([OTHER, MINE], [content(2, SIZE), content(2, SIZE)])
        assert type(caught.value) is kind
    assert len(list(tmp_path.rglob("*.kv"))) == 1
    assert not [path for path in tmp_path.rglob("*") if path.suffix not in (".kv", ".json", "")]
    room = poisoned(SIZE)
    assert store.get([MINE, OTHER], [room, poisoned(SIZE)]).tolist() == [True, False]
    assert (room == content(1, SIZE)).all()
    store.put([OTHER], [content(2, SIZE)])  # the next call tries anew
    assert store.exists([OTHER]).all()


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match=r"cannot be used as a store .*: name a folder"):
        FileStore(tmp_path / "file")


@pytest.mark.parametrize("kind", ["pipe", "socket", "folder", "device", "huge"])
def test_what_is_no_file_is_no_object_and_nobody_waits_for_it(kind: str, tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    data = [content(1, SIZE), content(2, SIZE)]
    store.put([MINE, OTHER], data)
    path = file_of(store, MINE)
    path.rename(tmp_path / "taken")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            (tmp_path / "s").symlink_to(path.parent)  # its path may be long
            server.bind(str(tmp_path / "s" / path.name))
    elif kind == "folder":
        path.mkdir()
    elif kind == "huge":
        path.touch()
        os.truncate(path, 1 << 40)
    else:
        path.symlink_to("/dev/zero")
    into = [poisoned(SIZE), poisoned(SIZE)]
    assert store.get([MINE, OTHER], into).tolist() == [False, True]
    if kind != "folder":
        store.delete([MINE])
        store.put([MINE], data[:1])
        assert store.get([MINE], into[:1]).tolist() == [True]
    store.close()


def test_cache_bytes_are_this_users_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = FileStore(tmp_path / "root")
        store.put([MINE, OTHER], [content(1, SIZE), content(2, SIZE)])
        found = [store.folder, *store.folder.rglob("*")]
        store.close()
    finally:
        os.umask(before)
    modes = {path.is_dir(): path.stat().st_mode & 0o777 for path in found if path.exists()}
    assert modes == {True: 0o700, False: 0o600}
    assert all(not path.stat().st_mode & 0o077 for path in found if path.exists())
