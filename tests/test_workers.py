"""Work that is spread comes back whole, and no worker takes more with it than its own item."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsv4kv.errors import ConfigError
from dsv4kv.mrc.curves import Question, measure_trace
from dsv4kv.sizing.lookup import find_model
from dsv4kv.sizing.sweep import parse_axis, run_sweep
from dsv4kv.traces.collect import load_paths
from dsv4kv.workers import Lost, map_here, map_processes, map_ray
from tests.process_tree import descendants, is_running


class Halve:
    """Halves even numbers; what else it is given ends it. Counts what it was asked before."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, number: int) -> tuple[int, int]:
        if number < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if number % 2:
            raise ConfigError(f"{number} is odd")
        self.asked += 1
        return number // 2, self.asked


def test_items_are_taken_when_somebody_is_free() -> None:
    taken = list[int]()

    def items() -> Iterator[int]:
        for number in (2, 4, 6):
            taken.append(number)
            yield number

    results = map_here(Halve(), items())
    assert next(results) == (2, (1, 1))
    assert taken == [2]
    assert list(results) == [(4, (2, 2)), (6, (3, 3))]


def test_a_killed_worker_loses_its_own_item_alone_and_work_remembers() -> None:
    """One pair of processes for several properties: to start them is what takes long."""
    before = set(descendants(os.getpid()))
    found = dict(map_processes(Halve(), [2, -1, 4, 6, 8, 10, 12], 2))
    lost = found.pop(-1)
    assert isinstance(lost, Lost)
    assert "SIGKILL" in lost.why
    results = [result for result in found.values() if not isinstance(result, Lost)]
    assert {number: half for number, (half, _) in zip(found, results, strict=True)} == {
        number: number // 2 for number in (2, 4, 6, 8, 10, 12)
    }
    assert max(asked for _, asked in results) > 1
    started = set(descendants(os.getpid())) - before
    assert len(list(filter(is_running, started))) <= 1  # Python's own tracker of resources


def test_what_work_raises_is_raised_with_the_place() -> None:
    with pytest.raises(ConfigError, match="3 is odd") as caught:
        list(map_processes(Halve(), [3], 1))
    assert any("test_workers.py" in note for note in caught.value.__notes__)


PARENT = """
import time
from dsv4kv.workers import map_processes
if __name__ == "__main__":
    list(map_processes(time.sleep, [0.0, 600.0, 600.0], 2))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen([sys.executable, script])
    end = time.monotonic() + 300
    while len(children := descendants(parent.pid)) < 2 and time.monotonic() < end:
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    assert len(children) >= 2
    while any(map(is_running, children)):
        assert time.monotonic() < end
        time.sleep(0.02)


IMPORTED = """
import sys
from dsv4kv.workers import Crew, map_processes
def is_imported(name):
    return name in sys.modules
if __name__ == "__main__":
    import colorsys
    print(sorted(map_processes(is_imported, ["colorsys", "this"], 2, Crew(2))))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are not forked")
def test_workers_need_not_import_what_this_process_has_imported(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(IMPORTED)
    told = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert told.stdout == "[('colorsys', True), ('this', False)]\n"


def test_a_cluster_that_is_not_there_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"--ray 127\.0\.0\.1:1: .*(not installed|no cluster)"):
        list(map_ray(Halve(), [2], "127.0.0.1:1"))


def test_every_sweep_side_by_side_is_the_sweep_one_after_the_other() -> None:
    """Of ``budget`` and ``trace mrc``; ``cli/test_sweeps`` has the others."""
    axes = [parse_axis("context=4K,32K"), parse_axis("gpus=4,8")]
    rows = run_sweep({"gpu": "h200"}, axes)
    assert run_sweep({"gpu": "h200"}, axes, jobs=2) == rows
    table = load_paths("builtin:chat")
    rules = ("vllm", "sglang", "ideal")
    question = Question(find_model("v4-flash"), capacities_tokens=(48 * 1024,), rules=rules)
    one, two = (measure_trace(table, question, jobs=jobs).points for jobs in (1, 2))
    assert [(o.label, o.hit_tokens) for o in one[0].rules] == [
        (o.label, o.hit_tokens) for o in two[0].rules
    ]
