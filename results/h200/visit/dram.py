"""Step: how many bytes three kernels move in DRAM, counted by ncu, for one that they must."""

import subprocess
import sys

from dsv4kv.profile.ncu import read_ncu
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
    trace = read_ncu(report)
    moved = dict(zip((trace.names[i] for i in trace.work.name), trace.work.bytes, strict=True))
    with desk.place() as place:
        for name, (kernel, make) in WORKS.items():
            useful = make(place).bytes
            counted = int(moved[kernel])  # of its last call: those before left L2 as it finds it
            desk.answer(
                f"amplification_{name}", counted / useful, dram_bytes=counted, bytes=useful
            )
