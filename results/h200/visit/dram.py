"""Step: how many bytes three kernels move in DRAM, counted by ncu, for one that they must."""

import csv
import subprocess
import sys
from pathlib import Path

from visit.counted import WORKS
from visit.desk import Desk, find_tool

_OPTIONS = (
    "--profile-from-start=off",  # what fills pages is not looked at
    "--cache-control=none",
    "--clock-control=none",
    "--force-overwrite",
    # few enough for one pass: a kernel that is repeated finds its own data in L2
    "--metrics=gpu__time_duration.sum,dram__bytes_read.sum,dram__bytes_write.sum",
)


def run(desk: Desk) -> None:
    """Answer the questions of ``questions.DRAM``."""
    report = desk.folder / "dram.ncu-rep"
    command = [find_tool("ncu"), *_OPTIONS, f"--export={report.with_suffix('')}"]
    command += [sys.executable, "-m", "visit.counted"]
    subprocess.run([*command, *(["--twin"] if desk.small else [])], check=True)
    moved = dram_bytes(report)
    with desk.place() as place:
        for name, (kernel, make) in WORKS.items():
            useful = make(place).bytes
            counted = moved[kernel]
            desk.answer(
                f"amplification_{name}", counted / useful, dram_bytes=counted, bytes=useful
            )


def dram_bytes(report: Path) -> dict[str, int]:
    """DRAM bytes of each kernel's last call: those before left L2 as it finds it.

    ncu itself reads its report: the machine lacks the package ``ncu-report``.
    """
    shown = ("--page=raw", "--csv", "--print-units=base")
    told = subprocess.run(
        [find_tool("ncu"), "--import", str(report), *shown],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    _, *kernels = csv.DictReader(line for line in told.splitlines() if line.startswith('"'))
    return {
        row["Kernel Name"].partition("(")[0]: sum(
            int(float(row[f"dram__bytes_{way}.sum"].replace(",", ""))) for way in ("read", "write")
        )
        for row in kernels
    }
