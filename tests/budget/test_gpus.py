"""The catalogue knows every GPU it promises, says who says so, and guesses nothing."""

import re

import pytest

from dsv4kv.budget.gpus import gpu_names, load_gpu


@pytest.mark.parametrize("name", gpu_names())
def test_every_gpu_has_its_memory_a_title_and_a_source(name: str) -> None:
    gpu = load_gpu(name)
    assert gpu.marketed_gb is not None
    assert gpu.title
    assert gpu.source


@pytest.mark.parametrize("name", gpu_names())
def test_every_nvidia_and_amd_gpu_says_what_kernels_are_compiled_for(name: str) -> None:
    gpu = load_gpu(name)
    known = gpu.arch is not None and re.fullmatch(r"sm_\d+|gfx\d+", gpu.arch)
    assert known or gpu.title.startswith("Huawei")


def test_where_the_driver_is_unknown_the_smaller_reading_is_taken_and_told() -> None:
    gpu = load_gpu("rtx-pro-5000")
    assert gpu.driver_mib is None
    assert gpu.memory_bytes == 48 * 10**9
    assert gpu.memory_source == "the datasheet's 48 GB read as 10^9 B"
