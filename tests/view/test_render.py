"""A whole record on a terminal."""

import pytest
from syrupy.assertion import SnapshotAssertion

from dsv4kv.runs.schema import RunRecord, Verification
from tests.runs.records import (
    make_cache,
    make_case,
    make_failed_case,
    make_pool,
    make_record,
    make_sweep_cases,
    make_totals,
)
from tests.view.terminal import told


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
    case = make_case(
        operations=[],
        memcpy=None,
        cache=make_cache(pools=[]),
        verification=Verification(checks=0, by_operation={}, failures=[]),
    )
    return make_record(case)


RECORDS = {
    "good": make_record(),
    "troubled": troubled(),
    "bookkeeping": bookkeeping(),
    "failed": make_record(make_failed_case("the cache needs 91.2 GiB; 23.5 GiB are free")),
    "sweep": make_record(*make_sweep_cases()),
    "interrupted": make_record(status="incomplete", cases=[]),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_reads_well_on_100_columns(name: str, snapshot: SnapshotAssertion) -> None:
    assert told(RECORDS[name]) == snapshot


@pytest.mark.parametrize("name", ["good", "sweep"])
def test_80_columns_lose_no_digit(name: str) -> None:
    text = told(RECORDS[name], width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert not [
        line for line in text.splitlines()[8:] if "…" in line and any(map(str.isdigit, line))
    ]


@pytest.mark.parametrize("name", RECORDS)
def test_no_line_is_wider_than_the_terminal(name: str) -> None:
    assert max(map(len, told(RECORDS[name]).splitlines())) <= 100


@pytest.mark.parametrize("name", ["good", "bookkeeping"])
def test_quiet_has_nothing_to_say_about_a_good_run(name: str) -> None:
    assert told(RECORDS[name], quiet=True) == ""


def test_quiet_tells_every_problem_and_nothing_else(snapshot: SnapshotAssertion) -> None:
    assert told(troubled(), quiet=True) == snapshot


def test_quiet_names_the_case_of_a_problem() -> None:
    assert told(RECORDS["sweep"], quiet=True) == (
        "✗ block_tokens=256, concurrency=64: failed: 64 requests need 512 blocks; 256 are free"
    )


def test_a_run_that_did_not_end_well_says_so_first() -> None:
    assert told(troubled()).startswith("! incomplete: stopped")
    assert told(RECORDS["failed"]).startswith("✗ failed: the cache needs 91.2 GiB")
    assert told(RECORDS["sweep"]).startswith("✗ failed: of 5 cases 4 complete, 1 failed\n")
    assert told(RECORDS["interrupted"]).startswith("! incomplete: no case ran\n")


def test_text_from_a_record_is_never_taken_for_markup() -> None:
    record = make_record(make_failed_case("[red]no[/] [/bold]"), config_source="[link=x]a[/link]")
    assert "✗ failed: [red]no[/] [/bold]" in told(record)
    assert "[link=x]a[/link]" in told(record)
