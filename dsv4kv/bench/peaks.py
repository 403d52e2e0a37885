"""What a GPU's memory gives at best: plain copying, reading and writing, in this process."""

import torch

from dsv4kv.bench.device import CudaDevice
from dsv4kv.bench.replay_timing import CallTimer
from dsv4kv.ops.cuda.launch import prepare
from dsv4kv.ops.kernels.bandwidth import (
    THREADS,
    plan_copy_peak,
    plan_read_peak,
    plan_write_peak,
)
from dsv4kv.ops.kernels.launch import MOST_BLOCKS
from dsv4kv.report.record import Peak

_CALLS = 4  # in one graph


def measure_peaks(
    device: CudaDevice, size_bytes: int, timer: CallTimer | None = None
) -> list[Peak]:
    """Copy, read and write ``size_bytes``; a copy reads and writes every byte.

    Buffers are filled with random bytes: zeros may be stored or moved in fewer.
    """
    timer = timer or CallTimer(device)
    source = torch.empty(size_bytes, dtype=torch.uint8, device=device.device).random_(0, 256)
    target = torch.empty_like(source)
    sums = torch.empty(MOST_BLOCKS * THREADS, dtype=torch.int32, device=device.device)
    launches = {
        "copy": (2 * size_bytes, plan_copy_peak(source, target)),
        "read": (size_bytes, plan_read_peak(source, sums)),
        "write": (size_bytes, plan_write_peak(target)),
    }
    return [
        Peak(name=name, bytes=moved, samples_ns=timer.time([prepare(launch)] * _CALLS, name))
        for name, (moved, launch) in launches.items()
    ]
