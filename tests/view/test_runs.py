"""Whole records on a terminal: the answer, everything, and problems only."""

from collections.abc import Callable

import pytest
from rich.cells import cell_len
from syrupy.assertion import SnapshotAssertion

from dsv4kv.runs.parts import HostSamples
from dsv4kv.runs.schema import Case, RunRecord, Verification
from dsv4kv.view.bench import judge_run
from dsv4kv.view.runs import report_record
from tests.bench.compare.launched import make_launched_case, make_launched_record, make_launches
from tests.runs.records import (
    make_cache,
    make_case,
    make_failed_case,
    make_pool,
    make_record,
    make_sweep_cases,
    make_totals,
)
from tests.runs.telemetries import make_telemetry
from tests.view.page.pages import RECORDS as PAGES
from tests.view.terminal import shown


def troubled() -> RunRecord:
    """A run with every kind of problem, stopped before its end."""
    verification = Verification(
        checks=20,
        by_operation={"flush": 20},
        failures=["flush, layer 2, step 40: entry 17 differs in 3 of 584 bytes"],
    )
    pool = make_pool("main", "csa", 2, 256, 19_008, allocated_bytes=9_732_097)
    case = make_case(
        status="incomplete",
        cache=make_cache(pools=[pool]),
        totals=make_totals(
            rejected=2, blocks_left=1, drafted_tokens=2_000, rolled_back_tokens=612
        ),
        verification=verification,
    )
    return make_record(case)


def bookkeeping() -> RunRecord:
    """A run that moved no data."""
    nothing = Verification(checks=0, by_operation={}, failures=[])
    case = make_case(operations=[], memcpy=None, cache=make_cache(pools=[]), verification=nothing)
    return make_record(case)


def busy() -> Case:
    """Other processes used two CPUs meanwhile."""
    at_ns = list(range(0, 3_000_000_000, 200_000_000))
    samples = HostSamples(at_ns=at_ns, machine_busy_ns=[3 * at for at in at_ns], own_cpu_ns=at_ns)
    return make_case(telemetry=make_telemetry(host_samples=samples))


def lost_launches() -> RunRecord:
    launches = make_launches(7)
    for launch, status, error in (
        (2, "crashed", "killed by SIGSEGV"),
        (5, "timeout", "still ran after 60 s"),
    ):
        changes = {"status": status, "error": error}
        launches[launch] = launches[launch].model_copy(update=changes)
    cases = [make_launched_case(launch, {}, 0) for launch in (0, 1, 3, 4, 6)]
    return make_launched_record(cases=cases, launches=launches, status="failed")


RECORDS: dict[str, Callable[[], RunRecord]] = {
    "good": make_record,
    "troubled": troubled,
    "bookkeeping": bookkeeping,
    "busy": lambda: make_record(busy()),
    "failed": lambda: make_record(make_failed_case("the cache needs 91.2 GiB; 23.5 are free")),
    "sweep": lambda: make_record(*make_sweep_cases(), status="failed"),
    "interrupted": lambda: make_record(status="incomplete", cases=[]),
    "launches": make_launched_record,
    "lost launches": lost_launches,
    "a GPU": lambda: PAGES["a GPU"][0],
}
every_record = pytest.mark.parametrize("name", RECORDS)


@every_record
def test_the_answer(name: str, snapshot: SnapshotAssertion) -> None:
    assert shown(*report_record(RECORDS[name]()), width=100) == snapshot


@pytest.mark.parametrize("name", ["good", "troubled", "sweep", "lost launches", "a GPU"])
def test_everything(name: str, snapshot: SnapshotAssertion) -> None:
    assert shown(*report_record(RECORDS[name](), verbose=True), width=100) == snapshot


@every_record
@pytest.mark.parametrize(("width", "most"), [(100, 23), (80, 28)])
def test_an_answer_is_short_and_within_its_terminal(name: str, width: int, most: int) -> None:
    """Two more lines are the record's path and the next command."""
    lines = shown(*report_record(RECORDS[name]()), width=width).split("\n")
    assert len(lines) <= most
    assert max(map(cell_len, lines)) <= width


@every_record
def test_quiet_prints_the_problems_alone(name: str) -> None:
    record = RECORDS[name]()
    parts = list(report_record(record, quiet=True))
    assert parts == [found for found in judge_run(record) if found.is_problem]
    assert bool(parts) == (name not in ("good", "bookkeeping", "launches", "busy", "a GPU"))


def test_text_from_a_record_is_never_taken_for_markup() -> None:
    record = make_record(make_failed_case("[red]no[/] [/bold]"), config_source="[link=x]a[/link]")
    text = shown(*report_record(record, verbose=True))
    assert "✗ failed: [red]no[/] [/bold]" in text
    assert "[link=x]a[/link]" in text
