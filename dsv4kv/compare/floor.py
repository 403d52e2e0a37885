"""The smallest change that counts: as configured, or what this machine does to equals."""

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path

from dsv4kv.compare.side import Side, took_turns
from dsv4kv.errors import ConfigError
from dsv4kv.measure.environment import capture_environment


@dataclass(frozen=True)
class Floor:
    """A relative change, and where it comes from."""

    value: float
    source: str

    def __str__(self) -> str:
        return f"{self.value * 100:.3g} % ({self.source})"


def parse_floor(text: str) -> float:
    """``1%``, ``1 %`` or ``0.01``, as a fraction.

    Raises:
        ConfigError: Not a number from 0 to below 1.
    """
    number = text.strip().removesuffix("%")
    try:
        value = float(number) / (100 if number != text.strip() else 1)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        raise ConfigError(f"--floor {text}: give a share of the time, as 1% or 0.01.")
    return value


def find_floor(configured: float, sides: tuple[Side, Side]) -> Floor:
    """The larger of what is configured and what `dsv4kv doctor --calibrate` found here.

    The calibration is of this machine: records of other machines are judged without it.
    """
    chosen = Floor(configured, "as configured")
    here = capture_environment()["hostname_sha256"]
    machines = {r.environment.hostname_sha256 for side in sides for r in side.records}
    measured = read_noise_floor(calibration_path(), in_turns=took_turns(*sides))
    if measured is None:
        return Floor(configured, "as configured; this machine is not calibrated")
    if machines != {here} or not is_of_machine(calibration_path(), here):
        return Floor(configured, "as configured; the calibration is of another machine")
    if measured > configured:
        return Floor(measured, "noise floor of this machine, calibrated")
    return chosen


def calibration_path() -> Path:
    """Where ``dsv4kv doctor --calibrate`` leaves what it found."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "dsv4kv" / "calibration.json"


def is_of_machine(path: Path, hostname_sha256: str) -> bool:
    """Whether a calibration that is there was made on that machine: homes are often shared."""
    machine = json.loads(path.read_text("utf-8")).get("machine")
    found = machine.get("hostname_sha256") if isinstance(machine, dict) else None
    return found in (None, hostname_sha256)


def read_noise_floor(path: Path, *, in_turns: bool = False) -> float | None:
    """97.5 % quantile of same against same, as a fraction; None where none was stored.

    ``in_turns``: that of launches whose steps took turns.

    Raises:
        ConfigError: A file that is there and does not say.
    """
    try:
        stored = json.loads(path.read_text("utf-8"))
        value = stored["noise_floor"]
        if in_turns:
            value = stored.get("noise_floor_in_turns")
            if value is None:
                return None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        value = None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
        raise ConfigError(
            f"{path} holds no noise_floor between 0 and 1: run `dsv4kv doctor --calibrate` again, "
            "or remove the file."
        )
    return float(value)
