"""What a replay with data says of its comparisons."""

from types import SimpleNamespace
from typing import cast

from dsv4kv.record.replay import CacheStepTimes, ReplayData
from dsv4kv.record.schema import Case, Verification
from dsv4kv.view.replay import judge_data, steps_table
from tests.view.terminal import shown


def case(compared: dict[str, int], failures: list[str]) -> Case:
    """A case of which only what was compared is known."""
    data = ReplayData(steps=[], compared=compared, spare_blocks=3)
    checks = sum(compared.values())
    verification = Verification(checks=checks, by_operation={}, failures=failures)
    return cast(
        Case, SimpleNamespace(replay=SimpleNamespace(data=data), verification=verification)
    )


def test_equal_entries_are_counted_by_where_they_came_from() -> None:
    (finding,) = judge_data(case({"fresh": 1200, "copied": 7}, []))
    assert finding.level == "good"
    assert finding.sentence == (
        "1,207 gathered entries equal those of a run without reuse, bit for bit: 1,200 computed "
        "by the request, 7 in a copied block"
    )


def test_five_differences_are_told_and_the_others_counted() -> None:
    found = judge_data(case({"fresh": 1200}, [f"entry {i} differs." for i in range(1007)]))
    assert [finding.level for finding in found] == ["bad"] * 6
    assert found[0].sentence == "entry 0 differs."
    assert found[-1].sentence == "and 1,002 more, in the record"


def test_a_run_that_compared_nothing_says_so() -> None:
    (finding,) = judge_data(case({}, []))
    assert finding.level == "note"
    assert "nothing was compared" in finding.sentence


def test_a_replay_without_data_says_nothing_of_it() -> None:
    plain = SimpleNamespace(replay=SimpleNamespace(data=None))
    assert judge_data(cast(Case, plain)) == []


def test_measured_steps_stand_beside_modelled_ones() -> None:
    times = CacheStepTimes(kind="mixed", measured_ns=[3 * 10**6] * 8, modelled_ns=[10**6] * 8)
    text = shown(steps_table(ReplayData(steps=[times], compared={}, spare_blocks=0)))
    row = text.splitlines()[-1]
    assert row.startswith("with prompt chunks")
    assert row.split()[3:] == ["8", "3.00", "±", "0.00", "1.00", "0.0240", "0.00800"]
