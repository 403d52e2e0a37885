"""What is used of torch and needs a GPU to run is there.

So a version that moves one of them is found without a GPU; constraints.txt says which was run.
"""

import ast
import inspect
import re
from operator import attrgetter
from pathlib import Path

import pytest
import torch

PACKAGE = Path(__file__).parents[2] / "dsv4kv"
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


@pytest.mark.parametrize("name", sorted(used_names() - CUDA_BUILDS_ONLY))
def test_torch_has_what_is_used(name: str) -> None:
    assert callable(attrgetter(name)(torch))


def test_a_graph_and_an_event_take_what_they_are_given() -> None:
    taken = inspect.signature(torch.cuda.graph).parameters
    assert {"cuda_graph", "pool", "stream", "capture_error_mode"} <= taken.keys()
    assert "enable_timing" in inspect.signature(torch.cuda.Event.__new__).parameters


@pytest.mark.skipif(not torch.version.cuda, reason="this torch is not built for CUDA")
@pytest.mark.parametrize("name", sorted(CUDA_BUILDS_ONLY))
def test_builds_for_cuda_have_private_names(name: str) -> None:
    assert callable(attrgetter(name)(torch))
