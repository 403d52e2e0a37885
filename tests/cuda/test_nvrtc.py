"""The versions of NVRTC that tests compile with are those that they say."""

import pytest

from dsv4kv.errors import DeviceError
from dsv4kv.ops.cuda.compile import compile_module, nvrtc_version
from dsv4kv.ops.cuda.inspection import sections
from tests.cuda.nvrtc import with_each_nvrtc
from tests.cuda.toolchain import PAGE_COPY


@with_each_nvrtc
def test_kernels_compile_with_the_version_asked_for(nvrtc: str) -> None:
    assert nvrtc == nvrtc_version()
    assert ".text.page_copy" in sections(compile_module(PAGE_COPY, "sm_90a"))


@with_each_nvrtc
def test_its_refusals_are_told_as_those_of_the_installed_one(nvrtc: str) -> None:
    with pytest.raises(DeviceError, match=rf"^NVRTC {nvrtc} does not compile for sm_999, on"):
        compile_module(PAGE_COPY, "sm_999")
