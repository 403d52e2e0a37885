"""The widest tables there are, with the longest names, on terminals of five widths."""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import pytest
from rich.cells import cell_len
from syrupy.assertion import SnapshotAssertion

from dsv4kv.compare.comparison import compare
from dsv4kv.compare.floor import Floor
from dsv4kv.doctor.machine import Check
from dsv4kv.engines.names import RULES
from dsv4kv.mrc.curves import Question, measure_trace
from dsv4kv.runs.profile import KernelRow, KernelTable
from dsv4kv.runs.quantities import axis_names, list_measured
from dsv4kv.runs.schema import NotMeasured
from dsv4kv.runs.store import Entry, Summary
from dsv4kv.sizing.answer import answer, options_of
from dsv4kv.sizing.fit import compare_layouts
from dsv4kv.sizing.inputs import read_inputs
from dsv4kv.sizing.lookup import find_model
from dsv4kv.traces.collect import load_paths
from dsv4kv.view.budget import layouts_table, options_table
from dsv4kv.view.case import launches_table, operations_table, processes_table
from dsv4kv.view.comparison import comparison_table
from dsv4kv.view.doctor import report_checks
from dsv4kv.view.kernels import machine_code_table, registers_table
from dsv4kv.view.mrc import show_answer
from dsv4kv.view.profile import kernels_table
from dsv4kv.view.profile import launches_table as kernel_launches_table
from dsv4kv.view.replay import constants_table, sweep_table
from dsv4kv.view.results import runs_table
from dsv4kv.view.table import Part, Table, text_of
from dsv4kv.view.terminal import draw
from tests.compare.launched import make_launched_record, make_side
from tests.cuda.findings import finding
from tests.runs.kernel_profiles import YARDSTICK
from tests.runs.records import make_operations
from tests.runs.test_gpu_record import make_gather, make_gpu_case
from tests.view.page.pages import make_replay_record

WIDTHS = (60, 80, 100, 120, 200)
RUN = "20261121T041903Z-real-sweep-over-everything-3fa9c1"
KERNEL = "void dsv::chunk_finish<dsv::Hca<128>, dsv::Online, dsv::Scratch, 8, 256, true>"


def bench() -> Iterable[Part]:
    gathers = [make_gather(temperature, 9) for temperature in ("cold", "hot", "L2-resident")]
    gathers[0] = gathers[0].model_copy(update={"throttled": 56})
    indexer = make_operations()[3].model_copy(update={"layer_type": "csa", "temperature": "cold"})
    missing = NotMeasured(name="flush", layer_type="hca", temperature="hot", why="throttled")
    operations = [*gathers, indexer]
    yield operations_table(
        make_gpu_case(operations=operations, not_measured=[missing], empty_kernel_ns=[1_234] * 8)
    )


def launches() -> Iterable[Part]:
    record = make_launched_record()
    crash = {"status": "crashed", "error": "killed by SIGSEGV while it wrote " + RUN + ".json"}
    failed = record.launches[2].model_copy(update=crash)
    yield launches_table(list_measured(record), "workload.trace=builtin:chat, block_tokens=256")
    yield processes_table([*record.launches[:2], failed])


def replay() -> Iterable[Part]:
    cases = make_replay_record("cache.checkpoint_share=0.05,0.15").cases
    policies = ("s3fifo", "belady")
    rule = {"prefix.rule": "vllm-v4:semantic"}
    named = [
        case.model_copy(update={"axis": {**case.axis, "prefix.policy": policy, **rule}})
        for case, policy in zip(cases, policies, strict=True)
    ]
    yield sweep_table(named, axis_names(named))
    if cases[0].replay:
        yield constants_table(cases[0].replay)


def budget() -> Iterable[Part]:
    texts = {"model": "v4-pro", "gpus": "16", "context": "128K", "concurrency": "30000"}
    found = answer(read_inputs(texts))
    yield options_table(options_of(found), found)
    yield layouts_table(compare_layouts(found.scenario, found.context), found.context)


def mrc() -> Iterable[Part]:
    question = Question(
        model=find_model("v4-flash"),
        capacities_tokens=(160 * 1024,),
        strategies=("periodic:4096", "zero", "ends+junctions"),
        rules=tuple(name for name, rule in RULES.items() if "v4" in rule.kinds),
        policies=("fifo", "belady"),
        chunk_tokens=512,
    )
    trace = load_paths("builtin:chat")
    return show_answer("builtin:chat", "v4-flash", measure_trace(trace, question))


def comparison() -> Iterable[Part]:
    before = make_side(f"results/{RUN}.json", make_launched_record(seed=1))
    after = make_side("main", make_launched_record(seed=2, factors={"flush": 1.1}))
    yield comparison_table(compare(before, after, Floor(0.01, "as configured")))


def kernel_row(name: str, **changes: Any) -> KernelRow:
    facts: dict[str, Any] = {
        "name": name,
        "kind": "kernel",
        "category": "compress",
        "engine": "dsv4kv",
        "operation": None,
        "phase": "replay",
        "calls": 12_345,
        "total_ns": 123_456_789,
        "median_ns": 10_123,
        "p95_ns": 12_345,
        "min_ns": 9_876,
        "grid": [1024, 16, 1],
        "block": [256, 4, 1],
        "registers": 255,
        "shared_bytes": 232_448,
        "shapes": 1_024,
        "node": 1_234,
        "gap_ns": 1_234,
        "useful_bytes": 123_456_789,
        "counted_bytes": None,
    }
    return KernelRow(**facts | changes)


def profile() -> Iterable[Part]:
    rows = [kernel_row(KERNEL), kernel_row("memcpy host to device", kind="memcpy", grid=None)]
    rows.append(kernel_row("nvjet_tst_128x64_64x8_2x1_v_bz_splitK_TNT", useful_bytes=None))
    facts: dict[str, Any] = {"steps": None, "timeline": None, "outside_calls": 0, "outside_ns": 0}
    table = KernelTable(
        tool="nsys",
        tool_version=None,
        devices=[],
        kernels=rows,
        operations=[],
        num_steps=2,
        warnings=[],
        notes=[],
        **facts,
    )
    yield kernels_table(table, None, YARDSTICK)
    known = kernel_launches_table(rows)
    assert known
    yield known


def results() -> Iterable[Part]:
    summary = Summary(
        run_id=RUN,
        started_utc="2026-11-21T04:19:03+00:00",
        status="out_of_memory",
        config="configs/bench/three-systems-side-by-side.yaml",
        backends=["cuda", "mine.operations:gather_topk"],
        cases=1_234,
        launches=7,
        git_sha="0123456789abcdef",
    )
    facts: dict[str, Any] = {"modified_ns": 0, "problem": None, "size_bytes": 123_456_789}
    whole = Entry(file=f"{RUN}.json", summary=summary, **facts)
    yield runs_table([whole, Entry(file="notes.json", summary=None, **facts)])


def doctor() -> Iterable[Part]:
    found = "/opt/nvidia/nsight-systems/2025.6.1/target-linux-x64/nsys, 2025.6.1.190-256136"
    return report_checks(
        [
            Check("profilers", "nsys", "good", found, "profile --nsys, on a GPU of this machine"),
            Check("profilers", "ncu", "missing", "not found", "profile --ncu", "install it."),
        ]
    )


def kernels() -> Iterable[Part]:
    names = ("chunk_finish hca-128 online, fp8_ds_mla × 1, scratch", "page_copy fp8_ds_mla × 32")
    architectures = ("sm_80", "sm_90a", "sm_100a", "sm_120")
    found = [finding(name, each) for name in names for each in architectures]
    yield registers_table(found)
    yield machine_code_table([each for each in found if each.architecture == "sm_90a"])


TABLES: dict[str, Callable[[], Iterable[Part]]] = {
    each.__name__: each
    for each in (
        *(bench, launches, replay, budget, mrc, comparison, profile, results, doctor, kernels),
    )
}


@cache
def parts_of(name: str) -> list[Part]:
    return list(TABLES[name]())


def lines_of(name: str, width: int) -> list[str]:
    lines = (line for part in parts_of(name) for line in draw(part, width))
    return ["".join(text for text, _ in line).rstrip() for line in lines]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", TABLES)
def test_a_table_reads_well(name: str, width: int, snapshot: SnapshotAssertion) -> None:
    assert "\n".join(lines_of(name, width)) == snapshot


@pytest.mark.parametrize("name", TABLES)
def test_numbers_names_and_intervals_are_whole_and_no_line_is_too_wide(name: str) -> None:
    tables = [part for part in parts_of(name) if isinstance(part, Table)]
    told = {
        text_of(cell)
        for table in tables
        for row in table.cells
        for column, cell in zip(table.columns, row, strict=True)
        if column.kind != "prose"
    }
    for width in WIDTHS:
        lines = [" ".join(line.split()) for line in lines_of(name, width)]
        assert not [line for line in lines if cell_len(line) > width]
        for text in told:
            fits = cell_len(text) <= width
            assert any(" ".join(text.split()) in line for line in lines) or not fits, (width, text)
