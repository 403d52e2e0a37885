"""Where a decode step goes: kinds, shares and roofs of made-up cases."""

from typing import Any

from dsv4kv.runs.quantities import StepShare, step_shares
from dsv4kv.runs.schema import Case, GpuFacts, Latency, Memcpy, Operation, Peak
from dsv4kv.view.bench import operations_table
from dsv4kv.view.table import text_of
from tests.runs.records import H200, make_record


def operation(name: str, moved: int, time_ns: int, calls: int = 2, **more: Any) -> Operation:
    samples = {"samples_ns": [time_ns] * calls, "bytes": [moved] * calls, "entries": [1] * calls}
    return Operation(name=name, layer_type="csa", **samples, **more)


def case(*operations: Operation, context: int | None = 1000, **more: Any) -> Case:
    """Two decode steps; bookkeeping took 5 ns in each."""
    steps = Latency(name="decode_step", samples_ns=[100, 100])
    prepare = Latency(name="prepare", samples_ns=[4, 6])
    workload = {
        "config": {"workload": {"context": context}},
        "axis": {"workload.context": context},
    }
    kept = {"operations": list(operations), "latencies": [steps, prepare]}
    return make_record().cases[0].model_copy(update={**kept, **workload, **more})


STEP = (
    operation("indexer_query", 10, 5),
    operation("index_scores", 60, 40, flops=[7440, 7440]),
    operation("select_topk", 10, 5),
    operation("attend", 10, 20, calls=4, flops=[4490] * 4),
    operation("window_insert", 0, 5),
)


def test_a_step_is_the_sum_of_its_calls_by_kind_and_bookkeeping() -> None:
    assert step_shares(case(*STEP)) == [
        StepShare("scores", 70, 45),
        StepShare("top-k", 10, 5),
        StepShare("attention", 20, 40),
        StepShare("write", 0, 5),
        StepShare("bookkeeping", 0, 5),
    ]


def roofs(found: Case, gpu: GpuFacts | None) -> list[tuple[str, ...]]:
    """FLOP/B, GFLOP/s, what bounds them, and the share that is reached."""
    cells = operations_table(found, gpu=gpu).cells
    return [tuple(text_of(cell) for cell in row[8:]) for row in cells if row[8].value != "–"]


def test_the_roof_is_the_smaller_of_memory_and_tensor_cores() -> None:
    """Of an H200: scores wait for memory at 124 FLOP/B, attention of 128 heads does not at 449."""
    peak = Peak(name="copy", bytes=4800, samples_ns=[1])
    cold: dict[str, Any] = {"temperature": "cold"}
    scores = operation("index_scores", 60, 40, flops=[7440, 7440], **cold)
    attend = operation("attend", 10, 20, calls=4, flops=[4490] * 4, **cold)
    found = case(scores, attend, device="cuda", memcpy=None, peaks=[peak])
    assert roofs(found, H200) == [
        ("124", "186", "memory", "0.0"),
        ("449", "224", "tensor cores", "0.0"),
    ]


def test_without_a_datasheet_the_roof_is_the_memory() -> None:
    found = case(*STEP, memcpy=Memcpy(bytes=20, samples_ns=[2] * 10))
    assert roofs(found, None) == [("124", "186", "–", "15.0"), ("449", "224", "–", "5.0")]
