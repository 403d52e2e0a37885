"""Modules that pool entries take the longest to compile: they hold what is launched, no more."""

from dsv4kv.ops.cuda.compile import compile_module
from dsv4kv.ops.cuda.inspection import sections
from dsv4kv.ops.launches.catalogue import catalogue
from dsv4kv.ops.launches.launch import KernelModule
from dsv4kv.ops.spec import VARIANTS
from tests.cuda.toolchain import needs_nvrtc
from tests.examples import FULL


def launched_kernels() -> dict[KernelModule, set[str]]:
    kernels: dict[KernelModule, set[str]] = {}
    for example in catalogue():
        launch = example.launch
        if launch.module.source == "flush.cuh":
            kernels.setdefault(launch.module, set()).add(launch.kernel)
    return kernels


@needs_nvrtc
def test_a_module_has_the_kernels_that_plans_launch_and_no_other() -> None:
    found = launched_kernels()
    assert len(found) > len(VARIANTS["flush"])
    for module, kernels in list(found.items())[:: 1 if FULL else 7]:  # seconds each
        names = sections(compile_module(module, "sm_90a"))
        code = {name for name in names if name.startswith(".text.")}
        assert code == {f".text.{kernel}" for kernel in kernels}
