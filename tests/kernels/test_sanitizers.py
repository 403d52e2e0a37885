"""Address and undefined-behaviour sanitizers over every kernel of entries and pages."""

import re

from dsv4kv.files import shipped
from tests.kernels.hostile import launches
from tests.kernels.shim.apart import run_each_apart

SOURCES = ("gather", "insert", "indexer", "page_copy", "bandwidth", "objects")


def test_no_kernel_leaves_its_memory_whatever_it_is_asked_for() -> None:
    module = "tests.kernels.hostile"
    ((code, said),) = run_each_apart(module, ["run_all_sanitized()"], sanitized=True)
    assert code == 0, said


def test_every_kernel_is_among_them() -> None:
    text = "".join((shipped("kernels") / f"{name}.cuh").read_text() for name in SOURCES)
    kernels = set(re.findall(r"DSV_KERNEL void[^{]*?\s(\w+)\((?:const )?u8\*", text))
    assert {launch.kernel for launch in launches()} == kernels
    assert len(kernels) == text.count("DSV_KERNEL")
