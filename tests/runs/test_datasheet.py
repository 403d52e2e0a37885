import pytest

from dsv4kv.runs.quantities import on_datasheet
from tests.runs.records import H200


@pytest.mark.parametrize(
    ("name", "memory_mib", "gbps"),
    [
        ("NVIDIA H200", 143_156, 4800),
        ("NVIDIA H100 80GB HBM3", 81_079, 3350),
        ("NVIDIA A100-SXM4-40GB", 40_443, 1555),
        ("NVIDIA A100-SXM4-80GB", 81_154, 2039),
        ("NVIDIA GH200 480GB", 97_280, 4000),  # of its CPU, with 96 GB of its own
        ("NVIDIA H100 PCIe", 81_079, None),  # slower memory of the same size
        ("NVIDIA GH200 144G HBM3e", 146_831, None),
        ("NVIDIA H2000", 143_156, None),
    ],
)
def test_a_gpu_is_known_by_name_and_memory(name: str, memory_mib: int, gbps: int | None) -> None:
    gpu = H200.model_copy(update={"name": name, "memory_bytes": memory_mib << 20})
    assert on_datasheet(gpu, "bandwidth_gbps") == gbps
