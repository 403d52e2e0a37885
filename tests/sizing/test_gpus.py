"""The catalogue knows every GPU it promises, says who says so, and guesses nothing."""

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
    "gb10",
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
    gpu = load_gpu("gb300")
    assert gpu.driver_mib is None
    assert gpu.memory_bytes == 288 * 10**9
    assert gpu.memory_source == "the datasheet's 288 GB read as 10^9 B"


def test_an_unknown_bandwidth_is_null_not_a_guess() -> None:
    assert load_gpu("ascend-910b").bandwidth_gbps is None


def test_plain_memory_is_taken_as_it_is_given() -> None:
    gpu = plain_memory(141 * 2**30)
    assert (gpu.memory_bytes, gpu.memory_source) == (141 * 2**30, "as given")


def test_an_unknown_gpu_is_refused_with_the_nearest_and_with_hbm() -> None:
    with pytest.raises(ConfigError, match=r"\(did you mean .*h200.*\).* --hbm 141GiB"):
        load_gpu("h201")
