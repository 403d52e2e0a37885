"""The smallest change that counts: as configured, or this machine's A/A noise floor."""

import math
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from dsv4kv.bench.compare.side import Side, took_turns
from dsv4kv.errors import ConfigError
from dsv4kv.files import read_json, user_cache
from dsv4kv.runs.environment import capture_environment


@dataclass(frozen=True)
class Floor:
    """A relative change, and where it comes from."""

    value: float
    source: str

    def __str__(self) -> str:
        return f"{self.value * 100:.3g} % ({self.source})"


@dataclass(frozen=True)
class NoiseFloors:
    """A machine's A/A noise floor: 97.5 % of ratios are nearer to 1, as a fraction."""

    alone: float  # of launches one by one
    in_turns: float | None  # of launches with interleaved steps; None where none were
    hostname_sha256: str | None  # the machine's; None where it is not known

    def is_of(self, hostname_sha256: str) -> bool:
        """Whether they may be that machine's: homes are often shared."""
        return self.hostname_sha256 in (None, hostname_sha256)


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
    floors = read_noise_floors(calibration_path())
    not_calibrated = Floor(configured, "as configured; this machine is not calibrated")
    if floors is None:
        return not_calibrated
    measured = floors.in_turns if took_turns(*sides) else floors.alone
    if measured is None:
        return not_calibrated
    if machines != {here} or not floors.is_of(here):
        return Floor(configured, "as configured; the calibration is of another machine")
    if measured > configured:
        return Floor(measured, "noise floor of this machine, calibrated")
    return Floor(configured, "as configured")


def calibration_path() -> Path:
    """Where ``dsv4kv doctor --calibrate`` leaves what it found."""
    return (
        user_cache() or Path(tempfile.gettempdir()) / f"dsv4kv-{os.getuid()}"
    ) / "calibration.json"


def read_noise_floors(path: Path) -> NoiseFloors | None:
    """What ``dsv4kv doctor --calibrate`` found; None without a file."""
    try:
        stored = read_json(path)
        machine = stored.get("machine")
        in_turns = stored.get("noise_floor_in_turns")
        return NoiseFloors(
            alone=_fraction(stored["noise_floor"]),
            in_turns=None if in_turns is None else _fraction(in_turns),
            hostname_sha256=machine.get("hostname_sha256") if isinstance(machine, dict) else None,
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(
            f"{path} holds no noise_floor between 0 and 1: run `dsv4kv doctor --calibrate` again, "
            "or remove the file."
        ) from None


def _fraction(value: object) -> float:
    """A number from 0 to below 1; ``ValueError`` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ValueError
    return float(value)
