# mypy: ignore-errors
# It runs in the engine's environment, where nothing is typed.
"""What the programs beside share, and the stand-ins of ``dsv4kv conform``, without dsv4kv."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[3] / "dsv4kv" / "diagnose" / "conform"))
from driven import bare_package, stand_in


def answer_lines(answer: Callable[[Any], Any]) -> None:
    """Answer every line of standard input by a line; both are JSON."""
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


def open_packages(folder: Path, real: Sequence[str], *absent: str) -> None:
    """Let modules be those of a wheel, and what they import of their package stand-ins.

    Args:
        folder: Holds the unpacked wheel.
        real: Modules whose packages are found without running their ``__init__``.
        absent: Further packages of which all is a stand-in.
    """
    sys.path.insert(0, str(folder))
    parts = [name.split(".") for name in real]
    for each in {tuple(part[:n]) for part in parts for n in range(1, len(part))}:
        bare_package(".".join(each), str(folder.joinpath(*each)))
    stand_in(real[0].partition(".")[0], *absent, real=real)
