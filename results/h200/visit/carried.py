"""The packages that the machine lacks: carried as wheels, put into a folder of their own."""

import importlib.util
import subprocess
import sys
from pathlib import Path

WHEELS = Path(__file__).resolve().parents[1] / ".wheels"
"""What ``visit.sh wheels`` fetches; not tracked."""


def install(target: Path) -> None:
    """Install all carried wheels into a folder, without a network.

    Raises:
        SystemExit: There are none, and without them nothing can run.
    """
    wheels = sorted(map(str, WHEELS.glob("*.whl")))
    if wheels:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
        command += ["--no-compile", "--disable-pip-version-check", "--target", str(target)]
        subprocess.run([*command, *wheels], check=True)
    elif importlib.util.find_spec("pydantic") is None:
        raise SystemExit(
            f"pydantic is not installed and {WHEELS} is empty: run `results/h200/visit.sh wheels` "
            "where there is a network, and carry that folder with the tree."
        )
