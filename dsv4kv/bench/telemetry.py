"""Telemetry of a case: which GPU to ask, and what was found in the record's terms."""

from typing import Any, TypeVar

import torch

from dsv4kv.bench.device import CudaDevice
from dsv4kv.bench.timing import EMPTY_GRAPH
from dsv4kv.measure.telemetry.readings import Table, memory_peak_bytes
from dsv4kv.measure.telemetry.telemetry import Telemetry, Window
from dsv4kv.runs.part import Part
from dsv4kv.runs.telemetry import GpuChecks, GpuSamples, GpuState, HostSamples, MeasuredWindow
from dsv4kv.runs.telemetry import Telemetry as TelemetryRecord

P = TypeVar("P", bound=Part)


def gpu_uuid(device: CudaDevice | None) -> str | None:
    """The UUID of the GPU that a run uses; None on the CPU."""
    if device is None or device.device.type != "cuda":
        return None
    facts: Any = torch.cuda.get_device_properties(device.device)
    return str(facts.uuid)


def describe_telemetry(telemetry: Telemetry) -> TelemetryRecord:
    """Everything that was polled, and when what was measured."""
    readings, began_ns = telemetry.readings, telemetry.started_ns
    return TelemetryRecord(
        interval_ns=telemetry.interval_ns,
        windows=[_describe_window(window, began_ns) for window in telemetry.windows],
        gpu=_known(GpuState, readings.facts) if readings.facts else None,
        gpu_samples=_samples(GpuSamples, readings.often, began_ns),
        gpu_checks=_samples(GpuChecks, readings.seldom, began_ns),
        host_samples=_samples(HostSamples, readings.host, began_ns),
        memory_peak_bytes=memory_peak_bytes(),
        empty_graph_ns=_empty_graph_ns(telemetry.windows),
        absent=dict(sorted(readings.absent.items())),
    )


def _describe_window(window: Window, began_ns: int) -> MeasuredWindow:
    timing = window.timing
    return MeasuredWindow.model_validate(
        {
            "name": window.name,
            "layer_type": window.layer_type,
            "temperature": window.temperature,
            "started_ns": window.started_ns - began_ns,
            "ended_ns": window.ended_ns - began_ns,
            "calls": timing.calls if timing else None,
            "warmup_ns": timing.warmup_ns if timing else None,
            "converged": timing.converged if timing else None,
        }
    )


def _samples(part: type[P], table: Table, began_ns: int) -> P | None:
    if not table.at_ns:
        return None
    at_ns = [at - began_ns for at in table.at_ns]
    return _known(part, {"at_ns": at_ns, **table.columns})


def _known(part: type[P], answers: dict[str, Any]) -> P:
    """A part of the record; a column without any answer is null."""
    return part.model_validate(
        {
            name: value
            for name, value in answers.items()
            if not isinstance(value, list) or any(element is not None for element in value)
        }
    )


def _empty_graph_ns(windows: list[Window]) -> list[int] | None:
    for window in windows:
        if window.name == EMPTY_GRAPH and window.timing:
            return window.timing.samples_ns
    return None
