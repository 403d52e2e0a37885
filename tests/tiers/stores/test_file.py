"""Files hold objects whole or not at all, and what is wrong with one is found when it is read."""

import errno
import os
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsv4kv.errors import StoreFull, StoreUnavailable
from dsv4kv.tiers.stores.file import FileStore, _Wanted
from dsv4kv.tiers.stores.lanes import aligned
from dsv4kv.tiers.stores.namespace import Namespace
from tests.interrupts import interrupted
from tests.tiers.stores.kinds import FLASH, SIZES, content, poisoned

PRO = Namespace("deepseek-ai/DeepSeek-V4-Pro", "0731", {"entries": "fp8_ds_mla"})
MINE, OTHER = "aa/x.c4", "aa/y.c4"
SIZE = 37_440


def file_of(store: FileStore, name: str) -> Path:
    return next(store.folder.glob(f"*/{name.replace('/', '~')}.kv"))


def half_written(mine: Path, other: Path, theirs: Path) -> None:
    mine.write_bytes(mine.read_bytes()[: SIZE // 2] + bytes(mine.stat().st_size - SIZE // 2))


def truncated(mine: Path, other: Path, theirs: Path) -> None:
    os.truncate(mine, 4096)


def emptied(mine: Path, other: Path, theirs: Path) -> None:
    os.truncate(mine, 0)


def flipped(mine: Path, other: Path, theirs: Path) -> None:
    bits = np.fromfile(mine, np.uint8)
    bits[SIZE // 3] ^= 1
    mine.write_bytes(bits.tobytes())


def another_object(mine: Path, other: Path, theirs: Path) -> None:
    mine.write_bytes(other.read_bytes())


def another_model(mine: Path, other: Path, theirs: Path) -> None:
    mine.write_bytes(theirs.read_bytes())


FAULTS = (half_written, truncated, emptied, flipped, another_object, another_model)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_counted_and_removed(
    fault: Callable[[Path, Path, Path], None], tmp_path: Path
) -> None:
    """And only there: the other object is still found, and what is put again is right."""
    store, pro = FileStore(tmp_path, FLASH), FileStore(tmp_path, PRO)
    store.put([MINE, OTHER], [content(1, SIZE), content(2, SIZE)])
    pro.put([MINE], [content(3, SIZE)])
    fault(*(file_of(kept, name) for kept, name in ((store, MINE), (store, OTHER), (pro, MINE))))
    rooms = [poisoned(SIZE), poisoned(SIZE)]
    assert store.get([MINE, OTHER], rooms).tolist() == [False, True]
    assert store.damaged == 1
    assert store.exists([MINE, OTHER]).tolist() == [False, True]
    store.put([MINE], [content(4, SIZE)])
    assert store.get([MINE], rooms[:1]).all()
    assert (rooms[0] == content(4, SIZE)).all()
    assert store.damaged == 1


PACKED = [f"{number:02x}/p.c4" for number in range(5)]
"""Objects of one pack, in a store of one thread."""


def packed(folder: Path) -> FileStore:
    store = FileStore(folder, FLASH, threads=1)
    store.put(PACKED, [content(number, SIZE + 100 * number) for number in range(5)])
    assert len({file_of(store, name).stat().st_ino for name in PACKED}) == 1
    return store


def got(store: FileStore, numbers: Sequence[int]) -> list[bool]:
    """Which of the packed objects come back right."""
    rooms = [poisoned(SIZE + 100 * number) for number in numbers]
    found: list[bool] = store.get([PACKED[number] for number in numbers], rooms).tolist()
    for number, room, there in zip(numbers, rooms, found, strict=True):
        assert not there or (room == content(number, SIZE + 100 * number)).all()
    return found


def test_objects_that_are_put_together_share_a_file_and_come_back_in_any_order(
    tmp_path: Path,
) -> None:
    store = packed(tmp_path)
    for numbers in ([0, 1, 2, 3, 4], [4, 2, 0], [3], [1, 1], []):
        assert got(store, numbers) == [True] * len(numbers)
    again = FileStore(tmp_path, FLASH)
    assert got(again, [4, 3, 2, 1, 0]) == [True] * 5
    assert again.get(PACKED[:2], [poisoned(SIZE), poisoned(SIZE)]).tolist() == [True, False]
    assert store.damaged == again.damaged == 0


@pytest.mark.parametrize("number", range(5))
def test_damage_in_a_pack_is_found_in_the_object_that_has_it_and_nowhere_else(
    number: int, tmp_path: Path
) -> None:
    store = packed(tmp_path)
    with file_of(store, PACKED[number]).open("r+b") as file:
        file.seek(number * 40_960 + SIZE // 3)
        file.write(b"?")
    expected = [each != number for each in range(5)]
    assert got(store, range(5)) == expected
    assert store.exists(PACKED).tolist() == expected
    assert store.damaged == 1
    assert got(store, [each for each in range(5) if each != number]) == [True] * 4


def test_a_pack_without_its_table_gives_nothing_wrong(tmp_path: Path) -> None:
    store = packed(tmp_path)
    os.truncate(file_of(store, PACKED[0]), 3 * 40_960)
    assert got(store, range(5)) == [False] * 5
    assert store.damaged == 5
    assert not store.exists(PACKED).any()


def test_what_is_deleted_gives_its_room_back_while_others_of_its_pack_stay(
    tmp_path: Path,
) -> None:
    store = packed(tmp_path)
    pack = file_of(store, PACKED[2])
    before = pack.stat().st_blocks
    store.delete([PACKED[0], PACKED[3]])
    assert before - pack.stat().st_blocks == 2 * 40_960 // 512
    assert got(store, [1, 2, 4]) == [True] * 3
    assert store.exists(PACKED).tolist() == [False, True, True, False, True]
    store.put([PACKED[1]], [content(9, SIZE)])  # elsewhere: the pack's place for it is nobody's
    room = poisoned(SIZE)
    assert store.get([PACKED[1]], [room]).all()
    assert (room == content(9, SIZE)).all()
    store.delete(PACKED)
    assert list(store.folder.glob("*/*.kv")) == []
    assert store.damaged == 0


def test_what_is_deleted_while_it_is_read_was_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its place in the pack is a hole by then; that is no damage."""
    store, real = packed(tmp_path), os.preadv

    def read(*asked: Any) -> int:
        monkeypatch.setattr(os, "preadv", real)
        store.delete(PACKED[:2])
        return real(*asked)

    monkeypatch.setattr(os, "preadv", read)
    assert got(store, [0, 1, 2]) == [False, False, True]
    assert store.damaged == 0


def test_a_disk_without_links_keeps_every_object_in_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    FileStore(tmp_path, FLASH).close()
    monkeypatch.setattr(os, "link", link)
    store = FileStore(tmp_path, FLASH, threads=1)
    store.put(PACKED, [content(number, SIZE + 100 * number) for number in range(5)])
    assert got(store, range(5)) == [True] * 5
    assert len({file_of(store, name).stat().st_ino for name in PACKED}) == 5


def test_a_bad_sector_costs_the_object_on_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, real = packed(tmp_path), os.preadv

    def read(file: int, parts: list[Any], at: int) -> int:
        if at <= 2 * 40_960 < at + sum(map(len, parts)):
            raise OSError(errno.EIO, "Input/output error")
        return real(file, parts, at)

    def whole(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "preadv", read)
    monkeypatch.setattr(np, "fromfile", whole)
    assert got(store, range(5)) == [True, True, False, True, True]
    assert store.damaged == 1


def test_an_object_of_another_length_is_not_taken_for_a_damaged_one(tmp_path: Path) -> None:
    store = FileStore(tmp_path, FLASH)
    store.put([MINE], [content(1, SIZE)])
    for size in SIZES:
        assert not store.get([MINE], [poisoned(size)]).any()
    assert store.damaged == 0
    assert store.get([MINE], [poisoned(SIZE)]).all()


def test_an_object_that_is_put_anew_while_the_old_one_is_judged_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path, FLASH)
    store.put([MINE], [content(1, SIZE)])
    content_of, seen_damaged, room = store._content, [None], poisoned(SIZE)
    monkeypatch.setattr(
        store,
        "_content",
        lambda *asked: seen_damaged.pop() if seen_damaged else content_of(*asked),
    )
    assert store._judge(_Wanted(0, MINE, room))
    assert (room == content(1, SIZE)).all()
    assert store.get([MINE], [poisoned(SIZE)]).all()
    assert store.damaged == 0
    assert list(Path(store._own).iterdir()) == []


def test_a_disk_that_cannot_read_a_file_has_damaged_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    store = FileStore(tmp_path, FLASH)
    store.put([MINE], [content(1, SIZE)])
    monkeypatch.setattr(os, "preadv", fail)
    monkeypatch.setattr(np, "fromfile", fail)
    assert not store.get([MINE], [poisoned(SIZE)]).any()
    assert store.damaged == 1
    assert not store.exists([MINE]).any()


@pytest.mark.parametrize("refuses", ["open", "pwritev"])
def test_where_o_direct_is_refused_files_are_buffered_and_dropped_from_the_page_cache(
    refuses: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems refuse it when a file is opened, some when it is written."""
    if not hasattr(os, "O_DIRECT"):
        pytest.skip("this system has no O_DIRECT")
    real_open, real_write, direct = os.open, os.pwritev, set[int]()

    def open_(path: str, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_DIRECT and refuses == "open":
            raise OSError(errno.EINVAL, "Invalid argument", path)
        file = real_open(path, flags, *rest, **more)
        (direct.add if flags & os.O_DIRECT else direct.discard)(file)
        return file

    def write(file: int, *rest: Any) -> int:
        if file in direct:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_write(file, *rest)

    dropped = []
    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "pwritev", write)
    monkeypatch.setattr(os, "posix_fadvise", lambda *call: dropped.append(call[1:]))
    store = FileStore(tmp_path, FLASH)
    assert store.cold == "posix_fadvise(DONTNEED)"
    for size in SIZES:
        room = poisoned(size)
        store.put([MINE], [content(size, size)])
        assert store.get([MINE], [room]).all()
        assert (room == content(size, size)).all()
    assert dropped == [(0, 0, os.POSIX_FADV_DONTNEED)] * len(SIZES)


def test_aligned_and_other_memory_give_the_same_files(tmp_path: Path) -> None:
    store = FileStore(tmp_path, FLASH)
    for size in SIZES:
        at_page = aligned(size)
        assert at_page.ctypes.data % 4096 == 0
        at_page[:] = content(size, size)
        store.put([MINE], [at_page])
        file = file_of(store, MINE).read_bytes()
        shifted = aligned(size + 1)[1:]
        shifted[:] = at_page
        store.put([MINE], [shifted])
        assert file_of(store, MINE).read_bytes() == file
        assert len(file) % 4096 == 0
        rooms = [poisoned(size), aligned(size), aligned(size + 1)[1:]]
        assert store.get([MINE] * 3, rooms).all()
        assert all((room == content(size, size)).all() for room in rooms)


@pytest.mark.parametrize(("code", "kind"), [
    (errno.ENOSPC, StoreFull), (errno.EDQUOT, StoreFull), (None, StoreFull),
    (errno.EROFS, StoreUnavailable), (errno.EACCES, StoreUnavailable),
])  # fmt: skip
def test_a_disk_that_takes_no_more_is_a_sentence_and_leaves_what_was_there(
    code: int | None, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None: a part of the object is written."""

    def write(file: int, parts: list[memoryview], offset: int) -> int:
        if code is None:
            return os.pwrite(file, bytes(parts[0][:4096]), offset) if offset == 0 else 0
        raise OSError(code, os.strerror(code))

    store = FileStore(tmp_path, FLASH, threads=1)
    store._lanes.direct = False
    store.put([MINE], [content(1, SIZE)])
    before = sorted(tmp_path.rglob("*"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", write)
        with pytest.raises(kind, match=rf"{tmp_path}.*: .*\.$") as caught:
            store.put([OTHER, MINE], [content(2, SIZE), content(2, SIZE)])
        assert type(caught.value) is kind
    assert sorted(tmp_path.rglob("*")) == before
    room = poisoned(SIZE)
    assert store.get([MINE, OTHER], [room, poisoned(SIZE)]).tolist() == [True, False]
    assert (room == content(1, SIZE)).all()
    store.put([OTHER], [content(2, SIZE)])  # the next call tries anew
    assert store.exists([OTHER]).all()


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match=r"cannot be used as a store .*: name a folder"):
        FileStore(tmp_path / "file", FLASH)


def test_whatever_their_names_objects_are_there_when_the_folder_is_opened_again(
    tmp_path: Path,
) -> None:
    names = ["probe", "config.json", ".unfinished-1", "0", "aa/probe"]
    store = FileStore(tmp_path, FLASH)
    store.put(names, [content(number, SIZE) for number in range(len(names))])
    store.close()
    again, rooms = FileStore(tmp_path, FLASH), [poisoned(SIZE) for _ in names]
    assert again.get(names, rooms).all()
    assert all((room == content(number, SIZE)).all() for number, room in enumerate(rooms))
    again.close()


def test_a_disk_that_is_full_when_the_folder_is_opened_keeps_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwritev", write)
    with pytest.raises(StoreFull):
        FileStore(tmp_path, FLASH)
    assert list(tmp_path.glob("*/.unfinished*")) == []
    opened = [os.path.realpath(file) for file in Path("/proc/self/fd").glob("*")]
    assert [file for file in opened if file.startswith(str(tmp_path))] == []


def test_the_folder_says_whose_objects_it_holds_and_is_refused_to_others(tmp_path: Path) -> None:
    store = FileStore(tmp_path, FLASH)
    assert store.folder.name.startswith("deepseek-ai_DeepSeek-V4-Flash_")
    told = store.folder / "config.json"
    assert '"revision": "0731"' in told.read_text()
    FileStore(tmp_path, FLASH)
    told.write_text(told.read_text().replace("0731", "0813"))
    with pytest.raises(StoreUnavailable, match="not the objects of deepseek-ai/DeepSeek-V4-Flash"):
        FileStore(tmp_path, FLASH)


def test_what_dead_processes_left_is_removed_and_what_live_ones_write_is_not(
    tmp_path: Path,
) -> None:
    live = FileStore(tmp_path, FLASH)
    left = live.folder / ".unfinished-of-a-process-that-was-killed"
    left.mkdir()
    (left / "0").write_bytes(bytes(4096))
    second = FileStore(tmp_path, FLASH)
    assert not left.exists()
    live.put([MINE], [content(1, SIZE)])  # its folder is still there
    assert second.get([MINE], [poisoned(SIZE)]).all()
    live.close()
    second.close()
    assert list(second.folder.glob(".unfinished*")) == []


def test_interrupted_on_any_line_a_put_has_kept_the_old_object_or_the_new_one(
    tmp_path: Path,
) -> None:
    old, new, room = content(1, SIZE), content(2, SIZE), poisoned(SIZE)
    for at in count():
        store = FileStore(tmp_path / str(at), FLASH, threads=1)
        store.put([MINE], [old])
        with interrupted(at) as where:
            try:
                store.put([MINE, OTHER], [new, new])
            except KeyboardInterrupt:
                assert list(Path(store._own).iterdir()) == []
        found = store.get([MINE, OTHER], [room, poisoned(SIZE)])
        assert found[0]
        assert any((room == each).all() for each in (old, new))
        assert store.damaged == 0
        store.put([MINE, OTHER], [new, new])
        assert store.get([MINE, OTHER], [room, room]).all()
        store.close()
        if not where:
            break


def test_after_an_interruption_no_thread_writes_into_the_callers_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller has its memory back when the exception arrives."""
    store = FileStore(tmp_path, FLASH, threads=4)
    names = [f"n/{number}" for number in range(40)]
    store.put(names, [content(number, SIZE) for number in range(40)])
    rooms = [poisoned(SIZE) for _ in names]

    interruptions = [KeyboardInterrupt()]

    def wait_or_stop(lanes: list[Future[None]]) -> object:
        if interruptions:
            raise interruptions.pop()
        return wait(lanes)

    monkeypatch.setattr("dsv4kv.tiers.stores.lanes.wait", wait_or_stop)
    with pytest.raises(KeyboardInterrupt):
        store.get(names, rooms)
    seen = [room.copy() for room in rooms]
    store._lanes._pool.shutdown()  # whatever might still be at work ends
    assert all((room == before).all() for room, before in zip(rooms, seen, strict=True))


@pytest.mark.parametrize("kind", ["pipe", "socket", "link", "folder", "device"])
def test_what_is_no_file_is_no_object_and_nobody_waits_for_it(kind: str, tmp_path: Path) -> None:
    store = FileStore(tmp_path, FLASH)
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
    elif kind == "link":
        path.symlink_to(tmp_path / "taken")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    into = [poisoned(SIZE), poisoned(SIZE)]
    assert store.get([MINE, OTHER], into).tolist() == [False, True]
    assert store.damaged == 0
    store.delete([MINE])
    if kind != "folder":
        store.put([MINE], data[:1])
        assert store.get([MINE], into[:1]).tolist() == [True]
    store.close()


def test_cache_bytes_are_this_users_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        FileStore(tmp_path / "root", FLASH).close()
        (folder,) = (tmp_path / "root").iterdir()
        folder.chmod(0o755)  # as older versions made it
        store = FileStore(tmp_path / "root", FLASH)
        store.put([MINE, OTHER], [content(1, SIZE), content(2, SIZE)])
        found = [store.folder, *store.folder.rglob("*")]
        store.close()
    finally:
        os.umask(before)
    modes = {path.is_dir(): path.stat().st_mode & 0o777 for path in found if path.exists()}
    assert modes == {True: 0o700, False: 0o600}
    assert all(not path.stat().st_mode & 0o077 for path in found if path.exists())


@pytest.mark.parametrize("name", ["config.json", ".unfinished-x"])
def test_a_pipe_in_the_folder_of_a_store_keeps_nobody_waiting(name: str, tmp_path: Path) -> None:
    FileStore(tmp_path, FLASH).close()
    (folder,) = tmp_path.iterdir()
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    if name == "config.json":
        with pytest.raises(StoreUnavailable, match="it is a pipe or a device"):
            FileStore(tmp_path, FLASH)
    else:
        FileStore(tmp_path, FLASH).close()
