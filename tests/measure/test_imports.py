"""What importing the measuring side brings along."""

import pkgutil
import subprocess
import sys

import dsv4kv.measure

IN_A_TORCH_PROGRAM = {"dsv4kv.measure.profilers.attached"}
MODULES = [
    module.name
    for module in pkgutil.walk_packages(dsv4kv.measure.__path__, "dsv4kv.measure.")
    if module.name not in IN_A_TORCH_PROGRAM
]


def test_no_module_of_measure_imports_torch() -> None:
    code = f"import sys, {', '.join(MODULES)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_polling_process_starts_with_little() -> None:
    code = (
        "import sys, dsv4kv.measure.telemetry.process\n"
        "print(*{'torch', 'numpy', 'pydantic', 'pynvml', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
