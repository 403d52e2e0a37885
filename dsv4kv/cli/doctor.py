"""``dsv4kv doctor``: what this machine has, what that enables, and what to do about the rest."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsv4kv.view.console import open_console, print_document

if TYPE_CHECKING:
    from dsv4kv.bench.calibrate import Calibration
    from dsv4kv.doctor.machine import Check

EPILOG = """\
[bold]Examples[/bold]

dsv4kv doctor                 look at this machine

dsv4kv doctor --calibrate     measure its A/A noise floor, for dsv4kv compare
"""


def doctor(
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="Also run equal launches, store their noise floor and the memory's peaks "
            "(minutes; keep the machine idle).",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Report what this machine has and lacks; fails if the default bench could not run."""
    from dsv4kv.compare.floor import calibration_path
    from dsv4kv.doctor.examine import examine
    from dsv4kv.errors import DeviceError
    from dsv4kv.view.doctor import report_checks
    from dsv4kv.view.render import show

    path = calibration_path()
    calibration = _calibrate(path, quiet=as_json) if calibrate else None
    checks = list(examine(path))
    if as_json:
        print_document(_as_json(checks, calibration))
    else:
        show(report_checks(checks))
        if calibration is not None:
            show([_sum_up(calibration, path)])
    if any(check.status == "broken" for check in checks):
        raise typer.Exit(DeviceError.exit_code)


def _calibrate(path: Path, *, quiet: bool) -> "Calibration":

    from dsv4kv.bench.calibrate import (
        LAUNCHES,
        calibrate,
        measure_memcpy_gbps,
        run_calibration,
        save_calibration,
    )
    from dsv4kv.cli.progress import Watcher

    stderr = open_console(stderr=True, quiet=quiet)
    with Watcher(stderr, "bench", "launches", 2 * LAUNCHES) as watcher:
        alone, in_turns = run_calibration(watcher.show_launches)
    calibration = calibrate(alone, in_turns, measure_memcpy_gbps())
    save_calibration(calibration, path)
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


def _as_json(checks: "Sequence[Check]", calibration: "Calibration | None") -> str:
    import json
    from dataclasses import asdict

    document = {
        "ok": all(check.status != "broken" for check in checks),
        "checks": [asdict(check) for check in checks],
        "calibration": asdict(calibration) if calibration else None,
    }
    return json.dumps(document, ensure_ascii=False, indent=2) + "\n"
