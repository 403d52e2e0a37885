"""Compiled kernels on disk: compiled once a machine, read in milliseconds afterwards.

A file's name holds a digest of everything that decides its content: all sources, the macros, the
options, the architecture and NVRTC's version. So nothing is ever out of date, and processes that
compile the same at the same time write the same. What is loaded runs: of a folder or file that
somebody else could have written nothing is taken.

Environment: ``DSV4KV_CACHE_DIR`` names the folder (default ``~/.cache/dsv4kv``, or under
``XDG_CACHE_HOME``); ``DSV4KV_JIT_FORCE=1`` compiles anew; ``DSV4KV_JIT_DUMP=DIR`` also writes
what is loaded to DIR, as cubin, SASS and resource use.
"""

import functools
import hashlib
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dsv4kv.files import NotPrivate, check_private, read_private, replacing, temporary_place
from dsv4kv.ops.cuda.compile import compile_module, compile_options, nvrtc_version
from dsv4kv.ops.cuda.inspection import dump
from dsv4kv.ops.kernels.launch import KernelModule
from dsv4kv.resources import shipped

_MAGIC = b"dsv4kv cubin 2 "


def load_cubins(modules: Sequence[KernelModule], architecture: str) -> list[bytes]:
    """Machine code of modules for an architecture; those not in the cache compile side by side.

    Raises:
        CudaUnavailable: A package is missing; says which.
        DeviceError: A module cannot be compiled for this architecture.
    """
    names = [cache_name(module, architecture) for module in modules]
    force = os.environ.get("DSV4KV_JIT_FORCE") == "1"
    cubins = {} if force else {name: cubin for name in names if (cubin := _find(name))}
    named = zip(names, modules, strict=True)
    absent = {name: module for name, module in named if name not in cubins}
    for name, cubin in _compile_all(absent, architecture):
        _keep(name, cubin)
        cubins[name] = cubin
    if folder := os.environ.get("DSV4KV_JIT_DUMP"):
        for name, cubin in cubins.items():
            dump(cubin, Path(folder), Path(name).stem)
    return [cubins[name] for name in names]


def cache_name(module: KernelModule, architecture: str) -> str:
    """File name of a module's machine code: readable, then the digest of all that decides it."""
    parts = (_sources_digest(), compile_options(module, architecture), nvrtc_version())
    digest = hashlib.sha256(repr((module.source, parts)).encode()).hexdigest()
    return f"{Path(module.source).stem}-{architecture}-{digest[:32]}.cubin"


def cache_folder() -> Path:
    """Where machine code is kept: made on the first write."""
    if chosen := os.environ.get("DSV4KV_CACHE_DIR"):
        return Path(chosen) / "cubin"
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a container's user without a home
        return _spare_folder()
    return caches / "dsv4kv" / "cubin"


def _compile_all(
    absent: Mapping[str, KernelModule], architecture: str
) -> Iterator[tuple[str, bytes]]:
    """Compile modules in threads, for which NVRTC lets go of the interpreter; (name, cubin)."""
    if not absent:
        return
    with ThreadPoolExecutor() as pool:
        cubins = pool.map(lambda module: compile_module(module, architecture), absent.values())
        yield from zip(absent, cubins, strict=True)


def _find(name: str) -> bytes | None:
    """The cubin of that name; None where it is absent or damaged, or not to be trusted."""
    for folder in (cache_folder(), _spare_folder()):
        try:
            content = read_private(folder / name)
        except NotPrivate as error:
            _warn_foreign(error.filename, error.strerror)
            continue
        except OSError:
            continue
        head, _, cubin = content.partition(b"\n")
        if head == _head(name, cubin):
            return cubin
    return None


def _keep(name: str, cubin: bytes) -> None:
    """Write to the cache, or to the temporary folder where that cannot be written."""
    for folder in (cache_folder(), _spare_folder()):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_private(folder)
            with replacing(folder / name, mode=0o600) as file:
                file.write(_head(name, cubin) + b"\n" + cubin)
        except NotPrivate as error:
            _warn_foreign(error.filename, error.strerror)
        except OSError as error:
            if folder == cache_folder():  # where the other fails too, every process compiles
                _warn_once(folder, error.strerror or str(error))
        else:
            return


def _head(name: str, cubin: bytes) -> bytes:
    """First line of a file: a good one under another's name is not taken either."""
    return _MAGIC + hashlib.sha256(name.encode() + b"\n" + cubin).hexdigest().encode()


@functools.cache
def _sources_digest() -> str:
    """Digest of every kernel source: they include each other."""
    digest = hashlib.sha256()
    for path in sorted(shipped("kernels").glob("*.cuh")):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)} ".encode() + content)
    return digest.hexdigest()


def _spare_folder() -> Path:
    return temporary_place() / f"dsv4kv-cubin-{os.getuid()}"


@functools.cache
def _warn_foreign(path: str, reason: str) -> None:
    warnings.warn(
        f"{path} is not trusted ({reason}): nothing there is loaded and kernels are compiled "
        "anew; make folder and files this user's alone (chmod 700), or name another folder with "
        "DSV4KV_CACHE_DIR.",
        RuntimeWarning,
        stacklevel=2,
    )


@functools.cache
def _warn_once(folder: Path, reason: str) -> None:
    warnings.warn(
        f"{folder} cannot be written ({reason}): compiled kernels are kept in {_spare_folder()} "
        "where possible; name another folder with DSV4KV_CACHE_DIR.",
        RuntimeWarning,
        stacklevel=2,
    )
