"""A case's polls of the machine as tracks over time, and when its clocks were held down."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from dsv4kv.record.telemetry import GpuChecks, GpuSamples, GpuState, Samples, Telemetry
from dsv4kv.record.telemetry_windows import REASONS, VIOLATIONS
from dsv4kv.units import format_bytes
from dsv4kv.view.charts.time import Span, Track

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


def reports_limits(samples: GpuSamples) -> bool:
    """Whether there was an answer at all to what held clocks down."""
    return any(getattr(samples, column) is not None for column in ("reasons", *VIOLATIONS))


def throttled_spans(samples: GpuSamples) -> list[Span]:
    """Stretches in which a limit was reported, each to the poll that no longer reported it.

    Where a poll reported none and a counter grew until the next, that stretch is the counter's.
    """
    reasons = samples.reasons or [None] * len(samples.at_ns)
    reported = [
        span
        for bit, name in REASONS.items()
        for span in _stretches(samples.at_ns, reasons, bit, name)
    ]
    return [*reported, *_counted(samples, reasons)]


def machine_facts(telemetry: Telemetry) -> dict[str, str]:
    """What did not change, and what the process took."""
    found = {
        "GPU": ", ".join(_describe_gpu(telemetry.gpu)) if telemetry.gpu else "",
        "PCIe": _describe_link(telemetry.gpu_checks) if telemetry.gpu_checks else "",
        "process": f"{format_bytes(telemetry.memory_peak_bytes)} resident at most",
    }
    return {name: fact for name, fact in found.items() if fact}


def _describe_gpu(gpu: GpuState) -> Iterator[str]:
    if gpu.power_limit_mw is not None:
        yield f"power limit {gpu.power_limit_mw / 1e3:,.0f} W"
    if gpu.most_sm_clock_mhz is not None:
        yield f"SM clock up to {gpu.most_sm_clock_mhz:,} MHz"
    for name, state in (("ECC", gpu.ecc), ("MIG", gpu.mig), ("persistence", gpu.persistence)):
        if state is not None:
            yield f"{name} {'on' if state else 'off'}"


def _describe_link(checks: GpuChecks) -> str:
    generations, widths = checks.pcie_generation or [], checks.pcie_width or []
    links = dict.fromkeys(
        f"generation {generation}, {width} lanes"
        for generation, width in zip(generations, widths, strict=False)
        if generation is not None and width is not None
    )
    return " or ".join(links)


def _tracks(table: Samples) -> list[Track]:
    seconds = [at * _NS for at in table.at_ns]
    found = []
    for column, (name, unit, factor) in _SHOWN.items():
        if values := getattr(table, column, None):
            scaled = [None if value is None else value * factor for value in values]
            found.append(Track(name, unit, seconds, scaled))
    return found


def _counted(samples: GpuSamples, reasons: Sequence[int | None]) -> Iterator[Span]:
    for column, name in VIOLATIONS.items():
        counter: Sequence[int | None] = getattr(samples, column) or []
        polls = zip(samples.at_ns, counter, reasons, strict=False)
        for (at, before, limits), (then, after, _) in pairwise(polls):
            grew = before is not None and after is not None and after > before
            if grew and not (limits or 0) & sum(REASONS):
                yield Span(at * _NS, then * _NS, name)


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
