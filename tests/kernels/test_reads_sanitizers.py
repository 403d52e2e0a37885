"""Address and undefined-behaviour sanitizers over every kernel of a decode step's reads."""

import re

import pytest

from dsv4kv.files import shipped
from dsv4kv.ops.launches import select
from tests.kernels.reads_hostile import launches
from tests.kernels.shim.apart import run_each_apart

SOURCES = ("query", "scores", "topk", "candidates", "attend", "attend_groups", "merge")


def test_no_kernel_leaves_its_memory_whatever_it_is_asked_for() -> None:
    module = "tests.kernels.reads_hostile"
    ((code, said),) = run_each_apart(module, ["run_all_sanitized()"], sanitized=True)
    assert code == 0, said


def test_every_kernel_is_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "RUN", 15)
    text = "".join((shipped("kernels") / f"{name}.cuh").read_text() for name in SOURCES)
    kernels = re.findall(r"DSV_KERNEL void __launch_bounds__\([\w*/, ]+\)\s+(\w+)\(", text)
    assert {launch.kernel for launch in launches()} == set(kernels)
    sources = {launch.module.source for launch in launches()}
    assert sources == {f"{name}.cuh" for name in SOURCES}
    assert len(kernels) == text.count("DSV_KERNEL")
