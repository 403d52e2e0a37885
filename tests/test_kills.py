"""Killed at any instant, no command loses a record or a finished point, or leaves a process.

``DSV4KV_KILLS=200`` kills so often; the suite does it a few times.
"""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsv4kv.runs.points import read_points
from dsv4kv.runs.store import POINTS, dumps, load_record
from tests.bench.settings import TINY
from tests.process_tree import descendants, is_running
from tests.runs.records import make_case, make_record

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

KILLS = int(os.environ.get("DSV4KV_KILLS", "3"))
LONGEST_S = 6.0  # what a command takes on a machine that has other work
KEPT = 3  # records that are never to go
PATIENCE_S = 120.0

_SMALL = [word for setting in TINY for word in ("--set", setting)]
COMMANDS = {
    "bench": ("bench", "smoke", *_SMALL),
    "launches": ("bench", "smoke", *_SMALL, "--data", "none", "--launches", "9"),
    "replay": ("replay", "builtin:chat"),
    "sweep": ("replay", "builtin:chat", "--axis", "prefix.policy=lru,fifo,lfu", "--jobs", "2"),
    "report": ("report", "results/kept-0.json", "--html", "page.html"),
    "tiers": ("bench", "tiers", "--set", "lengths=[2048]"),
    "kernels": ("kernels", "--arch", "sm_90a"),
}


@pytest.mark.parametrize("turn", range(KILLS))
def test_a_kill_loses_no_record_and_leaves_no_process_and_no_half_file(
    turn: int, tmp_path: Path
) -> None:
    name = list(COMMANDS)[turn % len(COMMANDS)]
    results, temporary = tmp_path / "results", tmp_path / "temporary"
    results.mkdir()
    temporary.mkdir()
    for run_id in (f"kept-{number}" for number in range(KEPT)):
        record = make_record(make_case()).model_copy(update={"run_id": run_id})
        (results / f"{run_id}.json").write_text(dumps(record))
    before = set(results.iterdir())
    environment = os.environ | {
        "TMPDIR": str(temporary),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "DSV4KV_CACHE_DIR": str(tmp_path / "cubins"),
    }
    _run_and_kill(COMMANDS[name], tmp_path, environment, random.Random(turn).random())
    after = set(results.glob("[!.]*.json"))
    assert before <= after
    for path in after:
        load_record(path)  # whole, and what it says it is
    for path in set(results.iterdir()) - after:
        assert path.name.endswith(POINTS)
        read_points(path)
    assert list(tmp_path.rglob("*.tmp")) == []


def _run_and_kill(
    command: tuple[str, ...], folder: Path, environment: dict[str, str], share: float
) -> None:
    """Kill the command after a share of the longest time, and wait for what it had started."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dsv4kv", *command],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    started = {process.pid}
    end = time.monotonic() + share * LONGEST_S
    while time.monotonic() < end and process.poll() is None:
        time.sleep(0.005)
        started |= set(descendants(process.pid))
    process.kill()
    process.wait()
    end = time.monotonic() + PATIENCE_S
    while any(map(is_running, started)) or _of_folder(folder):
        assert time.monotonic() < end, _of_folder(folder)
        time.sleep(0.02)


def _of_folder(folder: Path) -> list[str]:
    """Command lines of processes that work in the folder: also of those nobody saw start."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() == folder:
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found
