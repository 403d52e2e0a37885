"""Which GPU work ran on: CUDA numbers the devices of every process anew."""

import numpy as np

from dsv4kv.measure.profilers.joining import find
from dsv4kv.measure.profilers.nsys_work import Launched
from dsv4kv.measure.profilers.sqlite_columns import Database
from dsv4kv.measure.profilers.trace import NONE, Column

_GPUS, _OF_PROCESSES = "TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE"
_CUDA_BITS = 32


def read_devices(database: Database, launched: Launched) -> tuple[Column, dict[int, str]]:
    """Number of the GPU of every piece of work, and the names of GPUs by number.

    Where the export tells which GPU a process calls by which CUDA number, the numbers are those
    of the machine; else they are CUDA's.
    """
    process, cuda, gpu = database.read(_OF_PROCESSES, ("pid", "cudaId", "gpuId"))
    found = find(_key(process, cuda), _key(launched.pid, launched.device))
    if len(found) and np.all(found != NONE) and np.all(gpu >= 0):
        return gpu[found], _names(database, "id")
    return launched.device, _names(database, "cuDevice") or _names(database, "id")


def _key(process: Column, cuda: Column) -> Column:
    return (process << _CUDA_BITS) | cuda


def _names(database: Database, number: str) -> dict[int, str]:
    rows = database.rows(_GPUS, (number, "name"))
    return {gpu: str(name) for gpu, name in rows if isinstance(gpu, int)}
