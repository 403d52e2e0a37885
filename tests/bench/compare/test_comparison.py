"""Comparisons of made-up runs: which rows there are, what is said of them, and of all."""

from pathlib import Path
from typing import Any

import pytest

from dsv4kv.bench.compare.comparison import Comparison, brought_by, compare, load_side
from dsv4kv.bench.compare.verdict import Verdict
from dsv4kv.errors import ConfigError
from dsv4kv.runs.schema import Case, Launch, RunRecord
from dsv4kv.runs.store import save_record
from dsv4kv.view.compare import explain
from tests.bench.compare.launched import (
    make_launched_case,
    make_launched_record,
    make_launches,
    make_side,
)
from tests.runs.records import make_failed_case

FLOOR = 0.01
SAME, FASTER, SLOWER, UNCLEAR = Verdict


def compared(before: RunRecord, after: RunRecord, **options: Any) -> Comparison:
    return compare(make_side("A", before), make_side("B", after), FLOOR, **options)


def verdicts(comparison: Comparison) -> dict[str, Verdict]:
    return {str(row.quantity): row.judgement.verdict for row in comparison.rows}


def test_a_quantity_of_next_to_no_time_has_no_row_until_it_takes_some() -> None:
    def with_tiny(record: RunRecord, factor: int) -> RunRecord:
        """A thousandth of the step's time, times the factor."""
        cases = []
        for case in record.cases:
            step = case.operations[0]
            tiny = step.model_copy(
                update={
                    "name": "tiny",
                    "samples_ns": [factor * max(1, n // 1000) for n in step.samples_ns],
                }
            )
            cases.append(case.model_copy(update={"operations": [*case.operations, tiny]}))
        return record.model_copy(update={"cases": cases})

    before, after = (with_tiny(make_launched_record(seed=seed), 1) for seed in (1, 2))
    found = compared(before, after)
    assert (found.small, found.losses) == (("tiny csa",), ())
    assert "tiny csa" not in verdicts(found)
    assert "below 0.5 % of the time, without a row: tiny csa" in explain(found)
    grown = compared(before, with_tiny(make_launched_record(seed=2), 1000))
    assert verdicts(grown)["tiny csa"] is SLOWER
    assert grown.conclude() is SLOWER


def test_the_geometric_mean_is_that_of_the_rows() -> None:
    factors = dict.fromkeys(("gather_topk", "flush", "window_insert", "step"), 1.25)
    before = make_launched_record(seed=1)
    found = compared(before, make_launched_record(seed=1, factors=factors))
    assert found.overall
    assert found.overall.ratio == pytest.approx(1.25, rel=0.002)
    assert found.overall.verdict is SLOWER


def test_an_operation_that_moves_other_bytes_a_call_is_not_judged() -> None:
    before = make_launched_record(seed=1)
    cases = [
        case.model_copy(
            update={
                "operations": [
                    each.model_copy(update={"bytes": [2 * size for size in each.bytes]})
                    if each.name == "flush"
                    else each
                    for each in case.operations
                ]
            }
        )
        for case in make_launched_record(seed=2, factors={"flush": 2.0}).cases
    ]
    found = compared(before, make_launched_record(cases=cases))
    (flush,) = (row for row in found.rows if row.quantity.name == "flush")
    assert flush.judgement.verdict is UNCLEAR
    assert flush.judgement.reason == "other work: 73.0 KiB against 146 KiB a call"
    assert flush.judgement.ratio == pytest.approx(2, rel=0.02)
    assert explain(found).endswith("; the mean is without other work (1 rows)")
    assert found.overall
    assert found.overall.verdict is SAME  # of the others: a mean over other work says nothing
    assert found.overall.ratio == pytest.approx(1, abs=0.01)


# ---- launches and cases that went wrong ---------------------------------------------------------


def crashed(launch: int) -> Launch:
    return make_launches(7)[launch].model_copy(
        update={"status": "crashed", "error": "killed by SIGSEGV"}
    )


def test_a_lost_launch_is_told_and_keeps_the_whole_unclear() -> None:
    before = make_launched_record(seed=1)
    launches = [*before.launches[:2], crashed(2), *before.launches[3:]]
    after = make_launched_record(
        seed=2, cases=[c for c in make_launched_record(seed=2).cases if c.launch != 2],
        launches=launches,
    )  # fmt: skip
    found = compared(before, after)
    assert found.losses == ("B: launch 2 crashed: killed by SIGSEGV",)
    assert {len(row.after.values) for row in found.rows} == {6}
    assert found.overall
    assert (found.overall.verdict, found.conclude()) == (SAME, UNCLEAR)


@pytest.mark.parametrize("status", ["failed", "incomplete", "skipped"])
def test_a_case_that_no_launch_brought_to_its_end_keeps_the_whole_unclear(status: Any) -> None:
    def with_case(seed: int, extra: Case) -> RunRecord:
        cases = make_launched_record(seed=seed).cases
        return make_launched_record(cases=[*cases, extra])

    whole = make_launched_case(0, {}, 1, axis={"batch": 9})
    bad = make_failed_case("no block is free", axis={"batch": 9}, status=status)
    found = compared(with_case(1, whole), with_case(2, bad))
    assert f"B: batch=9, launch 0 {status}: no block is free" in found.losses
    assert found.conclude() is UNCLEAR


@pytest.mark.parametrize(("status", "verdict"), [("failed", UNCLEAR), ("skipped", SAME)])
def test_a_case_that_fails_on_both_sides_is_a_loss_and_one_that_both_skip_is_none(
    status: Any, verdict: Verdict
) -> None:
    bad = make_failed_case("no block is free", axis={"batch": 9}, status=status)
    sides = [
        make_launched_record(cases=[*make_launched_record(seed=seed).cases, bad])
        for seed in (1, 2)
    ]
    assert compared(*sides).conclude() is verdict


# ---- unlike sides -------------------------------------------------------------------------------


def test_only_what_two_backends_bring_is_compared_with_one_verdict() -> None:
    def run(seed: int, **changes: Any) -> RunRecord:
        record = make_launched_record(seed=seed, factors={"flush": 1.0 + seed})
        return record.model_copy(
            update={"cases": [each.model_copy(update=changes) for each in record.cases]}
        )

    ours, theirs = run(1), run(2, backend="mine.py:gather_topk", foreign=["gather_topk"])
    sides = make_side("A", ours), make_side("B", theirs)
    assert brought_by(*sides) == ("gather_topk",)
    assert brought_by(sides[0], sides[0]) == ()
    found = compared(ours, theirs, only=brought_by(*sides))
    assert verdicts(found) == {"gather_topk csa": SAME}
    assert found.overall
    assert found.overall == found.rows[0].judgement
    assert found.conclude() is SAME
    assert compared(ours, theirs).conclude() is SLOWER
    with pytest.raises(ConfigError, match="--only attend: not measured on both sides"):
        compared(ours, theirs, only=["attend"])


def save(folder: Path, seed: int) -> Path:
    return save_record(make_launched_record(seed=seed, run_id=f"run-{seed}"), folder).path


def test_a_side_is_a_file_several_files_or_a_folder(tmp_path: Path) -> None:
    paths = [save(tmp_path, seed) for seed in range(3)]
    (tmp_path / "notes.txt").write_text("")
    assert [r.run_id for r in load_side(str(paths[1])).records] == ["run-1"]
    assert [r.run_id for r in load_side(f"{paths[2]},{paths[0]}").records] == ["run-2", "run-0"]
    assert [r.run_id for r in load_side(str(tmp_path)).records] == ["run-0", "run-1", "run-2"]
    with pytest.raises(ConfigError, match="has the run run-1 twice: name each run once"):
        load_side(f"{paths[1]},{paths[1]}")


@pytest.mark.parametrize("text", ["{},", ",{}", "{},,{}", ","])
def test_nothing_beside_a_comma_is_refused_and_not_taken_for_this_folder(
    tmp_path: Path, text: str
) -> None:
    path = str(save(tmp_path, 0))
    with pytest.raises(ConfigError, match="has a comma with no file on one side of it"):
        load_side(text.format(path, path))
