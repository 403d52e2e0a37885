"""What a record of a GPU, of other packages' operations or of a skipped case is told as."""

from typing import Any

from dsv4kv.runs.quantities import gather_rate, yardsticks
from dsv4kv.runs.schema import Case, GpuFacts, Latency, NotMeasured, Operation, Peak
from dsv4kv.view.case import decode_table, graph_device_time, operations_table
from dsv4kv.view.facts import header
from dsv4kv.view.findings import judge_results, judge_status
from dsv4kv.view.record import sweep_table
from tests.runs.records import make_case, make_environment, make_failed_case, make_record
from tests.view.terminal import shown, told

GIB = 1 << 30
H200 = GpuFacts(
    name="NVIDIA H200",
    capability="9.0",
    multiprocessors=132,
    memory_bytes=140 * GIB,
    l2_bytes=50 << 20,
)


def make_gather(temperature: Any, microseconds: int) -> Operation:
    return Operation(
        name="gather_topk",
        layer_type="csa",
        samples_ns=[1000 * microseconds] * 8,
        entries=[65_536] * 8,
        bytes=[100_000_000] * 8,
        temperature=temperature,
        distinct_bytes=3_000_000_000 if temperature == "cold" else 100_000_000,
    )


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


def cells(text: str, start: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(start)]
    return line.split()


def test_cold_and_hot_calls_have_rows_of_their_own_held_against_the_copy() -> None:
    text = shown(operations_table(make_gpu_case()))
    assert "cold: every call on memory of its own" in text
    assert cells(text, "gather_topk cold")[-9:-6] == ["25.0", "±", "0.0"]
    assert cells(text, "gather_topk cold")[-6:-3] == ["4,000", "±", "0"]
    assert cells(text, "gather_topk hot")[-6:-3] == ["5,000", "±", "0"]
    assert cells(text, "gather_topk cold")[-3] == "93.1"  # of 2 GiB in 0.5 ms
    assert "2.79 GiB" in text  # until a cold byte comes round again
    assert "% of" in text
    assert "copy" in text


def test_the_first_yardstick_is_the_copy_on_a_gpu_and_memcpy_on_the_cpu() -> None:
    assert [each.name for each in yardsticks(make_gpu_case())] == ["copy", "read"]
    assert [each.name for each in yardsticks(make_case())] == ["memcpy"]
    assert yardsticks(make_case(memcpy=None)) == []


def test_rates_are_held_against_the_faster_of_two_copies_and_both_are_told() -> None:
    copy, read = make_gpu_case().peaks
    faster = Peak(name="torch_copy", bytes=2 * GIB, samples_ns=[480_000] * 8)
    case = make_gpu_case(peaks=[copy, faster, read])
    assert [each.name for each in yardsticks(case)] == ["torch_copy", "copy", "read"]
    text = shown(operations_table(case))
    assert cells(text, "gather_topk cold")[-3] == "89.4"  # of 2 GiB in 0.48 ms
    assert cells(text, "copy")[-4:-1] == ["4,295", "±", "0"]
    assert cells(text, "torch_copy")[-4:-1] == ["4,474", "±", "0"]


def test_rows_that_fit_the_cache_and_rows_that_were_not_measured_say_so() -> None:
    missing = NotMeasured(name="flush", layer_type="hca", temperature="hot", why="budget")
    row = make_gather("L2-resident", 20)
    case = make_gpu_case(operations=[row], not_measured=[missing])
    text = shown(operations_table(case), width=140)
    assert cells(text, "gather_topk")[1] == "L2-resident"
    assert set(cells(text, "flush hot")[3:]) == {"–"}
    assert "not measured: flush hot hca, budget" in text
    assert gather_rate(case) is None


def test_short_operations_have_the_empty_kernels_time_beside_them() -> None:
    case = make_gpu_case(
        operations=[make_gather("cold", 25), make_gather("hot", 9)], empty_kernel_ns=[1_234] * 8
    )
    text = shown(operations_table(case), width=140)
    assert "1.23" in " ".join(cells(text, "gather_topk hot"))
    assert "1.23" not in " ".join(cells(text, "gather_topk cold"))
    assert "kernel" not in shown(
        operations_table(make_gpu_case(empty_kernel_ns=[1_234])), width=140
    )


def test_samples_left_out_for_throttling_are_counted_by_row() -> None:
    row = make_gather("cold", 25).model_copy(update={"throttled": 56})
    text = shown(
        operations_table(make_gpu_case(operations=[row, make_gather("hot", 20)])), width=140
    )
    assert "of all calls, those not throttled" in " ".join(text.split())
    assert cells(text, "gather_topk cold")[3:6] == ["8", "of", "64"]
    assert cells(text, "gather_topk hot")[3:5] == ["8", "524,288"]


def test_a_decode_step_is_told_on_both_clocks_and_as_a_ratio() -> None:
    table = decode_table(make_gpu_case())
    assert table is not None
    text = shown(table)
    assert "a graph takes 1 / 19.0 ± 0.0 of the time" in text
    assert cells(text, "captured graph")[2:] == ["9", "1,000", "±", "0", "50.0", "±", "0.0"]
    assert cells(text, "launched one by one")[4:7] == ["9", "19,000", "±"]


def test_one_way_alone_has_no_ratio_and_none_no_table() -> None:
    graph = make_gpu_case().latencies[:2]
    table = decode_table(make_gpu_case(latencies=graph))
    assert table is not None
    assert "a graph takes" not in shown(table)
    device_only = decode_table(make_gpu_case(latencies=[e for e in graph if "host" not in e.name]))
    assert device_only is not None
    assert cells(shown(device_only), "captured graph")[-1] == "–"
    assert decode_table(make_case()) is None


def test_a_sweep_tells_the_graphs_time_and_the_cold_rate() -> None:
    cases = [make_gpu_case(axis={"cache.prepare": way}) for way in ("host", "device")]
    text = shown(sweep_table(cases))
    assert "GPU µs" in text
    assert text.count("1,000 ± 0") == 2
    assert text.count("4,000 ± 0") == 2
    time = graph_device_time(cases[0])
    assert time is not None
    assert time.value == 1e6
    assert "GPU µs" not in shown(sweep_table([make_case(axis={"a.b": 1})]))


def test_the_gpu_is_named_where_there_is_one() -> None:
    with_gpu = make_record(make_gpu_case(), environment=make_environment(gpu=H200))
    text = shown(header(with_gpu))
    assert (
        "NVIDIA H200, 132 multiprocessors of capability 9.0, 140 GiB memory, 50.0 MiB L2" in text
    )
    assert "gpu" not in shown(header(make_record()))


def test_operations_from_elsewhere_are_named_with_their_package() -> None:
    case = make_case(backend="vllm", foreign=["gather_all"], backend_version="0.33.0")
    text = shown(operations_table(case))
    assert "gather_all from vllm 0.33.0; all others: reference CPU backend" in text


def test_a_skipped_case_is_a_warning_with_its_reason_and_no_failure() -> None:
    skipped = make_failed_case("vllm is not installed", axis={"backend": "vllm"}, status="skipped")
    (finding,) = judge_status(skipped)
    assert (finding.level, finding.sentence) == ("warning", "skipped: vllm is not installed")
    assert judge_results(skipped) == []
    good = make_case(axis={"backend": "cpu"})
    text = told(make_record(good, skipped, status="complete"))
    assert "backend=vllm: skipped: vllm is not installed" in text
    assert "✗" not in text
