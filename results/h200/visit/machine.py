"""Step: what machine this is."""

import importlib.metadata
import shutil
import subprocess

from dsv4kv.runs.environment import capture_environment
from visit.desk import Desk

_TOOLS = ("nvidia-smi", "ncu", "nsys", "compute-sanitizer", "cuobjdump", "nvdisasm", "nvcc", "g++")
_PACKAGES = ("torch", "triton", "numpy", "cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-ml-py")


def run(desk: Desk) -> None:
    """Answer the questions of ``questions.FACTS``, and note the rest."""
    with desk.place() as place:
        desk.answer("multiprocessors", place.facts.multiprocessors)
        desk.answer("l2", place.facts.l2_bytes / 1e6)
        desk.note("gpu", **place.facts.model_dump())
    desk.note("machine", **capture_environment())
    desk.note("packages", **{name: _version(name) for name in _PACKAGES})
    desk.note("tools", **{name: shutil.which(name) for name in _TOOLS})
    if smi := shutil.which("nvidia-smi"):  # clocks, limits, throttling: into the log
        subprocess.run([smi, "-q"], check=False)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
