"""Every check, in the order in which they are reported."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from dsv4kv.diagnose.doctor.gpu import check_gpu, check_host_clocks, check_profilers
from dsv4kv.diagnose.doctor.machine import Check, check_machine
from dsv4kv.diagnose.doctor.software import check_peers, check_software
from dsv4kv.measure.environment import capture_environment

_WIDE = 0.05  # compare is to find changes of a few per cent


def examine(calibration: Path) -> Iterator[Check]:
    """Look at this machine; ``calibration`` is the file that a calibration leaves."""
    environment = capture_environment()
    yield from check_machine(environment)
    yield _check_calibration(calibration, environment["hostname_sha256"])
    yield from check_software()
    yield from check_gpu(environment["versions"])
    has_gpu = environment["versions"]["driver"] is not None
    yield from check_profilers(has_gpu=has_gpu)
    yield from check_peers(has_gpu=has_gpu)
    yield from check_host_clocks()
    yield from _check_device_clock()


def _check_calibration(path: Path, hostname_sha256: str) -> Check:
    from dsv4kv.bench.compare.floor import read_noise_floors
    from dsv4kv.errors import ConfigError

    name, enables = "calibration", "compare: this machine's A/A noise floor"
    advice = "dsv4kv doctor --calibrate, while nothing else runs (minutes)"
    try:
        floors = read_noise_floors(path)
    except ConfigError as error:
        return Check("machine", name, "missing", str(error), enables, advice)
    if floors is None:
        return Check("machine", name, "missing", "none yet", enables, advice)
    if not floors.is_of(hostname_sha256):
        return Check("machine", name, "missing", "that of another machine", enables, advice)
    percent = floors.alone * 100
    if floors.alone > _WIDE:
        advice = f"a floor this wide hides changes. Again: {advice}"
        return Check("machine", name, "note", f"noise floor {percent:.0f} %", enables, advice)
    day = datetime.fromtimestamp(path.stat().st_mtime, UTC).date().isoformat()
    return Check("machine", name, "good", f"noise floor {percent:.2f} %, {day}", enables)


def _check_device_clock() -> Iterator[Check]:
    try:
        from dsv4kv.bench.device import find_device
    except Exception:  # torch cannot be imported, which check_software reports
        return
    device = find_device("auto")
    if device is not None:
        from dsv4kv.diagnose.doctor.gpu import check_device_clock

        try:
            yield check_device_clock(device)
        except RuntimeError as error:  # out of memory, or a driver in trouble
            first_line = str(error).partition("\n")[0]
            yield Check(
                "timers", "GPU events", "missing", first_line, "every time that is reported"
            )
