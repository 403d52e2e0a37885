"""The catalogue of GPUs: how much memory each has, how fast it is, and who says so."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import yaml

from dsv4kv.errors import find_name
from dsv4kv.files import shipped, shipped_names
from dsv4kv.units import format_bytes


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU, or a plain amount of memory."""

    name: str
    title: str
    source: str
    marketed_gb: int | None = None  # memory on the datasheet, in GB
    driver_mib: int | None = None  # memory as the driver reports it, in MiB
    cuda_mib: int | None = None  # as CUDA gives it to programs, and logs of engines print it
    arch: str | None = None  # what its kernels are compiled for: ``sm_90``, ``gfx950``
    bandwidth_gbps: int | None = None  # memory bandwidth on the datasheet, in 10^9 B/s
    fp8_tflops: int | None = None  # dense rate of its tensor cores on the datasheet
    bf16_tflops: int | None = None
    given_bytes: int | None = None  # memory as the user gave it, instead of the above
    # coefficients of a step by the type of its experts (``replay.clock.steps``)
    clock: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)

    @property
    def driver_bytes(self) -> int:
        """Bytes as given, as the driver reports, else the datasheet's decimal GB.

        Vendors write GB for either 10^9 or 2^30 bytes; where the driver's number is not known
        the smaller reading is taken.
        """
        if self.given_bytes is not None:
            return self.given_bytes
        if mib := self.driver_mib or self.cuda_mib:
            return mib * 2**20
        return (self.marketed_gb or 0) * 10**9

    @property
    def memory_bytes(self) -> int:
        """Bytes that programs get: of the driver's, a part is reserved for error correction."""
        return self.driver_bytes if self.cuda_mib is None else self.cuda_mib * 2**20

    @property
    def memory_source(self) -> str:
        """How ``memory_bytes`` is known, in words."""
        if self.given_bytes is not None:
            return "as given"
        if self.cuda_mib is not None:
            return "as CUDA reports it"
        if self.driver_mib is not None:
            return "as the driver reports it"
        return f"the datasheet's {self.marketed_gb} GB read as 10^9 B"


def gpu_names() -> list[str]:
    return shipped_names("gpus")


def gpu_labelled(label: str) -> str | None:
    """The GPU whose name's words are in a label: ``h100`` of ``NVIDIA-H100-80GB-HBM3``."""
    words = set(re.split(r"[^a-z0-9]+", label.lower()))
    found = [name for name in gpu_names() if words.issuperset(name.split("-"))]
    return max(found, key=lambda name: name.count("-"), default=None)


@cache
def load_gpu(name: str) -> Gpu:
    """Look a GPU up by name; raises ``ConfigError`` with the nearest names."""
    known = find_name(name, gpu_names(), "GPU", ", or its memory with --hbm 141GiB")
    text = (shipped("configs") / "gpus" / f"{known}.yaml").read_text(encoding="utf-8")
    return Gpu(name=known, **yaml.safe_load(text))


def plain_memory(memory_bytes: int) -> Gpu:
    title = f"GPU with {format_bytes(memory_bytes)}"
    return Gpu(name=title, title=title, source="as given", given_bytes=memory_bytes)
