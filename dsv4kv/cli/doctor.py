"""``dsv4kv doctor``: what this machine has, what that enables, and what to do about the rest."""

from dataclasses import asdict

import typer

from dsv4kv.cli import examples
from dsv4kv.cli import options as opt
from dsv4kv.errors import DeviceError, VerificationError

EPILOG = examples(
    "dsv4kv doctor                 look at this machine",
    "dsv4kv doctor --check-gpu     check and time the GPU: a minute",
)
_GPU = (
    "Check every operation on the GPU instead, and time copies, gathers, reads and a step against "
    "what this GPU should take (a minute; 4 GiB)."
)


def doctor(
    gpu: bool = opt.flag("--check-gpu", _GPU),
    as_json: bool = opt.AS_JSON,
    verbose: bool = opt.VERBOSE,
) -> None:
    """Check this machine: what it has, what is missing and what that disables.

    Fails if the default bench could not run.
    """
    from dsv4kv.diagnose.doctor import examine
    from dsv4kv.view.checks import report_checks

    if gpu:
        _look_at_gpu(as_json=as_json)
        return
    checks = list(examine())
    broken = any(check.status == "broken" for check in checks)
    rows = [asdict(check) for check in checks]
    parts = report_checks(checks, verbose=verbose)
    opt.tell(parts, {"ok": not broken, "checks": rows}, as_json=as_json, cut=not verbose)
    if broken:
        raise typer.Exit(DeviceError.exit_code)


def _look_at_gpu(*, as_json: bool) -> None:
    from dsv4kv.diagnose.gpu import examine_gpu
    from dsv4kv.view.checks import report_gpu

    report = examine_gpu()
    opt.tell(report_gpu(report), {"ok": not report.wrong, **asdict(report)}, as_json=as_json)
    if report.wrong:
        raise typer.Exit(VerificationError.exit_code)
