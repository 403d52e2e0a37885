"""``dsv4kv doctor``: what this machine has, what that enables, and what to do about the rest."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dsv4kv.cli import examples
from dsv4kv.cli import options as opt
from dsv4kv.errors import DeviceError, VerificationError
from dsv4kv.view.console import open_console, say

if TYPE_CHECKING:
    from dsv4kv.bench.calibrate import Calibration

EPILOG = examples(
    "dsv4kv doctor                 look at this machine",
    "dsv4kv doctor --calibrate     measure its A/A noise floor, for dsv4kv compare",
    "dsv4kv doctor --check-gpu     check and time the GPU: a minute",
)
_CALIBRATE = (
    "Also run equal launches, store their noise floor and the memory's peaks (minutes; keep the "
    "machine idle)."
)
_GPU = (
    "Check every operation on the GPU instead, and time copies, gathers, reads and a step against "
    "what this GPU should take (a minute; 4 GiB)."
)


def doctor(
    calibrate: bool = opt.flag("--calibrate", _CALIBRATE, rare=True),
    gpu: bool = opt.flag("--check-gpu", _GPU),
    as_json: bool = opt.AS_JSON,
    verbose: bool = opt.VERBOSE,
) -> None:
    """Check this machine: what it has, what is missing and what that disables.

    Fails if the default bench could not run.
    """
    from dsv4kv.bench.calibrate import calibration_path
    from dsv4kv.diagnose.doctor import examine
    from dsv4kv.view.doctor import report_checks

    if gpu:
        _look_at_gpu(as_json=as_json)
        return
    path = calibration_path()
    calibration = _calibrate(path, quiet=as_json) if calibrate else None
    checks = list(examine(path))
    broken = any(check.status == "broken" for check in checks)
    rows = [asdict(check) for check in checks]
    found = calibration.model_dump() if calibration else None
    document = {"ok": not broken, "checks": rows, "calibration": found}
    parts = report_checks(checks, verbose=verbose)
    opt.tell(parts, document, as_json=as_json, cut=not verbose)
    if calibration:
        say(_sum_up(calibration, path), err=as_json)
    if broken:
        raise typer.Exit(DeviceError.exit_code)


def _look_at_gpu(*, as_json: bool) -> None:
    from dsv4kv.diagnose.gpu import examine_gpu
    from dsv4kv.view.doctor import report_gpu

    report = examine_gpu()
    opt.tell(report_gpu(report), {"ok": not report.wrong, **asdict(report)}, as_json=as_json)
    if report.wrong:
        raise typer.Exit(VerificationError.exit_code)


def _calibrate(path: Path, *, quiet: bool) -> "Calibration":
    from dsv4kv.bench import calibrate as measure
    from dsv4kv.cli.progress import Watcher

    stderr = open_console(stderr=True, quiet=quiet)
    with Watcher(stderr, "bench", "launches", 2 * measure.LAUNCHES) as watcher:
        alone, in_turns = measure.run_calibration(watcher.show_launches)
    calibration = measure.calibrate(alone, in_turns, measure.measure_memcpy_gbps())
    measure.save_calibration(calibration, path)
    return calibration


def _sum_up(calibration: "Calibration", path: Path) -> str:
    peaks = ", ".join(f"{name} {rate:,.1f} GB/s" for name, rate in calibration.peaks_gbps.items())
    in_turns = calibration.noise_floor_in_turns
    interleaved = f", {in_turns * 100:.2f} % interleaved" if in_turns is not None else ""
    return (
        f"calibrated: noise floor {calibration.noise_floor * 100:.2f} %{interleaved}, over "
        f"{len(calibration.medians_ns)} quantities of {calibration.launches} launches; {peaks}; "
        f"stored in {path}"
    )
