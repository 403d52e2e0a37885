"""How long kernels take to be there: compiled the first time, read from disk afterwards.

    pytest tests/benchmarks/test_jit.py --benchmark-only

Times depend on the machine, so nothing here fails on one. Aims: everything that a V4-Flash bench
launches within 3 s the first time, within 50 ms every other.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from dsv4kv.ops.cuda import cubin_cache
from dsv4kv.ops.cuda.cubin_cache import load_cubin
from dsv4kv.ops.cuda.launch import Launcher
from dsv4kv.ops.kernels.catalogue import catalogue
from dsv4kv.ops.kernels.launch import KernelModule, Launch
from tests.cuda.drivers import FakeDriver, on_gpu
from tests.cuda.toolchain import needs_nvrtc

_OTHER_MODELS = ("fp4", "fp8_group32", "mxfp4 × 64", "csa-1", "csa-2", "× 64", "× 2")


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[KernelModule]:
    """What V4-Flash launches with blocks of 128 tokens; the cache is empty."""
    monkeypatch.setenv("DSV4KV_CACHE_DIR", str(tmp_path))
    examples = [e for e in catalogue() if not any(part in e.subject for part in _OTHER_MODELS)]
    return list(dict.fromkeys(example.launch.module for example in examples))


def load_all(modules: list[KernelModule]) -> int:
    cubin_cache._sources_digest.cache_clear()  # as a new process
    return sum(len(load_cubin(module, "sm_90a")) for module in modules)


@needs_nvrtc
def test_first_use_of_all_kernels(
    benchmark: BenchmarkFixture, modules: list[KernelModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSV4KV_JIT_FORCE", "1")
    untyped: Any = benchmark
    assert untyped.pedantic(load_all, (modules,), rounds=3) > 0
    benchmark.extra_info["modules"] = len(modules)


@needs_nvrtc
def test_second_use_of_all_kernels(
    benchmark: BenchmarkFixture, modules: list[KernelModule]
) -> None:
    load_all(modules)
    assert benchmark(load_all, modules) > 0
    benchmark.extra_info["modules"] = len(modules)


def test_preparing_a_launch_of_twelve_arguments(benchmark: BenchmarkFixture) -> None:
    arguments = (*[on_gpu(torch.zeros(4)) for _ in range(6)], *range(6))
    launch = Launch(KernelModule("some.cuh", ()), "some_kernel", (1, 1), 256, arguments)
    launcher = Launcher(FakeDriver((8,) * 12), lambda *_: b"")
    assert benchmark(launcher.prepare, launch)
