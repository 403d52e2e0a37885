"""Children and temporary folders end with the process that made them, also when it is killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dsv4kv.processes import Child, temporary_folder
from tests.process_tree import descendants, is_running

SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")
# one that starts another of its group and ends last
FAMILY = (
    sys.executable,
    "-c",
    f"import subprocess; subprocess.run({list(SLEEP)})",
)
DEAF = (
    sys.executable,
    "-c",
    (
        "import signal, time\nfor s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)\n"
        "print('deaf', flush=True)\ntime.sleep(600)"
    ),
)


def wait_for(condition: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Temporary files of this test alone."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("code", [0, 1, 130, 255])
def test_a_child_ends_with_its_exit_code(code: int) -> None:
    assert Child([sys.executable, "-c", f"raise SystemExit({code})"]).wait(120) == code


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGTERM])
def test_a_child_that_a_signal_ends_says_which(number: int) -> None:
    program = f"import os; os.kill(os.getpid(), {int(number)})"
    assert Child([sys.executable, "-c", program]).wait(120) == -number


def test_a_child_has_what_it_was_given_and_nothing_else(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    program = (
        "import os, sys; print(sys.stdin.read() == '', os.environ['WORD'], "
        f"os.read({reader}, 9), sys.argv[1:]); sys.stderr.write('to here')"
    )
    os.write(writer, b"inherited")
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        command = [sys.executable, "-c", program, "--", "-x"]
        child = Child(command, stdout=out, stderr=err, env={"WORD": "said"}, pass_fds=(reader,))
        assert child.wait(120) == 0
    assert (tmp_path / "out").read_text() == "True said b'inherited' ['--', '-x']\n"
    assert (tmp_path / "err").read_text() == "to here"
    os.close(reader)
    os.close(writer)


def test_a_pipe_that_a_child_inherits_ends_with_the_child() -> None:
    reader, writer = os.pipe()
    child = Child([sys.executable, "-c", "pass"], pass_fds=(writer,))
    os.close(writer)
    assert os.read(reader, 1) == b""
    os.close(reader)
    child.wait(120)


def test_signals_reach_the_whole_group() -> None:
    child = Child(FAMILY)
    family = grown_family(child, 2)
    child.signal(signal.SIGINT)
    assert child.wait(120) == -signal.SIGINT
    wait_for(lambda: not any(map(is_running, family)))


def test_a_child_that_hears_nothing_can_be_killed() -> None:
    reader, writer = os.pipe()
    child = Child(DEAF, stdout=writer)
    os.close(writer)
    assert os.read(reader, 1)  # its signals are set
    (pid,) = grown_family(child, 1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        child.signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.3)
    assert child.kill() == -signal.SIGKILL
    wait_for(lambda: not is_running(pid))
    os.close(reader)


def grown_family(child: Child, members: int) -> list[int]:
    wait_for(lambda: len(descendants(child._process.pid)) == members)
    return descendants(child._process.pid)


def test_what_cannot_be_started_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no such program"):
        Child([str(tmp_path / "nothing")])


def test_a_temporary_folder_is_this_users_alone_and_goes_with_its_block(here: Path) -> None:
    with temporary_folder("test-") as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "file").write_text("x")
        assert folder.stat().st_mode & 0o777 == 0o700
        assert [path.name.startswith("test-") for path in here.iterdir()] == [True]
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.03, 0.1, 0.3])
@pytest.mark.parametrize("command", [SLEEP, FAMILY, DEAF], ids=["one", "family", "deaf"])
def test_nothing_outlives_a_killed_process(
    here: Path, command: tuple[str, ...], delay_s: float
) -> None:
    program = (
        "import time; from dsv4kv.processes import Child, temporary_folder\n"
        "print('ready', flush=True)\n"
        "with temporary_folder('killed-') as folder:\n"
        f"    Child({command!r})\n"
        "    for i in range(10**6): (folder / str(i)).write_text('x')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    time.sleep(delay_s)
    left = descendants(process.pid)
    process.kill()
    process.communicate()
    wait_for(lambda: not any(map(is_running, left)))
    wait_for(lambda: list(here.iterdir()) == [])
