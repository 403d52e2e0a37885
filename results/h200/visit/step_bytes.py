"""Step: DRAM bytes of a whole decode step, as ``dsv4kv profile --ncu`` counts them."""

import sys
from importlib.util import find_spec
from pathlib import Path

from dsv4kv.cli import main
from dsv4kv.runs.store import load_record
from visit.desk import Desk, NoTool, find_tool


def run(desk: Desk) -> None:
    """Answer the question of ``questions.STEP_BYTES``, and note each operation."""
    _find_reader(Path(find_tool("ncu")).resolve())
    folder = desk.folder / desk.step.name
    config = ["smoke", "--set", "device=cpu"] if desk.small else ["gpu"]
    sys.argv = ["dsv4kv", "profile", *config, "--ncu", "--out", str(folder)]
    try:
        main()
    except SystemExit as end:
        desk.note("profile", exit_code=end.code)
    (path,) = folder.glob("2*.json")
    profile = load_record(path).cases[0].profile
    assert profile is not None
    assert profile.table is not None
    for row in profile.table.operations:
        desk.note("operation", name=row.name, dram_bytes=row.dram_bytes, bytes=row.useful_bytes)
    moved = sum(row.counted_bytes or 0 for row in profile.table.kernels)
    useful = sum(profile.useful_bytes.values())
    desk.answer("amplification_step", moved / useful, dram_bytes=moved, bytes=useful)


def _find_reader(ncu: Path) -> None:
    """Import ``ncu_report`` from where ncu brings it; raises ``NoTool``."""
    own = "extras/python"
    installed = Path("/opt/nvidia").glob(f"nsight-compute/*/{own}")
    of_toolkit = Path("/usr/local").glob(f"cuda*/nsight-compute-*/{own}")
    sys.path += map(str, (ncu.parent / own, *installed, *of_toolkit))
    if find_spec("ncu_report") is None:
        raise NoTool("ncu_report, which reads reports, is not where ncu is")
