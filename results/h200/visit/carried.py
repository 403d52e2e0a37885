"""The packages that the machine lacks: carried as wheels, put into a folder of their own.

Nothing of dsv4kv is imported here: it needs them.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

WHEELS = Path(__file__).resolve().parents[1] / ".wheels"
"""What ``visit.sh wheels`` fetches; not tracked."""

NAMES = [
    line.partition("==")[0]
    for line in (Path(__file__).with_name("carried.txt")).read_text().splitlines()
]


def install(target: str) -> bool:
    """Install all carried wheels into a folder, without a network; whether any package lacked.

    Raises:
        SystemExit: Some are lacking and there are no wheels: nothing can run.
    """
    absent = [name for name in NAMES if not importlib.util.find_spec(name.replace("-", "_"))]
    if not absent:
        return False
    wheels = sorted(map(str, WHEELS.glob("*.whl")))
    if not wheels:
        raise SystemExit(
            f"{', '.join(absent)}: not installed, and {WHEELS} is empty. Run "
            "`results/h200/visit.sh wheels` where there is a network, and carry that folder with "
            "the tree."
        )
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    command += ["--no-compile", "--disable-pip-version-check", "--target", target]
    subprocess.run([*command, *wheels], check=True)
    return True
