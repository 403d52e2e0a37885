"""Address and undefined-behaviour sanitizers over every kernel of states and block tables."""

import re

from dsv4kv.files import shipped
from tests.kernels.shim.apart import run_each_apart
from tests.kernels.state_hostile import launches

SOURCES = ("state", "flush", "step_write", "prepare", "completed")


def test_no_kernel_leaves_its_memory_whatever_it_is_asked_for() -> None:
    module = "tests.kernels.state_hostile"
    ((code, said),) = run_each_apart(module, ["run_all_sanitized()"], sanitized=True)
    assert code == 0, said


def test_every_kernel_is_among_them() -> None:
    text = "".join((shipped("kernels") / f"{name}.cuh").read_text() for name in SOURCES)
    kernels = re.findall(r"DSV_KERNEL void __launch_bounds__\([\w, ]+\)\s+(\w+)\(", text)
    assert {launch.kernel for launch in launches()} == set(kernels)
    assert len(kernels) == text.count("DSV_KERNEL")
