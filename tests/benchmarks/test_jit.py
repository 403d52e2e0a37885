"""How long kernels take to be there: compiled the first time, read from disk afterwards.

    pytest tests/benchmarks/test_jit.py --benchmark-only

Times depend on the machine, so nothing here fails on one. Aims, for all modules of a cache: 3 s
the first time, 50 ms every other.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from dsv4kv.config.load import load_config
from dsv4kv.ops.cuda import compile as cubin_cache
from dsv4kv.ops.cuda.compile import cache_folder, load_cubins
from dsv4kv.ops.cuda.launch import Launcher
from dsv4kv.ops.launches.launch import KernelModule, Launch
from dsv4kv.units import format_duration
from tests.benchmarks.jit_start import modules_of
from tests.benchmarks.medians import Measure, Remark
from tests.cuda.drivers import FakeDriver, on_gpu
from tests.cuda.toolchain import needs_nvrtc

SM = "sm_90a"
CACHES = {"default": "three layers of V4-Flash", "gpu": "all layers of V4-Pro"}


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DSV4KV_CACHE_DIR", str(tmp_path))


def load_all(modules: list[KernelModule]) -> int:
    """Machine code of all that a cache launches; returns the number of modules."""
    cubin_cache._sources_digest.cache_clear()  # as a new process
    return len(load_cubins(modules, SM))


def start_process(name: str) -> str:
    command = [sys.executable, "-m", "tests.benchmarks.jit_start", name, SM]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return format_duration(int(done.stdout))


@needs_nvrtc
@pytest.mark.parametrize("name", CACHES)
def test_loading_all_kernels_of_a_cache(measure: Measure, remark: Remark, name: str) -> None:
    def forget() -> None:
        shutil.rmtree(cache_folder(), ignore_errors=True)

    first, second = start_process(name), start_process(name)
    modules = modules_of(load_config(name, []).config)
    group = f"kernels of {CACHES[name]}, {load_all(modules)} modules"
    median_ns = measure(group, "first use", lambda: load_all(modules), rounds=3, setup=forget)
    if median_ns is not None:
        remark(f"{group}, new process on {os.cpu_count()} cores: {first}, then {second}")


@needs_nvrtc
@pytest.mark.parametrize("name", CACHES)
def test_loading_them_again(measure: Measure, name: str) -> None:
    modules = modules_of(load_config(name, []).config)
    group = f"kernels of {CACHES[name]}, {load_all(modules)} modules"
    measure(group, "second use", lambda: load_all(modules), rounds=20)


def test_preparing_a_launch_of_twelve_arguments(benchmark: BenchmarkFixture) -> None:
    arguments = (*[on_gpu(torch.zeros(4)) for _ in range(6)], *range(6))
    launch = Launch(KernelModule("some.cuh", ()), "some_kernel", (1, 1), 256, arguments)
    launcher = Launcher(FakeDriver((8,) * 12), lambda *_: [b""])
    assert benchmark(launcher.prepare, launch)
