"""Faults that were published are found, with these and no others; healthy servers have none."""

import json
from datetime import date
from pathlib import Path

import pytest

from dsv4kv.diagnose.faults import Finding, judge, load_faults
from dsv4kv.diagnose.subjects import read_subjects
from tests.diagnose.faults.results import FAULTY_RUNS, HEALTHY_RUNS, RANDOM
from tests.diagnose.faults.servers import FAULTY, HEALTHY, Case

TODAY = date(2026, 11, 23)
ROOT = Path(__file__).resolve().parents[3]


def found_in(case: Case, folder: Path) -> list[Finding]:
    """What is found in a text: a file where it is a log or a script, else a command."""
    given = case.text
    if given.startswith(("docs/", "tests/")):
        given = str(ROOT / given)
    elif "\n" in given.strip():
        path = folder / "given.txt"
        path.write_text(given, "utf-8")
        given = str(path)
    return judge(read_subjects(given, case.engine or None, case.gpu), load_faults(), TODAY)


def found_in_runs(runs: list[dict[str, object]], folder: Path) -> list[Finding]:
    path = folder / "runs.jsonl"
    path.write_text("".join(json.dumps(run) + "\n" for run in runs), "utf-8")
    return judge(read_subjects(str(path)), load_faults(), TODAY)


def names(found: list[Finding]) -> set[str]:
    return {each.fault.id for each in found}


@pytest.mark.parametrize("case", FAULTY, ids=lambda case: case.source)
def test_a_published_fault_is_found_for_sure_and_no_other(case: Case, tmp_path: Path) -> None:
    found = found_in(case, tmp_path)
    assert names(found) == set(case.faults)
    assert names([each for each in found if not each.is_sure]) == set(case.possible)


@pytest.mark.parametrize("source", FAULTY_RUNS)
def test_a_trap_of_benchmarks_is_found_and_no_other(source: str, tmp_path: Path) -> None:
    runs, faults = FAULTY_RUNS[source]
    assert names(found_in_runs(runs, tmp_path)) == faults


def test_a_lighter_load_is_no_warm_server(tmp_path: Path) -> None:
    """A sweep downwards has its first tokens sooner by itself; one upwards has not."""
    busy = RANDOM | {"max_concurrency": 64, "median_ttft_ms": 1600.0}
    light = RANDOM | {"max_concurrency": 16, "median_ttft_ms": 400.0}
    assert not found_in_runs([busy, light], tmp_path)
    slow = light | {"median_ttft_ms": 4000.0}
    assert names(found_in_runs([slow, busy], tmp_path)) == {"bench-warm-server"}


def test_of_healthy_servers_and_results_two_at_most_are_called_faulty(tmp_path: Path) -> None:
    found = [names(found_in(case, tmp_path)) for case in HEALTHY]
    found += [names(found_in_runs([run], tmp_path)) for _, run in HEALTHY_RUNS]
    assert sum(map(bool, found)) <= 2


def test_every_row_of_the_table_is_among_the_faults() -> None:
    labelled = {name for case in FAULTY for name in case.faults}
    labelled |= {name for _, faults in FAULTY_RUNS.values() for name in faults}
    assert {fault.id for fault in load_faults()} == labelled
