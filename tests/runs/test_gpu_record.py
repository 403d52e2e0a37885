"""What a record of a GPU, of other packages' operations or of a skipped case is told as."""

from typing import Any

from dsv4kv.runs.quantities import gather_rate, yardsticks
from dsv4kv.runs.schema import Case, Latency, NotMeasured, Operation, Peak
from dsv4kv.view.bench import operations_table
from tests.runs.records import make_case

GIB = 1 << 30


def make_gather(temperature: Any, microseconds: int) -> Operation:
    return Operation(
        name="gather_topk", layer_type="csa", samples_ns=[1000 * microseconds] * 8,
        entries=[65_536] * 8, bytes=[100_000_000] * 8, temperature=temperature,
        distinct_bytes=3_000_000_000 if temperature == "cold" else 100_000_000,
    )  # fmt: skip


def make_gpu_case(**changes: Any) -> Case:
    facts: dict[str, Any] = {
        "device": "cuda",
        "backend": "cuda",
        "operations": [make_gather("cold", 25), make_gather("hot", 20)],
        "memcpy": None,
        "peaks": [
            Peak(name="copy", bytes=2 * GIB, samples_ns=[500_000] * 8),
            Peak(name="read", bytes=GIB, samples_ns=[245_000] * 8),
        ],
        "latencies": [
            Latency(name="decode_graph_device", samples_ns=[1_000_000] * 9),
            Latency(name="decode_graph_host", samples_ns=[50_000] * 9),
            Latency(name="decode_eager_device", samples_ns=[19_000_000] * 9),
            Latency(name="decode_eager_host", samples_ns=[18_000_000] * 9),
        ],
    }
    return make_case(**facts | changes)


def test_the_first_yardstick_is_the_copy_on_a_gpu_and_memcpy_on_the_cpu() -> None:
    assert [each.name for each in yardsticks(make_gpu_case())] == ["copy", "read"]
    assert [each.name for each in yardsticks(make_case())] == ["memcpy"]
    assert yardsticks(make_case(memcpy=None)) == []


def test_rates_are_compared_with_the_faster_of_two_copies() -> None:
    copy, read = make_gpu_case().peaks
    faster = Peak(name="torch_copy", bytes=2 * GIB, samples_ns=[480_000] * 8)
    case = make_gpu_case(peaks=[copy, faster, read])
    assert [each.name for each in yardsticks(case)] == ["torch_copy", "copy", "read"]
    table = operations_table(case)
    assert "torch_copy 4,474 GB/s; copy 4,295 GB/s" in table.note
    assert table.cells[0][4].value == "89.4"  # of 2 GiB in 0.48 ms


def test_what_was_not_measured_and_an_empty_kernel_are_below_the_table() -> None:
    missing = NotMeasured(name="flush", layer_type="hca", temperature="hot", why="budget")
    row = make_gather("L2-resident", 9)
    case = make_gpu_case(operations=[row], not_measured=[missing], empty_kernel_ns=[1_234] * 8)
    table = operations_table(case)
    assert table.cells[0][0].value == "gather_topk L2-resident"
    assert table.caption == "not measured: flush hot hca, budget\nan empty kernel takes 1.23 µs"
    assert gather_rate(case) is None
