"""Children end with the process that made them, also when it is killed; work in parallel."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dsv4kv.errors import ConfigError, Dsv4kvError
from dsv4kv.processes import Child, find_program, map_parallel, run_bounded
from tests.process_tree import descendants, is_running
from tests.record.sockets import wait_until

SLEEP = (sys.executable, "-c", "import time; print('asleep', flush=True); time.sleep(600)")
# one that starts another of its group and ends last
FAMILY = (sys.executable, "-c", f"import subprocess; subprocess.run({list(SLEEP)})")
DEAF = (
    sys.executable,
    "-c",
    (
        "import signal, time\nfor s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)\n"
        "print('deaf', flush=True)\ntime.sleep(600)"
    ),
)


def test_signals_reach_the_whole_group() -> None:
    child = Child(FAMILY)
    wait_until(lambda: bool(descendants(child._process.pid)))
    family = [child._process.pid, *descendants(child._process.pid)]
    child.signal(signal.SIGINT)
    assert child.wait(120) == -signal.SIGINT
    wait_until(lambda: not any(map(is_running, family)))


def test_a_child_that_hears_nothing_can_be_killed() -> None:
    reader, writer = os.pipe()
    child = Child(DEAF, stdout=writer)
    os.close(writer)
    assert os.read(reader, 1)  # its signals are set
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        child.signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.3)
    assert child.kill() == -signal.SIGKILL
    os.close(reader)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends them on Linux")
@pytest.mark.parametrize("command", [SLEEP, DEAF], ids=["one", "deaf"])
def test_no_child_outlives_a_killed_process(command: tuple[str, ...]) -> None:
    program = (
        "import sys, time; from dsv4kv.processes import Child\n"
        f"Child({command!r}, stdout=sys.stdout.fileno())\n"
        "print('ready', flush=True); time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    told = {process.stdout.readline() for _ in range(2)}  # it asked the kernel before it ran
    assert b"ready\n" in told
    left = descendants(process.pid)
    process.kill()
    process.communicate()
    wait_until(lambda: not any(map(is_running, left)))


def halve(number: int) -> int:
    if number < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if number % 2:
        raise ConfigError(f"{number} is odd")
    return number // 2


def test_a_killed_worker_is_a_sentence() -> None:
    with pytest.raises(Dsv4kvError, match=r"was killed.*: give it fewer processes"):
        list(map_parallel(halve, [-1, 2], 2))


@pytest.mark.parametrize("entry", ["", ".", "bin"])
def test_nothing_of_the_current_folder_is_run_as_a_program(
    entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (tmp_path, tmp_path / "bin"):
        folder.mkdir(exist_ok=True)
        (folder / "nsys").write_text("#!/bin/sh\n")
        (folder / "nsys").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.pathsep.join([entry, os.environ["PATH"]]))
    assert find_program("nsys") is None
    with pytest.raises(OSError, match="no such program"):
        Child(["nsys"])
    with pytest.raises(FileNotFoundError):
        run_bounded(["nsys"], os.environ, 60)


def test_a_program_that_prints_without_end_is_killed() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_bounded(["yes"], os.environ, 60, most_bytes=2**20)
    with pytest.raises(subprocess.TimeoutExpired):
        run_bounded(["sleep", "600"], os.environ, 0.1)
