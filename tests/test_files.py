"""A file appears whole or not at all."""

import os
import re
import signal
import subprocess
import sys
from io import BufferedWriter
from pathlib import Path

import pytest

from dsv4kv.errors import ConfigError
from dsv4kv.files import replacing, temporary_place, write_named


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_with_all_its_content(tmp_path: Path) -> None:
    with replacing(tmp_path / "run.json") as file:
        file.write(b"all of it")
    assert names(tmp_path) == ["run.json"]
    assert (tmp_path / "run.json").read_bytes() == b"all of it"


def test_nothing_is_seen_before_the_end(tmp_path: Path) -> None:
    target = tmp_path / "run.json"
    target.write_bytes(b"old")
    with replacing(target) as file:
        file.write(b"half")
        file.flush()
        assert target.read_bytes() == b"old"
    assert target.read_bytes() == b"half"


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_failure_leaves_what_was_there(tmp_path: Path, error: type[BaseException]) -> None:
    target = tmp_path / "run.json"
    target.write_bytes(b"old")

    def fail(file: BufferedWriter) -> None:
        file.write(b"half")
        raise error

    with pytest.raises(error), replacing(target) as file:
        fail(file)
    assert names(tmp_path) == ["run.json"]
    assert target.read_bytes() == b"old"


def test_two_writers_do_not_meet(tmp_path: Path) -> None:
    target = tmp_path / "run.json"
    with replacing(target) as first, replacing(target) as second:
        first.write(b"first")
        second.write(b"second")
        assert not target.exists()
    assert target.read_bytes() == b"first"  # it ended last
    assert names(tmp_path) == ["run.json"]


def test_a_link_is_replaced_and_its_target_left(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_bytes(b"other")
    (tmp_path / "run.json").symlink_to("other.json")
    with replacing(tmp_path / "run.json") as file:
        file.write(b"new")
    assert (tmp_path / "other.json").read_bytes() == b"other"
    assert (tmp_path / "run.json").read_bytes() == b"new"


@pytest.mark.parametrize("target", ["gone/run.json", "file/run.json", "folder"])
def test_a_place_that_cannot_be_written_is_an_os_error(tmp_path: Path, target: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="director"), replacing(tmp_path / target) as file:
        file.write(b"x")
    assert names(tmp_path) == ["file", "folder"]


@pytest.mark.parametrize("target", [".", "/", ".."])
def test_a_path_without_a_file_name_is_an_os_error(target: str) -> None:
    with pytest.raises(OSError, match=r"directory|busy"), replacing(Path(target)) as file:
        file.write(b"x")


def test_a_file_that_an_option_named_is_written_or_refused_with_the_option(tmp_path: Path) -> None:
    write_named(tmp_path / "a.csv", "ä\n", "--csv")
    assert (tmp_path / "a.csv").read_bytes() == "ä\n".encode()
    target = tmp_path / "gone" / "a.csv"
    sentence = f"--csv {target}: cannot be written (No such file or directory): name a file in a "
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        write_named(target, "", "--csv")
    assert names(tmp_path) == ["a.csv"]


def test_looking_for_the_temporary_place_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = tmp_path.stat().st_mtime_ns
    assert temporary_place() == tmp_path
    assert tmp_path.stat().st_mtime_ns == before


def test_a_process_that_is_killed_while_it_writes_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "run.json"
    program = (
        "import os; from pathlib import Path; from dsv4kv.files import replacing\n"
        f"with replacing(Path({str(target)!r})) as file:\n"
        "    file.write(b'half'); file.flush(); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == -signal.SIGKILL
    if hasattr(os, "O_TMPFILE"):
        assert names(tmp_path) == []


def test_where_files_must_have_names_they_are_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("os.O_TMPFILE", raising=False)
    with replacing(tmp_path / "run.json") as file:
        file.write(b"all of it")
        assert len(names(tmp_path)) == 1
    assert names(tmp_path) == ["run.json"]
    assert (tmp_path / "run.json").read_bytes() == b"all of it"


def test_permissions_are_those_asked_for(tmp_path: Path) -> None:
    with replacing(tmp_path / "own", mode=0o600) as file:
        file.write(b"x")
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o600


def test_a_pipe_that_nobody_reads_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device"), replacing(tmp_path / "pipe"):
        pass
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with replacing(tmp_path / "pipe") as file:
        file.write(b"x" * 10)
    assert os.read(reader, 99) == b"x" * 10
    os.close(reader)
