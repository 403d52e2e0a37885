"""Reads ``.ncu-rep`` files through NVIDIA's ``ncu-report`` package (extra ``profile``)."""

import importlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from dsv4kv.errors import ProfileError
from dsv4kv.profile import trace as tr

Metrics = dict[str, tuple[float | str, str]]
"""Values of a kernel that were collected, and their units."""

_DURATION = "gpu__time_duration.sum"
_DRAM = ("dram__bytes_read.sum", "dram__bytes_write.sum")
_DEVICE = "device__attribute_display_name"
_WANTED = (_DURATION, *_DRAM, _DEVICE)
_UNITS = {
    **dict.fromkeys(("s", "second"), 1000000000.0),
    **dict.fromkeys(("ms", "msecond", "Mbyte"), 1000000.0),
    **dict.fromkeys(("us", "usecond", "Kbyte"), 1000.0),
    "Gbyte": 1e9,
}
"""What a value in this unit is multiplied by to be ns or bytes."""
_MOST = 2.0**53  # ns are 104 days; the sum of a thousand kernels' fits an int64


def read_ncu(path: Path) -> tr.Trace:
    """Read a report: every kernel with its time and DRAM bytes.

    ncu runs every kernel alone, some of them several times, so there are no steps and no gaps.
    Raises ``ProfileError``.
    """
    if not path.is_file():
        raise ProfileError(f"{path} does not exist: name a report of ncu, .ncu-rep.")
    names, rows, devices = tr.Names(), [], dict[str, None]()
    for title, metrics in _kernels(path):
        rows.append((names.number(title), *_numbers(metrics)))
        if _DEVICE in metrics:
            devices[str(metrics[_DEVICE][0])] = None
    if not rows:
        raise ProfileError(f"{path} has no kernels: ncu chose none, or it is no report.")
    name, timed, moved = np.array(rows, dtype=np.int64).T
    duration = np.maximum(timed, 0)
    ends = np.cumsum(duration)
    kind = tr.constant(len(name), tr.KERNEL)
    warnings, untimed = [], int(np.count_nonzero(timed == tr.NONE))
    if untimed:
        share = f"{untimed:,} of {len(timed):,} kernels"
        warnings = [f"{share} have no {_DURATION} and count as 0: collect it"]
    return tr.Trace(
        tool="ncu",
        names=names.listed(),
        work=tr.make_work(name, kind, ends - duration, ends, bytes=moved),
        steps_ns=np.empty((0, 2), dtype=np.int64),
        devices=dict(enumerate(devices)),
        warnings=warnings,
        notes=["ncu runs each kernel by itself: its times have no gaps"],
    )


def reader() -> Any:
    """The package ``ncu_report``; raises ``ProfileError`` where it is not installed."""
    try:
        return importlib.import_module("ncu_report")
    except ImportError:
        raise ProfileError(
            "reports of ncu are read by the ncu-report package: pip install 'dsv4kv[profile]'."
        ) from None


def _kernels(path: Path) -> Iterator[tuple[str, Metrics]]:
    package = reader()
    try:
        context = package.load_report(str(path))
        for i in range(context.num_ranges()):
            part = context.range_by_idx(i)
            for j in range(part.num_actions()):
                action = part.action_by_idx(j)
                found: Metrics = {}
                for name in _WANTED:
                    metric = action.metric_by_name(name)
                    with suppress(ValueError):  # no number
                        if metric is not None:
                            value = metric.as_string() if name == _DEVICE else metric.as_double()
                            found[name] = value, str(metric.unit() or "")
                yield str(action.name()), found
    except Exception as error:  # the package raises whatever its C++ does
        raise ProfileError(f"{path} cannot be read as a report of ncu ({error}).") from None


def _numbers(metrics: Metrics) -> tuple[int, int]:
    """Duration in ns and DRAM bytes."""
    found: dict[str, int] = {}  # in ns or bytes; what is no number is left out
    for name, (value, unit) in metrics.items():
        with suppress(ValueError):
            number = float(value) * _UNITS.get(unit, 1.0)
            if abs(number) < _MOST:
                found[name] = round(number)
    read, written = (found.get(name) for name in _DRAM)
    moved = tr.NONE if read is None or written is None else read + written
    return found.get(_DURATION, tr.NONE), moved
