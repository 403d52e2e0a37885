"""Stand-ins for ncu, its package and compute-sanitizer: they run a program, report numbers."""

import stat
import sys
from pathlib import Path

from dsv4kv.ops.cuda.inspection import find_disassembler

_NCU = """#!{python}
import pathlib, subprocess, sys
HEAD = '"ID","Kernel Name","Block Size","Grid Size","{metrics}"'
UNITS = '"","","","","ns","byte","byte","%","register/thread"'
ROW = '"0","{{}}","(256, 1, 1)","(8, 1, 1)","2,000","123,456","0","5","40"'
words = sys.argv[1:]
if "--import" in words:
    print("==PROF== a line of ncu's own")
    print(pathlib.Path(words[words.index("--import") + 1]).read_text())
elif "--help" not in words and "--version" not in words:
    program = words[next(i for i, word in enumerate(words) if word[:2] != "--"):]
    (export,) = [word.partition("=")[2] for word in words if word.startswith("--export=")]
    code = subprocess.run(program).returncode
    kernels = "gather_topk gather_entries entry_insert flush".split()
    report = pathlib.Path(export).with_suffix(".ncu-rep")
    report.write_text("\\n".join([HEAD, UNITS, *map(ROW.format, kernels)]))
    sys.exit(code)
"""

_NCU_REPORT = """
import csv
from types import SimpleNamespace as Of

def load_report(path):
    units, *rows = csv.DictReader(open(path))
    def action(row):
        def metric(name):
            text = row.get(name, "").replace(",", "")
            return Of(unit=lambda: units[name], as_double=lambda: float(text)) if text else None
        return Of(name=lambda: row["Kernel Name"], metric_by_name=metric)
    part = Of(num_actions=lambda: len(rows), action_by_idx=lambda i: action(rows[i]))
    return Of(num_ranges=lambda: 1, range_by_idx=lambda _: part)
"""

_SANITIZER = """#!{python}
import os, subprocess, sys
words = sys.argv[1:]
assert os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] == "1"
tool = words[0].partition("=")[2]
program = words[next(i for i, word in enumerate(words) if word[:2] != "--"):]
found = int("visit.planted" in words and {sees!r} in (tool, "all"))
if {whole!r} and tool == "memcheck" and "visit.planted" not in words:
    assert subprocess.run(program).returncode == 0
elif tool != {cut!r}:
    print("every kernel ran")
kind = "RACECHECK" if tool == "racecheck" else "ERROR"
print(f"========= {{kind}} SUMMARY: {{found}} errors")
"""

_METRICS = (
    "gpu__time_duration.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "lts__t_sector_hit_rate.pct",
    "launch__registers_per_thread",
)


def make_tools(folder: Path, *, sees: str = "all", cut: str = "") -> Path:
    """Put both into a folder, with nvdisasm; ``sees`` is the tool that finds planted defects.

    ``cut`` is one whose program ends early.
    """
    folder.mkdir(parents=True, exist_ok=True)
    metrics = '","'.join(_METRICS)
    _write(folder / "ncu", _NCU.format(python=sys.executable, metrics=metrics))
    reader = folder / "extras" / "python" / "ncu_report.py"
    reader.parent.mkdir(parents=True)
    reader.write_text(_NCU_REPORT)
    whole = sees == "all" and not cut  # else what the program does is no matter
    sanitizer = _SANITIZER.format(python=sys.executable, sees=sees, cut=cut, whole=whole)
    _write(folder / "compute-sanitizer", sanitizer)
    (folder / "nvdisasm").symlink_to(find_disassembler())
    return folder


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
