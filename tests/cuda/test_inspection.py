"""What machine code is said to do is what it does."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dsv4kv.errors import DeviceError
from dsv4kv.files import shipped
from dsv4kv.ops.cuda import compile as compiling
from dsv4kv.ops.cuda.compile import compile_module
from dsv4kv.ops.cuda.inspection import KernelReport, find_disassembler, inspect_cubins
from dsv4kv.ops.launches import KernelModule
from tests.cuda.toolchain import PAGE_COPY, needs_tools

SM = "sm_90a"

SOURCE = r"""
#include "tensor.cuh"
DSV_KERNEL void spilling(float* p, const int* at) {
    float a[64];
    for (int i = 0; i < 64; i++) a[i] = p[i];
    for (int i = 0; i < at[0]; i++) a[at[i] & 63] += a[i & 63];
    for (int i = 0; i < 64; i++) p[i] = a[i];
}
DSV_KERNEL void mixed(u8* bytes, u16* halves, const uint2* pairs, u32 n, i64 m, u8* end) {
    __shared__ u32 words[256];
    words[threadIdx.x] = pairs[threadIdx.x].x;
    __syncthreads();
    bytes[n] = (u8)words[threadIdx.x ^ 1];
    halves[m] = 7;
    atomicAdd((u32*)end, 1u);
}
DSV_KERNEL void multiplying(const u32* words, float* sums) {
    float d[4] = {};
    mma_bf16(d, words, words + 4);
    sums[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
DSV_KERNEL void waiting(u32* p) {
    begin_kernel();
    p[threadIdx.x] += 1;
}
DSV_KERNEL void waiting_late(u32* p) {
    u32 before = p[threadIdx.x];
    begin_kernel();
    p[threadIdx.x] = before + 1;
}
"""


def compiled(source: str, folder: Path) -> bytes:
    for header in ("common", "async", "tensor"):
        shutil.copy(shipped("kernels") / f"{header}.cuh", folder)
    (folder / "sample.cuh").write_text(source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "shipped", lambda _: folder)
        return compile_module(KernelModule("sample.cuh", ()), SM)


@pytest.fixture(scope="module")
def cubin(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return compiled(SOURCE, tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def samples(cubin: bytes) -> dict[str, KernelReport]:
    return {report.kernel: report for report in inspect_cubins(SM, [cubin])[0]}


@needs_tools
@pytest.mark.parametrize(
    ("kernel", "early"), [("waiting", 0), ("waiting_late", 1), ("mixed", None)]
)
def test_what_comes_before_the_wait_for_the_kernel_in_front_is_counted(
    samples: dict[str, KernelReport], kernel: str, early: int | None
) -> None:
    assert samples[kernel].early == early


@needs_tools
def test_accesses_are_told_by_kind_and_width(samples: dict[str, KernelReport]) -> None:
    report = samples["mixed"]
    assert report.local_bytes == 0
    assert {"LDG.32", "LDS.32", "STS.32", "STG.8", "STG.16"} <= set(report.accesses)
    assert any(re.fullmatch(r"(RED|REDG|ATOMG)\.32", kind) for kind in report.accesses)
    assert "LDC.32" not in report.accesses  # constants are no traffic


@needs_tools
def test_products_of_the_tensor_cores_are_counted(samples: dict[str, KernelReport]) -> None:
    assert samples["multiplying"].products == {"HMMA.16816": 1}
    assert samples["mixed"].products == {}


@needs_tools
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a", "sm_100a", "sm_120"])
def test_a_cubin_is_read_as_cuobjdump_reads_it(architecture: str, tmp_path: Path) -> None:
    tool = find_disassembler().with_name("cuobjdump")
    if not tool.is_file():
        pytest.skip("nvidia-cuda-cuobjdump is not installed")
    cubin = compile_module(PAGE_COPY, architecture)
    ((report,),) = inspect_cubins(architecture, [cubin])
    (tmp_path / "cubin").write_bytes(cubin)
    shown = subprocess.run(
        [tool, "-sass", "-res-usage", str(tmp_path / "cubin")],
        env=os.environ | {"PATH": f"{tool.parent}:{os.environ['PATH']}"},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    usage = f"REG:{report.registers} STACK:0 SHARED:{report.shared_bytes} LOCAL:0"
    assert usage in shown
    assert report.local_bytes == 0
    instructions = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?) ?;", shown, re.MULTILINE)
    assert report.instructions == sum(text != "NOP" for text in instructions)
    for kind in ("LDG", "STG"):
        expected = sum(bool(re.search(rf"\b{kind}\.", text)) for text in instructions)
        assert sum(n for name, n in report.accesses.items() if name.startswith(kind)) == expected


@needs_tools
def test_a_tool_that_fails_is_told_with_its_words() -> None:
    with pytest.raises(DeviceError, match=r"^nvdisasm failed \(nvdisasm fatal .*install one as"):
        inspect_cubins("sm_1", [compile_module(PAGE_COPY, SM)])
