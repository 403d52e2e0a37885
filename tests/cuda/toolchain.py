"""What is needed to compile kernels, and reasons to skip where it is absent."""

import importlib.util

import pytest

from dsv4kv.errors import CudaUnavailable
from dsv4kv.ops.cuda.compile import nvrtc_version
from dsv4kv.ops.cuda.inspection import find_disassembler
from dsv4kv.ops.launches import KernelModule

PAGE_COPY = KernelModule("page_copy.cuh", (("DSV_PAGE_BYTES", 1152),))
"""The smallest module."""


def _has_bindings() -> bool:
    return importlib.util.find_spec("cuda") is not None


def _has_nvrtc() -> bool:
    try:
        return bool(nvrtc_version())
    except CudaUnavailable:
        return False


def _has_tools() -> bool:
    try:
        return bool(find_disassembler())
    except CudaUnavailable:
        return False


needs_bindings = pytest.mark.skipif(not _has_bindings(), reason="cuda-bindings is not installed")
needs_nvrtc = pytest.mark.skipif(
    not _has_nvrtc(), reason="cuda-bindings or nvidia-cuda-nvrtc is not installed"
)
needs_disassembler = pytest.mark.skipif(
    not _has_tools(), reason="nvidia-cuda-nvdisasm is not installed"
)
needs_tools = pytest.mark.skipif(
    not (_has_nvrtc() and _has_tools()),
    reason="cuda-bindings, nvidia-cuda-nvrtc or -nvdisasm is not installed",
)
