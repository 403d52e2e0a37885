import pytest

from dsv4kv.runs.quantities import datasheet_gbps
from dsv4kv.runs.schema import GpuFacts

MIB = 1 << 20


def make_gpu(name: str, memory_mib: int) -> GpuFacts:
    return GpuFacts(
        name=name,
        capability="9.0",
        multiprocessors=132,
        memory_bytes=memory_mib * MIB,
        l2_bytes=50 * MIB,
    )


@pytest.mark.parametrize(
    ("name", "memory_mib", "gbps"),
    [
        ("NVIDIA H200", 143_156, 4800),
        ("NVIDIA H100 80GB HBM3", 81_079, 3350),
        ("NVIDIA A100-SXM4-40GB", 40_443, 1555),
        ("NVIDIA A100-SXM4-80GB", 81_154, 2039),
        ("NVIDIA GeForce RTX 4090", 24_210, 1008),
        ("NVIDIA GH200 480GB", 97_280, 4000),  # of its CPU, with 96 GB of its own
    ],
)
def test_a_gpu_of_the_catalogue_is_known_by_its_name_and_memory(
    name: str, memory_mib: int, gbps: int
) -> None:
    assert datasheet_gbps(make_gpu(name, memory_mib)) == gbps


@pytest.mark.parametrize(
    ("name", "memory_mib"),
    [
        ("NVIDIA H100 PCIe", 81_079),  # slower memory of the same size
        ("NVIDIA H100 NVL", 95_830),
        ("NVIDIA GH200 144G HBM3e", 146_831),
        ("NVIDIA H2000", 143_156),
        ("Some GPU", 81_079),
    ],
)
def test_a_gpu_that_is_not_surely_one_of_the_catalogue_has_no_datasheet(
    name: str, memory_mib: int
) -> None:
    assert datasheet_gbps(make_gpu(name, memory_mib)) is None
