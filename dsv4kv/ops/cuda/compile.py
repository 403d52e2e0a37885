"""From a kernel module to machine code with NVRTC: no nvcc, no driver and no GPU needed.

Compiled kernels on disk: compiled once a machine, read in milliseconds afterwards. A file's name
holds a digest of everything that decides its content: its sources, the macros, the options, the
architecture and NVRTC's version. So nothing is ever out of date, and processes that compile the
same at the same time write the same. What is loaded runs: of a folder that others could have
written nothing is taken.

Environment: ``DSV4KV_CACHE_DIR`` names the folder (default ``~/.cache/dsv4kv``, or under
``XDG_CACHE_HOME``).
"""

import functools
import hashlib
import os
import re
import stat
import tempfile
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

from dsv4kv.errors import CudaUnavailable, DeviceError
from dsv4kv.files import make_folder, replacing, shipped, user_cache
from dsv4kv.ops.launches import KernelModule
from dsv4kv.processes import usable_cores

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
    return f"sm_{major}{minor}{'a' if (major, minor) in {(9, 0), (10, 0), (10, 3)} else ''}"


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

    Program and headers go by their paths, so that profilers find the source. Raises
    ``CudaUnavailable``, and ``DeviceError`` with the log of source that does not compile.
    """
    check_architecture(architecture)
    nvrtc, source = _nvrtc(), shipped("kernels") / module.source
    _, program = nvrtc.nvrtcCreateProgram(source.read_bytes(), str(source).encode(), 0, [], [])
    try:
        options = [option.encode() for option in compile_options(module, architecture)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = bytearray(nvrtc.nvrtcGetProgramLogSize(program)[1])
            nvrtc.nvrtcGetProgramLog(program, log)
            raise DeviceError(
                f"{module.source} does not compile for {architecture} with NVRTC "
                f"{nvrtc_version()}:\n{log.decode(errors='replace').strip(_BLANK)}"
            )
        cubin = bytearray(nvrtc.nvrtcGetCUBINSize(program)[1])
        nvrtc.nvrtcGetCUBIN(program, cubin)
        return bytes(cubin)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def compile_options(module: KernelModule, architecture: str) -> list[str]:
    """Every option of a compilation."""
    defines = [f"-D{name}={value}" for name, value in module.macros]
    return [f"--gpu-architecture={architecture}", *OPTIONS, f"-I{shipped('kernels')}", *defines]


@functools.cache
def nvrtc_version() -> str:
    """For example ``13.0``; raises ``CudaUnavailable``."""
    _, major, minor = _nvrtc().nvrtcVersion()
    return f"{major}.{minor}"


def load_bindings(library: str) -> Any:
    """``nvrtc`` or ``driver`` of cuda-bindings; raises ``CudaUnavailable``."""
    try:
        return import_module(f"cuda.bindings.{library}")
    except ImportError:
        raise CudaUnavailable(
            f"kernels need the package cuda-bindings, which is not installed: {_INSTALL}."
        ) from None


@functools.cache
def _nvrtc() -> Any:
    nvrtc = load_bindings("nvrtc")
    try:
        nvrtc.nvrtcVersion()
    except RuntimeError:  # how cuda-bindings says that it finds no library
        raise CudaUnavailable(
            "kernels need NVRTC (libnvrtc.so), which is in no place where cuda-bindings looks: "
            f"{_INSTALL}, which brings nvidia-cuda-nvrtc."
        ) from None
    return nvrtc


_BLANK = "\0\n "
_MAGIC = b"dsv4kv cubin 2 "
_INCLUDE = re.compile(rb'^\s*#\s*include\s+"(.+?)"', re.MULTILINE)


def load_cubins(
    modules: Sequence[KernelModule],
    architecture: str,
    on_done: Callable[[int], None] = lambda _: None,
) -> list[bytes]:
    """Machine code of modules for an architecture; those not in the cache compile side by side.

    ``on_done`` is called with how many more are there. Raises as ``compile_module`` does.
    """
    named = {cache_name(module, architecture): module for module in modules}
    cubins = {name: cubin for name in named if (cubin := _find(name))}
    absent = {name: module for name, module in named.items() if name not in cubins}

    def build(name: str) -> bytes:
        cubin = compile_module(absent[name], architecture)
        _keep(name, cubin)
        return cubin

    on_done(len(modules) - len(absent))
    # NVRTC lets go of the interpreter; more threads than cores take more time of each
    with ThreadPoolExecutor(usable_cores()) as pool:
        try:
            for name, cubin in zip(absent, pool.map(build, absent), strict=True):
                cubins[name] = cubin
                on_done(1)
        except BaseException:
            pool.shutdown(cancel_futures=True)  # Ctrl-C waits for those under way alone
            raise
    return [cubins[cache_name(module, architecture)] for module in modules]


def cache_name(module: KernelModule, architecture: str) -> str:
    """File name of a module's machine code: readable, then the digest of all that decides it."""
    sources = _sources_digest(shipped("kernels") / module.source)
    parts = (sources, compile_options(module, architecture), nvrtc_version())
    digest = hashlib.sha256(repr((module.source, parts)).encode()).hexdigest()
    return f"{Path(module.source).stem}-{architecture}-{digest[:32]}.cubin"


def cache_folder() -> Path:
    """Where machine code is kept: made on the first write."""
    if chosen := os.environ.get("DSV4KV_CACHE_DIR"):
        return Path(chosen) / "cubin"
    spare = Path(tempfile.gettempdir()) / f"dsv4kv-{os.getuid()}"  # of a user without a home
    return (user_cache() or spare) / "cubin"


def _find(name: str) -> bytes | None:
    """The cubin of that name; None where it is absent or damaged, or not to be trusted."""
    folder = cache_folder()
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if not _is_trusted(folder, os.fstat(opened)):
                return None
            with open(name, "rb", opener=functools.partial(os.open, dir_fd=opened)) as file:
                head, _, cubin = file.read().partition(b"\n")
        finally:
            os.close(opened)
    except OSError:
        return None
    return cubin if head == _head(name, cubin) else None


def _keep(name: str, cubin: bytes) -> None:
    folder = cache_folder()
    try:
        make_folder(folder, 0o700)
        if _is_trusted(folder, folder.lstat()):
            with replacing(folder / name, mode=0o600) as file:
                file.write(_head(name, cubin) + b"\n" + cubin)
    except OSError as error:
        reason = error.strerror or str(error)
        _warn(folder, f"cannot be written ({reason}): kernels are compiled in every process")


def _is_trusted(folder: Path, facts: os.stat_result) -> bool:
    """Whether only this user can have written what is loaded from a folder."""
    if facts.st_uid == os.geteuid() and not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return True
    _warn(folder, "is not trusted, as others can write to it: nothing there is loaded")
    return False


def _head(name: str, cubin: bytes) -> bytes:
    """First line of a file: a good one under another's name is not taken either."""
    return _MAGIC + hashlib.sha256(name.encode() + b"\n" + cubin).hexdigest().encode()


@functools.cache
def _sources_digest(source: Path) -> str:
    """Digest of a kernel's source and of all that it includes."""
    digest, paths = hashlib.sha256(), [source]
    for path in paths:  # which grows
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)} ".encode() + content)
        included = (path.parent / name.decode() for name in _INCLUDE.findall(content))
        paths += [each for each in dict.fromkeys(included) if each not in paths]
    return digest.hexdigest()


@functools.cache
def _warn(folder: Path, problem: str) -> None:
    advice = "make it this user's alone (chmod 700), or name another with DSV4KV_CACHE_DIR."
    warnings.warn(f"{folder} {problem}; {advice}", RuntimeWarning, stacklevel=2)
