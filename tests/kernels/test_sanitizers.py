"""Address and undefined-behaviour sanitizers over every kernel there is."""

import re
from unittest.mock import patch

import pytest

from dsv4kv.files import shipped
from dsv4kv.ops.launches import reads
from tests.kernels import hostile
from tests.kernels.shim.apart import run_each_apart

PARTS = 4
KERNEL = r"DSV_KERNEL void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\("


@pytest.mark.parametrize("part", range(PARTS))
def test_no_kernel_leaves_its_memory_whatever_it_is_asked_for(part: int) -> None:
    call = f"run_all_sanitized({part}, {PARTS})"
    ((code, said),) = run_each_apart("tests.kernels.hostile", [call], sanitized=True)
    assert code == 0, said


def test_every_kernel_is_among_them() -> None:
    text = "".join(path.read_text() for path in shipped("kernels").glob("*.cuh"))
    kernels = set(re.findall(KERNEL, text))
    with patch.object(reads, "RUN", hostile.RUN):
        assert {launch.kernel for launch in hostile.launches()} == kernels
