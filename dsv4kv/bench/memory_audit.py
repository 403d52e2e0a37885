"""Builds a configuration's pools alone and asks everybody how much memory that took."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pynvml
import torch

from dsv4kv.bench.build import build_manager, check_device_memory, plan_from
from dsv4kv.bench.device import CudaDevice, find_device
from dsv4kv.config.bench import BenchConfig
from dsv4kv.errors import ConfigError
from dsv4kv.report.profile_record import MemoryAudit, MemoryMark

SNAPSHOT = "memory.pickle"
_STATUS = Path("/proc/self/statm")
_PAGE_BYTES = 4096


def audit_memory(config: BenchConfig, folder: Path) -> MemoryAudit:
    """Memory before and after the pools are built, which are given back afterwards.

    On a GPU torch's allocator writes its history into ``folder``.

    Raises:
        ConfigError: The pools do not fit, or the workload has none.
        CudaUnavailable: A GPU is asked for and there is none.
    """
    if config.workload.data == "none":
        raise ConfigError("workload.data is none, and so there are no pools to count: set real.")
    plan, device = plan_from(config), find_device(config.device)
    if device is not None:
        check_device_memory(config, plan, device)
    _record_history("all" if device else None)
    before = _mark("before", device)
    manager = build_manager(config, plan, device)
    after = _mark("after", device)
    return MemoryAudit(
        planned_bytes=plan.total_bytes,
        pool_bytes=sum(manager.memory_by_pool().values()),
        marks=[before, after],
        snapshot=_save_snapshot(folder / SNAPSHOT) if device else None,
    )


def _mark(moment: str, device: CudaDevice | None) -> MemoryMark:
    on_gpu = device is not None and device.device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize()
    return MemoryMark(
        moment=moment,
        allocated_bytes=torch.cuda.memory_allocated() if on_gpu else None,
        reserved_bytes=torch.cuda.memory_reserved() if on_gpu else None,
        device_bytes=_used_on_gpu() if on_gpu else None,
        resident_bytes=_resident_bytes(),
    )


def _used_on_gpu() -> int | None:
    """By the UUID: NVML does not follow CUDA_VISIBLE_DEVICES."""
    uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        used = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None
    return used


def _resident_bytes() -> int | None:
    with suppress(OSError, ValueError, IndexError):
        return int(_STATUS.read_text().split()[1]) * _PAGE_BYTES
    return None


def _record_history(kind: str | None) -> None:
    """Let torch's allocator remember what it does, where it works on a GPU."""
    if torch.cuda.is_available():
        memory: Any = torch.cuda.memory
        memory._record_memory_history(enabled=kind)


def _save_snapshot(path: Path) -> str | None:
    if not torch.cuda.is_available():
        return None
    memory: Any = torch.cuda.memory
    memory._dump_snapshot(str(path))
    _record_history(None)
    return str(path)
