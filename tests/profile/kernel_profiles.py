"""Profiles of made-up kernels, as a record has them."""

from pathlib import Path
from typing import Any

from dsv4kv.profile.kineto import read_kineto
from dsv4kv.profile.nsys import read_nsys
from dsv4kv.profile.table import build_table, shipped_rules
from dsv4kv.runs.parts import KernelTable, Profile
from dsv4kv.runs.quantities import Yardstick
from tests.profile.exports import Export, two_replays
from tests.profile.traces import Event, cpu_events, save

USEFUL = {"window_insert": 20_000, "flush": 40_000, "gather_topk": 80_000}
YARDSTICK = Yardstick("copy", 4_000, [1_000] * 10)
"""4 GB/s."""


def from_nsys(
    folder: Path, export: Export | None = None, useful: dict[str, int] | None = None
) -> KernelTable:
    """Two steps of three kernels of 10 µs, a copy and a fill, unless another export is given."""
    path = (export or two_replays()).save(folder / "step.sqlite")
    return build_table(read_nsys(path), shipped_rules(), USEFUL if useful is None else useful)


def from_kineto(folder: Path, events: list[Event] | None = None) -> KernelTable:
    """A step of a CPU, unless other events are given."""
    path = save(folder / "step.json", events or cpu_events())
    return build_table(read_kineto(path), shipped_rules(), {"gather_topk csa": 160_000})


def make_profile(table: KernelTable, **changes: Any) -> Profile:
    facts: dict[str, Any] = {
        "why": "asked for with --nsys", "command": ["nsys", "profile", "--trace=cuda,nvtx"],
        "files": ["results/run/step.nsys-rep"], "step_requests": [8, 8], "useful_bytes": USEFUL,
        "table": table,
    }  # fmt: skip
    return Profile(**facts | changes)
