"""What importing the rooms that measure and report brings along."""

import subprocess
import sys

WALK = """
import importlib, pkgutil, sys
sys.modules["torch"] = None  # importing it fails
for room in map(importlib.import_module, sys.argv[1:]):
    for module in pkgutil.walk_packages(room.__path__, room.__name__ + ".", onerror=print):
        importlib.import_module(module.name)
        print(module.name)
"""


def test_every_module_can_be_imported_where_there_is_no_torch() -> None:
    deepest = {
        "dsv4kv.measure": "dsv4kv.measure.profilers.attached",
        "dsv4kv.view": "dsv4kv.view.charts.bars",
        "dsv4kv.compare": "dsv4kv.compare.comparison",
    }
    done = subprocess.run(
        [sys.executable, "-c", WALK, *deepest], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert {*deepest.values()} <= {*done.stdout.split()}


def test_the_polling_process_starts_with_little() -> None:
    code = (
        "import sys, dsv4kv.measure.telemetry.process\n"
        "print(*{'torch', 'numpy', 'pydantic', 'pynvml', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
