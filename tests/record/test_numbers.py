from dsv4kv.record.quantities import allocated_bytes, gather_rate, latency_median
from tests.record.records import make_case, make_failed_case
from tests.record.test_gpu_record import make_gpu_case


def test_a_case_is_told_by_its_step_its_cold_gathers_and_its_memory() -> None:
    case = make_gpu_case()
    time, rate = latency_median(case, "decode_graph_device"), gather_rate(case)
    assert time is not None
    assert rate is not None
    assert time.value == 1_000_000
    assert rate.value == 4000
    assert case.cache is not None
    assert allocated_bytes(case) == sum(pool.allocated_bytes for pool in case.cache.pools)


def test_what_was_not_measured_is_none() -> None:
    assert latency_median(make_case(), "decode_graph_device") is None
    assert gather_rate(make_failed_case()) is None
    assert allocated_bytes(make_failed_case()) is None
