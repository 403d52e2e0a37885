"""Loads the kernels of a configuration's cache as a new process does; prints the nanoseconds.

NVRTC is found and loaded within them, Python and torch before.
"""

import sys
import time
from unittest.mock import patch

from dsv4kv.bench import build
from dsv4kv.bench.serve.executor import Recorder
from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.load import load_config
from dsv4kv.ops.cuda.compile import load_cubins
from dsv4kv.ops.launches import KernelModule
from dsv4kv.ops.registry import resolve_backend
from tests.gpu_twin import TwinGpu, twin_device


class _Found(Exception):
    pass


def modules_of(config: BenchConfig) -> list[KernelModule]:
    """What a cache will launch, of two requests; nothing is compiled."""
    found: list[KernelModule] = []

    def keep(modules: list[KernelModule], _device: object) -> None:
        found.extend(modules)
        raise _Found

    small = config.cache.model_copy(update={"num_blocks": 8, "num_slots": 2})
    workload = config.workload.model_copy(update={"concurrency": 2, "limit": 2})
    asked = config.model_copy(update={"cache": small, "workload": workload})
    device = twin_device(TwinGpu())
    with patch.object(build, "compile_ahead", keep):
        manager = build.build_manager(asked, build.plan_from(asked), device)
        try:
            build.build_drive(asked, manager, Recorder(), resolve_backend("cuda", "cuda"), device)
        except _Found:
            return found
    raise AssertionError("nothing is compiled ahead")


def main(name: str, architecture: str) -> None:
    modules = modules_of(load_config(name, []).config)
    start_ns = time.perf_counter_ns()
    load_cubins(modules, architecture)
    print(time.perf_counter_ns() - start_ns)


if __name__ == "__main__":
    main(*sys.argv[1:])
