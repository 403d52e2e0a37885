"""Launches whose steps took turns: what the machine does to both says nothing of either."""

from random import Random

import pytest

from dsv4kv.bench.compare.comparison import Comparison, compare
from dsv4kv.bench.compare.verdict import Verdict
from dsv4kv.runs.schema import Case, RunRecord
from dsv4kv.view.compare import explain
from tests.bench.compare.launched import make_launched_case, make_launches, make_side
from tests.runs.records import make_record

FLOOR = 0.01
SAME, FASTER, SLOWER, UNCLEAR = Verdict
CALLS = 51


def in_turns(case: Case) -> Case:
    assert case.totals
    return case.model_copy(update={"totals": case.totals.model_copy(update={"steps_in_turns": 9})})


def moody_record(
    seed: int,
    factors: dict[str, float] | None = None,
    *,
    order: tuple[int, ...] = tuple(range(7)),
    took_turns: bool = True,
) -> RunRecord:
    """Seven launches on a machine that is several times as slow at times, call by call."""
    cases = []
    for launch, pair in enumerate(order):
        mood = Random(f"mood {pair}")
        hour = mood.uniform(1, 2)
        moods = [hour * mood.choice((1.0, 1.7, 3.0)) for _ in range(CALLS)]
        case = make_launched_case(launch, factors or {}, seed)
        operations = [
            operation.model_copy(
                update={
                    "samples_ns": [
                        round(ns * m) for ns, m in zip(operation.samples_ns, moods, strict=True)
                    ]
                }
            )
            for operation in case.operations
        ]
        case = case.model_copy(update={"operations": operations, "latencies": []})
        cases.append(in_turns(case) if took_turns else case)
    launches = [
        each.model_copy(update={"pair": f"pair-{pair}"})
        for each, pair in zip(make_launches(len(order)), order, strict=True)
    ]
    return make_record(*cases, launches=launches, run_id=f"run-{seed}")


def compared(before: RunRecord, after: RunRecord) -> Comparison:
    return compare(make_side("A", before), make_side("B", after), FLOOR)


def verdicts(comparison: Comparison) -> dict[str, Verdict]:
    return {row.quantity.name: row.judgement.verdict for row in comparison.rows}


def test_what_the_machine_did_to_both_launches_of_a_pair_cancels() -> None:
    found = compared(moody_record(1), moody_record(2, {"flush": 1.05}))
    assert found.in_turns
    assert verdicts(found) == {"gather_topk": SAME, "flush": SLOWER, "window_insert": SAME}
    ratios = {row.quantity.name: row.judgement.ratio for row in found.rows}
    assert ratios["flush"] == pytest.approx(1.05, abs=0.01)
    assert "interleaved steps" in explain(found)


def test_a_launch_without_its_partner_is_left_out() -> None:
    before, after = moody_record(1), moody_record(2, {"flush": 1.05})
    after = after.model_copy(update={"cases": after.cases[1:], "launches": after.launches})
    found = compared(before, after)
    whole = compared(before, moody_record(2, {"flush": 1.05}))
    assert verdicts(found)["flush"] is SLOWER
    assert found.rows[0].judgement.interval != whole.rows[0].judgement.interval


def test_a_pair_of_which_one_knew_of_no_turns_is_no_pair() -> None:
    """As of a revision that is older than turns."""
    found = compared(moody_record(1), moody_record(2, took_turns=False))
    assert not found.in_turns
