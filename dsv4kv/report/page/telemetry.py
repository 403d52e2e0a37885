"""A case's polls of the machine as tracks over time, and when its clocks were held down."""

from collections.abc import Sequence
from typing import Final

from dsv4kv.report.page.inputs import Span, Track
from dsv4kv.report.telemetry_record import GpuSamples, Samples, Telemetry
from dsv4kv.report.window_state import REASONS

_NS: Final = 1e-9
# column: name, unit, factor
_SHOWN: Final = {
    "sm_clock_mhz": ("SM clock", "MHz", 1.0),
    "memory_clock_mhz": ("memory clock", "MHz", 1.0),
    "power_mw": ("power", "W", 1e-3),
    "temperature_c": ("temperature", "°C", 1.0),
    "dram_percent": ("DRAM bandwidth", "% of the full rate", 1.0),
    "memory_used_bytes": ("memory in use", "GiB", 2.0**-30),
    "cpu_mhz": ("CPU clock", "MHz", 1.0),
    "load_1min": ("load, 1 min", "processes", 1.0),
}


def telemetry_tracks(telemetry: Telemetry) -> list[Track]:
    """What was answered at two moments at least, the GPU's before the host's."""
    tables = (telemetry.gpu_samples, telemetry.gpu_checks, telemetry.host_samples)
    found = [track for table in tables if table for track in _tracks(table)]
    return [track for track in found if sum(value is not None for value in track.values) > 1]


def throttled_spans(samples: GpuSamples) -> list[Span]:
    """Stretches in which a limit was told, each to the poll that no longer told it."""
    return [
        span
        for bit, name in REASONS.items()
        for span in _stretches(samples.at_ns, samples.reasons or [], bit, name)
    ]


def _tracks(table: Samples) -> list[Track]:
    seconds = [at * _NS for at in table.at_ns]
    found = []
    for column, (name, unit, factor) in _SHOWN.items():
        if values := getattr(table, column, None):
            scaled = [None if value is None else value * factor for value in values]
            found.append(Track(name, unit, seconds, scaled))
    return found


def _stretches(
    at_ns: Sequence[int], reasons: Sequence[int | None], bit: int, name: str
) -> list[Span]:
    spans: list[Span] = []
    start: int | None = None
    for at, reason in zip(at_ns, reasons, strict=False):
        held = bool((reason or 0) & bit)
        if held and start is None:
            start = at
        elif not held and start is not None:
            spans.append(Span(start * _NS, at * _NS, name))
            start = None
    if start is not None:
        spans.append(Span(start * _NS, at_ns[-1] * _NS, name))
    return spans
