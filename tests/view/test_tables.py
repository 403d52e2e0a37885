"""The tables of one case: every number comes from the record, with unit and uncertainty."""

import re

from dsv4kv.measure.statistics import estimate_rate, summarize
from dsv4kv.runs.quantities import Yardstick
from dsv4kv.runs.schema import Latency, Memcpy, Operation
from dsv4kv.view.case import cache_table, latencies_table, operations_table
from dsv4kv.view.cells import format_estimate
from dsv4kv.view.replay import times_table
from tests.runs.records import (
    make_cache,
    make_case,
    make_latency,
    make_operation,
    make_pool,
)
from tests.view.terminal import shown


def row(text: str, name: str) -> list[str]:
    """Cells of a row, split at two blanks or more."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    return re.split(r"\s{2,}", line)


def test_an_operation_is_told_by_work_time_rate_and_share() -> None:
    operation = Operation(
        name="flush", layer_type="hca", samples_ns=[1000] * 8, entries=[3] * 8, bytes=[2048] * 8
    )
    memcpy = Memcpy(bytes=4096, samples_ns=[1000] * 10)
    text = shown(operations_table(make_case(operations=[operation], memcpy=memcpy)))
    assert row(text, "flush") == [
        *("flush", "hca", "8", "24", "16.0 KiB"),
        *("1.00 ± 0.00", "2.05 ± 0.00", "50.0 ± 0.0"),
    ]
    assert row(text, "memcpy") == [
        "memcpy",
        "10",
        "–",
        "40.0 KiB",
        "1.00 ± 0.00",
        "4.10 ± 0.00",
        "–",
    ]


def test_the_rate_is_all_bytes_over_all_time() -> None:
    operation = make_operation()
    rate = estimate_rate(operation.bytes, operation.samples_ns)
    text = shown(operations_table(make_case(operations=[operation])))
    assert row(text, "gather_topk")[6] == format_estimate(rate)


def test_the_rate_of_memcpy_counts_read_and_written_bytes() -> None:
    rate = Yardstick("memcpy", 10**9, [10**8] * 7).rate
    assert rate is not None
    assert rate.value == 10.0


def test_memcpy_comes_last() -> None:
    assert shown(operations_table(make_case())).splitlines()[-1].startswith("memcpy")


def test_without_memcpy_shares_are_absent() -> None:
    text = shown(operations_table(make_case(memcpy=None)))
    assert "memcpy  " not in text.splitlines()[-1]
    assert row(text, "gather_topk")[-1] == "–"


def test_an_operation_never_called_has_no_numbers() -> None:
    text = shown(operations_table(make_case(operations=[make_operation(calls=0)])))
    assert row(text, "gather_topk")[2:] == ["0", "0", "0 B", "–", "–", "–"]


def test_an_operation_without_a_cache_names_its_layer_type() -> None:
    assert row(shown(operations_table(make_case(cache=None))), "flush")[1] == "csa"


def test_the_cpu_backend_makes_no_performance_claim() -> None:
    assert "reference CPU backend, not a performance claim" in shown(operations_table(make_case()))


def test_a_latency_is_told_by_its_median_and_tail() -> None:
    latency = make_latency("step", samples=1000)
    summary = summarize(latency.samples_ns)
    cells = row(shown(latencies_table([latency])), "step")
    assert cells[:3] == ["step", "1,000", format_estimate(summary.estimate, 1e-3)]
    assert cells[3:6] == [
        f"{value / 1e3:,.0f}"
        for value in (summary.percentiles[90], summary.percentiles[99], summary.maximum)
    ]
    assert cells[6] == str(summary.outliers)


def test_a_percentile_that_the_samples_cannot_carry_is_a_dash() -> None:
    text = shown(latencies_table([make_latency("step", samples=100)]))
    assert row(text, "step")[4] == "–"
    text = shown(latencies_table([make_latency("step", samples=99)]))
    assert row(text, "step")[3:5] == ["–", "–"]


def test_an_action_that_never_happened_has_no_numbers() -> None:
    text = shown(latencies_table([Latency(name="release", samples_ns=[])]))
    assert row(text, "release") == ["release", "0", "–", "–", "–", "–", "–"]


def test_a_pool_is_told_with_what_was_planned_and_allocated() -> None:
    text = shown(cache_table(make_cache()))
    assert row(text, "indexer") == [
        *("indexer", "csa × 2", "256", "2,176", "1.06 MiB", "1.06 MiB", "▌", "✓")
    ]
    assert row(text, "tables")[1] == "all"


def test_a_pool_that_differs_from_its_plan_is_marked() -> None:
    pool = make_pool("main", "csa", 2, 256, 19_008, allocated_bytes=1)
    text = shown(cache_table(make_cache(pools=[pool])))
    assert row(text, "main")[-3] == "1 B"
    assert row(text, "main")[-1] == "✗ differs"


def test_an_indexer_operation_is_told_as_the_operation_on_the_layers_index() -> None:
    operation = make_operation().model_copy(update={"name": "indexer_flush", "layer_type": "csa"})
    text = shown(operations_table(make_case(operations=[operation])))
    assert row(text, "flush")[:2] == ["flush", "csa idx"]


def test_times_of_which_there_are_none_have_no_row() -> None:
    latencies = [Latency(name="ttft", samples_ns=[1, 2]), Latency(name="tpot", samples_ns=[])]
    text = shown(times_table(latencies))
    assert "ttft" in text
    assert "tpot" not in text
