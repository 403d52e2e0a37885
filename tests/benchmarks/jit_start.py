"""The kernels of a configuration's cache."""

from unittest.mock import patch

from dsv4kv.bench import build
from dsv4kv.bench.serve.executor import Recorder
from dsv4kv.config.bench import BenchConfig
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
