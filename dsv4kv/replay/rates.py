"""Rates of GPUs that a replay's times are stated by."""

from pathlib import Path
from statistics import median

from dsv4kv.config.replay import CostSection
from dsv4kv.core.clock import Rates
from dsv4kv.errors import ConfigError
from dsv4kv.replay.clock.sources import find_gpu
from dsv4kv.runs.quantities import COPIES, yardsticks
from dsv4kv.runs.store import load_record


def find_rates(cost: CostSection) -> Rates:
    """Work out the rates.

    Raises:
        ConfigError: Two bandwidths or none, an unknown GPU, a record without peaks.
        RecordError: The record cannot be read.
    """
    gbps, source = _bandwidth(cost)
    return Rates(
        bytes_per_s=gbps * 1e9 * cost.gpus,
        operations_per_s=cost.tflops * 1e12 * cost.gpus,
        overhead_s=cost.overhead_us / 1e6,
        source=source,
    )


def _bandwidth(cost: CostSection) -> tuple[float, str]:
    """GB/s of one GPU, and how that is known."""
    if cost.bandwidth_gbps is not None and cost.peaks is not None:
        raise ConfigError("cost.bandwidth_gbps and cost.peaks both give a bandwidth: keep one.")
    if cost.bandwidth_gbps is not None:
        return cost.bandwidth_gbps, "as given"
    if cost.peaks is not None:
        return _measured(cost.peaks)
    gpu = find_gpu(cost)
    if gpu.bandwidth_gbps is None:
        raise ConfigError(
            f"the bandwidth of {gpu.name} is not in the catalogue: give cost.bandwidth_gbps."
        )
    share = f"{cost.bandwidth_share:.0%} of {gpu.bandwidth_gbps:,} GB/s, {gpu.source}"
    return gpu.bandwidth_gbps * cost.bandwidth_share, share


def _measured(path: str) -> tuple[float, str]:
    """The median of the fastest plain copy, reads and writes both counted."""
    for case in load_record(Path(path)).cases:
        for copy in yardsticks(case)[:1]:
            if copy.name in ("memcpy", *COPIES) and copy.samples_ns:
                return copy.bytes / median(copy.samples_ns), f"copy measured in {path}"
    raise ConfigError(
        f"{path} has no measured copy: take the record of a run of dsv4kv bench with real data."
    )
