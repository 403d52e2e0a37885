"""What is used of torch and needs a GPU to run is there, with the parameters that are passed.

So a version that moves one of them is found without a GPU; constraints.txt says which was run.
"""

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch

PACKAGE = Path(__file__).parents[2] / "dsv4kv"
USED: dict[str, tuple[str, ...]] = {
    "cuda.CUDAGraph": (),
    "cuda.Event": ("enable_timing",),
    "cuda.Stream": ("device",),
    "cuda._sleep": ("cycles",),
    "cuda.current_device": (),
    "cuda.current_stream": ("device",),
    "cuda.device": ("device",),
    "cuda.get_device_capability": ("device",),
    "cuda.get_device_properties": ("device",),
    "cuda.graph": ("cuda_graph", "pool", "stream", "capture_error_mode"),
    "cuda.is_available": (),
    "cuda.mem_get_info": ("device",),
    "cuda.nvtx.range": ("msg",),
    "cuda.profiler.start": (),
    "cuda.profiler.stop": (),
    "cuda.stream": ("stream",),
    "cuda.synchronize": ("device",),
}
"""Names in ``torch`` and parameters."""

_MADE_BY_NEW = {"cuda.Event", "cuda.Stream"}

CUDA_BUILDS_ONLY = {"_C._cuda_getCurrentRawStream"}
"""Called with a device's index; the inductor's generated code does the same."""


def used_names() -> set[str]:
    """``torch.cuda.…`` and private names that the package's source has."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for each in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(each, ast.Attribute):
                found.add(ast.unparse(each))
    used = {name.removeprefix("torch.") for name in found if re.fullmatch(r"torch[\w.]+", name)}
    used = {name for name in used if name.startswith(("cuda.", "_C."))}
    return {name for name in used if not any(other.startswith(f"{name}.") for other in used)}


def test_the_table_has_all_that_is_used() -> None:
    assert used_names() == USED.keys() | CUDA_BUILDS_ONLY


@pytest.mark.parametrize("name", USED)
def test_torch_has_it_with_these_parameters(name: str) -> None:
    found: Any = torch
    for part in name.split("."):
        found = getattr(found, part)
    found = found.__new__ if isinstance(found, type) and name in _MADE_BY_NEW else found
    if parameters := USED[name]:
        assert set(parameters) <= inspect.signature(found).parameters.keys()


@pytest.mark.skipif(not torch.version.cuda, reason="this torch is not built for CUDA")
@pytest.mark.parametrize("name", sorted(CUDA_BUILDS_ONLY))
def test_builds_for_cuda_have_private_names(name: str) -> None:
    found: Any = torch
    for part in name.split("."):
        found = getattr(found, part)
    assert callable(found)
