"""From a kernel module to machine code with NVRTC: no nvcc, no driver and no GPU needed."""

import functools
import re
from pathlib import Path
from typing import Any

from dsv4kv.errors import CudaUnavailable, DeviceError
from dsv4kv.ops.kernels.launch import KernelModule
from dsv4kv.resources import shipped

OPTIONS = (
    "-std=c++17",
    "-lineinfo",  # profilers show the source line of an instruction
    # No a·b + c in one rounding: quantised bytes have to equal the reference's, and the kernels
    # wait for memory, not for arithmetic. Where one rounding is wanted, they say fmaf.
    "--fmad=false",
    "--minimal",  # nothing of CUDA's runtime, textures and the like: 4 % less time
)

OLDEST = 80
"""sm_80 (A100): the first with L1 bypass, bf16 and asynchronous copies."""

_INSTALL = "pip install 'dsv4kv[cuda]'"


def architecture_of(major: int, minor: int) -> str:
    """NVRTC's name of a compute capability; ``a`` unlocks what only that chip has."""
    return f"sm_{major}{minor}{'a' if (major, minor) in {(9, 0), (10, 0)} else ''}"


def check_architecture(architecture: str) -> None:
    """Raise ``DeviceError`` unless NVRTC here can compile the kernels for ``sm_90a`` and such."""
    match = re.fullmatch(r"sm_([0-9]{2,3})[af]?", architecture)
    if match is None:
        raise DeviceError(f"{architecture!r} is no architecture: write sm_80, sm_90a or sm_120.")
    if int(match[1]) < OLDEST:
        raise DeviceError(
            f"{architecture} is too old for the kernels: they need sm_{OLDEST} (A100) or newer; "
            "on this machine use the cpu backend."
        )
    _, known = _nvrtc().nvrtcGetSupportedArchs()
    if int(match[1]) not in known:
        choices = ", ".join(f"sm_{number}" for number in known if number >= OLDEST)
        raise DeviceError(
            f"NVRTC {nvrtc_version()} does not compile for {architecture}, only for {choices}: "
            f"install a newer one ({_INSTALL} --upgrade)."
        )


def compile_module(module: KernelModule, architecture: str) -> bytes:
    """Compile a module to a cubin for an architecture such as ``sm_90a``.

    Program and headers go by their paths, so that profilers find the source.

    Raises:
        CudaUnavailable: A package is missing; says which.
        DeviceError: An architecture that cannot be, or source that does not compile, with the log.
    """
    check_architecture(architecture)
    nvrtc, source = _nvrtc(), source_path(module)
    _, program = nvrtc.nvrtcCreateProgram(source.read_bytes(), str(source).encode(), 0, [], [])
    try:
        options = [option.encode() for option in compile_options(module, architecture)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise DeviceError(
                f"{module.source} does not compile for {architecture} with NVRTC "
                f"{nvrtc_version()}:\n{_log(program)}"
            )
        _, size = nvrtc.nvrtcGetCUBINSize(program)
        cubin = bytearray(size)
        nvrtc.nvrtcGetCUBIN(program, cubin)
        return bytes(cubin)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def compile_options(module: KernelModule, architecture: str) -> list[str]:
    """Every option of a compilation."""
    defines = [f"-D{name}={value}" for name, value in module.macros]
    folder = source_path(module).parent
    return [f"--gpu-architecture={architecture}", *OPTIONS, f"-I{folder}", *defines]


def source_path(module: KernelModule) -> Path:
    """Where the module's source lies."""
    return shipped("kernels") / module.source


@functools.cache
def nvrtc_version() -> str:
    """For example ``13.0``; raises ``CudaUnavailable``."""
    _, major, minor = _nvrtc().nvrtcVersion()
    return f"{major}.{minor}"


@functools.cache
def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc
    except ImportError:
        raise CudaUnavailable(
            f"kernels need the package cuda-bindings, which is not installed: {_INSTALL}."
        ) from None
    try:
        nvrtc.nvrtcVersion()
    except RuntimeError:  # how cuda-bindings says that it finds no library
        raise CudaUnavailable(
            "kernels need NVRTC (libnvrtc.so), which is in no place where cuda-bindings looks: "
            f"{_INSTALL}, which brings nvidia-cuda-nvrtc."
        ) from None
    return nvrtc


def _log(program: Any) -> str:
    nvrtc = _nvrtc()
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = bytearray(size)
    nvrtc.nvrtcGetProgramLog(program, log)
    return log.decode(errors="replace").strip("\0\n ")
