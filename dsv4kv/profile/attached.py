"""Profilers as the profiled process sees them: when they look, and how ranges are marked.

That process has torch; ``has_nvtx`` needs none, so torch is imported late.
"""
# ruff: noqa: D102, methods are described by ``Attached``

import gzip
import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol

from dsv4kv.files import temporary_folder
from dsv4kv.profile.trace import DOMAIN

_HOST_NAME = re.compile(r'"host_name":\s*"[^"]*"')
_HEAD_CHARACTERS = 1 << 16


class Attached(Protocol):
    """A profiler."""

    def start(self) -> None:
        """Begin to look; all work launched before is done."""

    def stop(self) -> None:
        """Look no more, once all work launched so far is done."""

    def mark(self, name: str) -> AbstractContextManager[object]:
        """Mark what is launched inside as a range."""


def has_nvtx() -> bool:
    """Whether the ``nvtx`` package is there, which gives ranges a domain of their own."""
    return importlib.util.find_spec("nvtx") is not None


class CudaProfiler(Attached):
    """nsys or ncu around this process, by cudaProfilerStart and Stop and NVTX ranges."""

    def start(self) -> None:
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.profiler.start()  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]

    def mark(self, name: str) -> AbstractContextManager[object]:
        if has_nvtx():
            nvtx: Any = importlib.import_module("nvtx")
            marked: AbstractContextManager[object] = nvtx.annotate(name, domain=DOMAIN)
            return marked
        import torch

        return torch.cuda.nvtx.range(name) if torch.cuda.is_available() else nullcontext()


class Kineto(Attached):
    """torch.profiler in this process; begun after graphs are captured, or it misses kernels."""

    def __init__(self) -> None:
        import torch

        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profile = torch.profiler.profile(activities=activities)

    def start(self) -> None:
        with _silent_stderr():
            self._profile.start()

    def stop(self) -> None:
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
        with _silent_stderr():
            self._profile.stop()

    def mark(self, name: str) -> AbstractContextManager[object]:
        import torch

        return torch.profiler.record_function(name)

    def save(self, path: Path) -> None:
        """Write the Chrome trace, packed, without the host's name; can be done once."""
        with temporary_folder("dsv4kv-trace-") as folder:
            raw = folder / "trace.json"
            self._profile.export_chrome_trace(str(raw))
            with (
                raw.open(encoding="utf-8") as source,
                gzip.open(path, "wt", encoding="utf-8") as out,
            ):
                out.write(_HOST_NAME.sub('"host_name": ""', source.read(_HEAD_CHARACTERS)))
                shutil.copyfileobj(source, out)


@contextmanager
def _silent_stderr() -> Iterator[None]:
    # Kineto writes to the process's stderr when it starts and stops, whatever its log level
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as nothing:
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
