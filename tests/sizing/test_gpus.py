"""The catalogue knows every GPU it promises, says who says so, and guesses nothing."""

import re

import pytest

from dsv4kv.errors import ConfigError
from dsv4kv.sizing.gpus import gpu_names, load_gpu, plain_memory

PROMISED = {
    "h20",
    "h100",
    "h200",
    "b200",
    "b300",
    "gb200",
    "gb300",
    "gb300-station",
    "gb10",
    "gh200",
    "h20-3e",
    "l20",
    "rtx-4090-48gb",
    "rtx-pro-6000",
    "rtx-pro-5000",
    "rtx-5090",
    "rtx-4090",
    "a100-40gb",
    "a100-80gb",
    "l40s",
    "mi300x",
    "mi325x",
    "mi355x",
    "ascend-910b",
    "ascend-910c",
}


def test_every_promised_gpu_is_there() -> None:
    assert set(gpu_names()) >= PROMISED


@pytest.mark.parametrize("name", gpu_names())
def test_every_gpu_has_its_memory_a_title_and_a_source(name: str) -> None:
    gpu = load_gpu(name)
    assert gpu.marketed_gb is not None
    assert gpu.title
    assert gpu.source


@pytest.mark.parametrize(
    ("name", "mib"), [("gb300", 284_208), ("gb300-station", 256_703), ("rtx-4090-48gb", 49_140)]
)
def test_the_driver_reports_other_than_what_the_name_says(name: str, mib: int) -> None:
    """GB300 of an NVL72: 277.5 GiB of 288 GB; of a DGX Station: 250.7 GiB of 252 GB."""
    assert load_gpu(name).driver_mib == mib


@pytest.mark.parametrize("name", gpu_names())
def test_every_nvidia_and_amd_gpu_says_what_kernels_are_compiled_for(name: str) -> None:
    gpu = load_gpu(name)
    known = gpu.arch is not None and re.fullmatch(r"sm_\d+|gfx\d+", gpu.arch)
    assert known or gpu.title.startswith("Huawei")


@pytest.mark.parametrize("name", gpu_names())
def test_what_the_driver_reports_lies_within_a_tenth_of_what_is_marketed(name: str) -> None:
    """GB is read as 10^9 or 2^30 bytes by the vendors, which differ by 7.4 %; ECC takes some."""
    gpu = load_gpu(name)
    assert gpu.marketed_gb is not None
    assert 0.93 < gpu.memory_bytes / (gpu.marketed_gb * 10**9) < 1.1


def test_memory_is_what_the_driver_reports() -> None:
    """NVIDIA H200: nvidia-smi reports 143771MiB."""
    assert load_gpu("h200").memory_bytes == 143_771 * 2**20
    assert load_gpu("h200").memory_source == "as the driver reports it"


def test_where_the_driver_is_unknown_the_smaller_reading_is_taken_and_told() -> None:
    gpu = load_gpu("rtx-pro-5000")
    assert gpu.driver_mib is None
    assert gpu.memory_bytes == 48 * 10**9
    assert gpu.memory_source == "the datasheet's 48 GB read as 10^9 B"


def test_an_unknown_bandwidth_is_null_not_a_guess() -> None:
    assert load_gpu("ascend-910b").bandwidth_gbps is None


def test_plain_memory_is_taken_as_it_is_given() -> None:
    gpu = plain_memory(141 * 2**30)
    assert (gpu.memory_bytes, gpu.memory_source) == (141 * 2**30, "as given")


def test_an_unknown_gpu_is_refused_with_the_nearest_and_with_hbm() -> None:
    with pytest.raises(ConfigError, match=r"\(did you mean .*h200.*\).* --hbm 141GiB"):
        load_gpu("h201")
