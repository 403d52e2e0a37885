"""Files hold objects whole or not at all."""

import errno
import os
import socket
from pathlib import Path

import pytest

from dsv4kv.bench.library import FileStore
from dsv4kv.errors import StoreFull, StoreUnavailable
from tests.bench.tiers.kinds import content, file_of, poisoned

MINE, OTHER = "aa/x.c4", "aa/y.c4"
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


def test_a_file_of_any_size_costs_no_memory(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put([MINE], [content(1, SIZE)])
    os.truncate(file_of(store, MINE), 1 << 40)
    assert not store.get([MINE], [poisoned(SIZE)]).any()


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match=r"cannot be used as a store .*: name a folder"):
        FileStore(tmp_path / "file")


@pytest.mark.parametrize("kind", ["pipe", "socket", "folder", "device"])
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
