"""A machine's A/A noise floor: the same launches again and again, compared with each other.

What ``compare`` will do is done to runs that do not differ: seven launches on a side, and the
ratio that it would estimate. The launches are dealt to two sides in many ways, and 97.5 % of all
ratios are within the noise floor. Launches with interleaved steps have a floor of their own: in
each of seven pairs, either launch can be the one before. A change counts from what is configured,
or from that floor on.
"""

import math
import os
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from dsv4kv.bench.compare.side import Side, took_turns
from dsv4kv.bench.compare.verdict import Floor, Logs, compare_pairs, compare_sides
from dsv4kv.bench.launches import OnProgress, Outcome, Task, bench_arguments, run_launches
from dsv4kv.bench.protocol import measure_memcpy
from dsv4kv.errors import ConfigError, Dsv4kvError
from dsv4kv.files import make_folder, read_json, replacing, user_cache
from dsv4kv.runs.environment import capture_environment
from dsv4kv.runs.quantities import Measured, Quantity, by_quantity, list_measured, ratio_of_calls
from dsv4kv.runs.schema import RunRecord

LAUNCHES = 14  # seven on a side, or seven pairs

_CONFIG = "smoke"
_SETTINGS = ("workload.synthetic.requests=16", "measure.verify_every=0")
_MEMCPY_BYTES = 1 << 28  # beyond caches
_COPIES = 30
_QUANTILE = 0.975
_DEALS = 500
_FEWEST_SAMPLES = 30  # of a quantity in a launch; medians of fewer scatter by themselves


Fraction = Annotated[float, Field(strict=True, ge=0, lt=1)]


class Calibration(BaseModel):
    """A machine's A/A noise floor, and the bandwidth of its memory; older ones have less."""

    model_config = ConfigDict(frozen=True)

    noise_floor: Fraction
    """97.5 % of same-against-same ratios are nearer to 1 than this, as a fraction."""
    noise_floor_in_turns: Fraction | None = None
    """The same for launches with interleaved steps; None without any, as on a GPU."""
    calibrated_utc: str = ""  # when, ISO 8601
    launches: int = 0  # fresh processes that were run
    medians_ns: dict[str, list[float]] = {}  # median of every quantity in every launch
    pair_ratios: dict[str, list[float]] = {}
    """Of every quantity, how many times as long the second launch of a pair took."""
    peaks_gbps: dict[str, float] = {}
    """Rates of plain ``memcpy``, and on a GPU of ``copy``, ``read`` and ``write``."""
    machine: dict[str, Any] = {}  # what identifies this machine, as in a run record

    def is_of(self, hostname_sha256: str) -> bool:
        """Whether it may be that machine's: homes are often shared."""
        return self.machine.get("hostname_sha256") in (None, hostname_sha256)


def measure_memcpy_gbps() -> float:
    """Rate of plain copies on this host: seconds."""
    return 2 * _MEMCPY_BYTES / float(np.median(measure_memcpy(_MEMCPY_BYTES, _COPIES)))


def calibration_tasks() -> list[Task]:
    """The launches to run, all of them equal."""
    return [Task(bench_arguments(_CONFIG, _SETTINGS, ()))] * LAUNCHES


def run_calibration(on_progress: OnProgress) -> tuple[list[Outcome], list[Outcome]]:
    """Launches one by one, and two by two with steps interleaved, unless a GPU would hold both."""
    alone = run_launches(calibration_tasks(), on_progress)
    cases = [case for outcome in alone if outcome.record for case in outcome.record.cases]
    if any(case.device == "cuda" for case in cases):
        return alone, []

    return alone, run_launches(
        calibration_tasks(), lambda done, task: on_progress([*alone, *done], task), together=2
    )


def calibrate(
    alone: Sequence[Outcome], in_turns: Sequence[Outcome], memcpy_gbps: float
) -> Calibration:
    """What came of the launches that ran one by one, and of those that ran two by two, if any.

    ``memcpy_gbps``: rate of plain copies on the host, read and written bytes. Raises
    ``Dsv4kvError`` where a launch was not complete.
    """
    records = _complete(alone)
    both = _complete(in_turns) if in_turns else []
    medians_ns = {
        str(quantity): [each.median_ns for each in launches]
        for quantity, launches in _often_measured(records).items()
    }
    pair_ratios = {
        str(quantity): [
            ratio_of_calls(*pair) for pair in zip(launches[::2], launches[1::2], strict=True)
        ]
        for quantity, launches in _often_measured(both).items()
    }
    peaks: dict[str, list[float]] = {}
    for peak in (peak for record in records for case in record.cases for peak in case.peaks):
        peaks.setdefault(peak.name, []).append(peak.bytes / float(np.median(peak.samples_ns)))
    machine = {"hostname_sha256", "platform", "cpu", "cpu_count", "memory_bytes"}
    return Calibration(
        noise_floor=noise_floor(list(medians_ns.values())),
        noise_floor_in_turns=noise_floor_in_turns(list(pair_ratios.values())) if both else None,
        calibrated_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        launches=len(records) + len(both),
        medians_ns=medians_ns,
        pair_ratios=pair_ratios,
        peaks_gbps={"memcpy": memcpy_gbps}
        | {name: float(np.median(rates)) for name, rates in peaks.items()},
        machine=records[-1].environment.model_dump(
            mode="json", include=machine | {"versions", "gpu"}
        ),
    )


def save_calibration(calibration: Calibration, path: Path) -> None:
    """Write it whole or not at all; raises ``Dsv4kvError`` where it cannot be written."""
    try:
        make_folder(path.parent)
        with replacing(path) as file:
            file.write(calibration.model_dump_json(indent=1).encode() + b"\n")
    except OSError as error:
        raise Dsv4kvError(
            f"{path} cannot be written ({error.strerror}): name another cache with XDG_CACHE_HOME."
        ) from error


def noise_floor(medians: Sequence[Sequence[float]], seed: int = 0) -> float:
    """97.5 % quantile of how far equals are from 1, by each quantity's medians of all launches."""
    random, found = np.random.default_rng(seed), []
    for values in medians:
        half = len(values) // 2
        dealt = random.permuted(np.tile(values, (_DEALS, 1)), axis=1)
        found.append(compare_sides(dealt[:, :half], dealt[:, half : 2 * half]))
    return _floor_of(found)


def noise_floor_in_turns(ratios: Sequence[Sequence[float]], seed: int = 0) -> float:
    """97.5 % quantile for pairs of equals, by the ratios of all pairs for each quantity."""
    random = np.random.default_rng(seed)
    signs = (random.choice((-1.0, 1.0), (_DEALS, len(values))) for values in ratios)
    return _floor_of([compare_pairs(np.power(*each)) for each in zip(ratios, signs, strict=True)])


def _floor_of(compared: Sequence[Logs]) -> float:
    """How far the estimated ratios are from 1, either way round."""
    apart = [np.expm1(np.abs(np.median(each, axis=-1))) for each in compared]
    return float(np.quantile(apart, _QUANTILE))


def _complete(outcomes: Sequence[Outcome]) -> list[RunRecord]:
    records = [each.record for each in outcomes if each.record and each.status == "complete"]
    if len(records) < LAUNCHES:
        reasons = [each.error for each in outcomes if each.error]
        raise Dsv4kvError(
            f"{len(records)} of {LAUNCHES} launches ended as they should"
            f"{f' (another: {reasons[0]})' if reasons else ''}: nothing was stored."
        )
    return records


def _often_measured(records: Sequence[RunRecord]) -> dict[Quantity, list[Measured]]:
    measured = [each for record in records for each in list_measured(record)]
    return {
        quantity: launches
        for quantity, launches in by_quantity(measured).items()
        if len(launches) == len(records)
        and min(len(each.samples_ns) for each in launches) >= _FEWEST_SAMPLES
    }


def parse_floor(text: str) -> float:
    """``1%``, ``1 %`` or ``0.01``, as a fraction; ``ConfigError`` for others."""
    number = text.strip().removesuffix("%")
    try:
        value = float(number) / (100 if number != text.strip() else 1)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        raise ConfigError(f"--floor {text}: give a share of the time, as 1% or 0.01.")
    return value


def find_floor(configured: float, sides: tuple[Side, Side]) -> Floor:
    """The larger of what is configured and what ``doctor --calibrate`` found on this machine."""
    here = capture_environment()["hostname_sha256"]
    machines = {r.environment.hostname_sha256 for side in sides for r in side.records}
    found = read_calibration(calibration_path())
    not_calibrated = Floor(configured, "as configured; this machine is not calibrated")
    if found is None:
        return not_calibrated
    measured = found.noise_floor_in_turns if took_turns(*sides) else found.noise_floor
    if measured is None:
        return not_calibrated
    if machines != {here} or not found.is_of(here):
        return Floor(configured, "as configured; the calibration is of another machine")
    if measured > configured:
        return Floor(measured, "noise floor of this machine, calibrated")
    return Floor(configured, "as configured")


def calibration_path() -> Path:
    """Where ``dsv4kv doctor --calibrate`` leaves what it found."""
    return (
        user_cache() or Path(tempfile.gettempdir()) / f"dsv4kv-{os.getuid()}"
    ) / "calibration.json"


def read_calibration(path: Path) -> Calibration | None:
    """What ``dsv4kv doctor --calibrate`` found; None without a file."""
    try:
        return Calibration.model_validate(read_json(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        raise ConfigError(
            f"{path} holds no noise_floor between 0 and 1: run `dsv4kv doctor --calibrate` again, "
            "or remove the file."
        ) from None
