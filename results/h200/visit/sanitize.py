"""Step: compute-sanitizer over every kernel, after it has found two defects made for it."""

import os
import re
import subprocess
import sys

from visit.desk import Desk, find_tool
from visit.plan import TWIN_PATIENCE

PLANTED = {
    "planted_write": ("memcheck", "write_outside"),
    "planted_race": ("racecheck", "move_right"),
}
END = "every kernel ran"
"""What ``visit.scenes`` tells last."""

_TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
_OPTIONS = {"memcheck": ["--report-api-errors=no"]}  # torch asks the driver what it may refuse
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")
_LIMIT_S = 45
_UNCACHED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
"""Every tensor is an allocation of its own: what lies outside is outside for the tool too."""


def run(desk: Desk) -> None:
    """Answer the questions of ``questions.SANITIZE``."""
    sanitizer, blind = find_tool("compute-sanitizer"), []
    for name, (tool, kernel) in PLANTED.items():
        found = _count(desk, sanitizer, tool, "visit.planted", kernel)
        desk.answer(name, found, tool=tool, kernel=kernel)
        blind += [] if found else [tool]
    for tool in _TOOLS:
        if tool not in blind:  # what misses a defect says nothing by finding none
            desk.answer(tool, _count(desk, sanitizer, tool, "visit.scenes", end=END))
    if blind:
        raise SystemExit(f"{', '.join(blind)} missed what was planted: the sanitizer is blind")


def _count(
    desk: Desk, sanitizer: str, tool: str, program: str, *words: str, end: str = ""
) -> int | None:
    """Errors that a tool finds in a program; None where it does not say.

    A program without errors must have told its ``end``: what did not run has none.
    """
    log = desk.folder / f"{tool}-{'-'.join([program, *words])}.txt"
    command = [sanitizer, f"--tool={tool}", "--print-limit=20", *_OPTIONS.get(tool, [])]
    command += [sys.executable, "-m", program, *words, *(["--twin"] if desk.small else [])]
    with log.open("w+") as file:
        try:
            subprocess.run(
                command,
                stdout=file,
                stderr=file,
                env=os.environ | _UNCACHED,
                timeout=_LIMIT_S * (TWIN_PATIENCE if desk.small else 1),
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None
        file.seek(0)
        told = file.read()
    errors = [int(count) for count in _SUMMARY.findall(told)][-1:]
    print(f"{log.name}: {errors or 'no summary'}, {'whole' if end in told else 'cut short'}")
    return errors[0] if errors and (errors[0] or end in told) else None
