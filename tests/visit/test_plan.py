"""What a visit will do, and its questions as data."""

from pathlib import Path

import pytest

from visit import report, rows
from visit.desk import Desk
from visit.plan import CALLS, MOST_S, QUESTIONS, STEPS, tell
from visit.questions import GPUS, Bar

NOTES = Path(__file__).parents[2] / "results" / "h200" / "NOTES.md"


@pytest.mark.parametrize("call", CALLS)
def test_a_call_plans_nine_minutes_at_most(call: str) -> None:
    assert sum(step.limit_s for step in CALLS[call]) <= MOST_S == 9 * 60


def test_no_two_steps_and_no_two_questions_share_a_name() -> None:
    steps = [step for each in CALLS.values() for step in each]
    assert len(STEPS) == len(steps)
    assert len(QUESTIONS) == sum(len(step.questions) for step in steps)


def test_every_question_has_a_prediction_for_both_cards_and_its_reason() -> None:
    for question in QUESTIONS.values():
        assert set(question.predicted) == set(GPUS), question.name
        assert question.words.endswith("?")
        assert question.why


def test_a_plan_tells_every_step_and_its_limit() -> None:
    told = tell("first", CALLS["first"])
    for step in CALLS["first"]:
        assert f"{step.limit_s} s  {step.name}" in told


def test_the_notes_hold_all_predictions_as_they_are() -> None:
    assert report.table([], list(QUESTIONS.values())) in NOTES.read_text()


# ---- verdicts -----------------------------------------------------------------------------------


def verdict(tmp_path: Path, name: str, measured: float | None, gpu: str) -> str:
    step = next(step for step in STEPS.values() if QUESTIONS[name] in step.questions)
    desk = Desk(step, tmp_path / "rows.jsonl", tmp_path, small=False, gpu=gpu)
    desk.answer(name, measured)
    found: str = rows.read(desk.file)[-1]["verdict"]
    return found


@pytest.mark.parametrize(
    ("measured", "gpu", "expected"),
    [
        (0.417, "NVIDIA H200", "met"),
        (0.418, "NVIDIA H200", "missed"),
        (0.418, "NVIDIA H100 80GB HBM3", "no bar"),
        (0.300, "NVIDIA B200", "no bar"),
        (None, "NVIDIA H200", "no answer"),
    ],
)
def test_a_bar_in_nanoseconds_is_one_cards(
    tmp_path: Path, measured: float | None, gpu: str, expected: str
) -> None:
    assert verdict(tmp_path, "gather_131072", measured, gpu) == expected


def test_a_bar_in_shares_holds_on_both_cards(tmp_path: Path) -> None:
    for gpu in GPUS:
        assert verdict(tmp_path, "insert_131072_share", 90.0, gpu) == "met"
        assert verdict(tmp_path, "insert_131072_share", 89.9, gpu) == "missed"


def test_a_bar_is_told_with_its_sense_and_its_card() -> None:
    assert str(Bar("≤", 0.417, ("H200",))) == "≤ 0.417 (H200)"
    assert str(Bar("≥", 90)) == "≥ 90"


def test_an_answer_holds_all_that_a_table_needs(tmp_path: Path) -> None:
    desk = Desk(STEPS["speeds"], tmp_path / "rows.jsonl", tmp_path, small=False, gpu="NVIDIA H200")
    desk.answer("topk_64x1024", 28.25, (28.0, 28.5), samples=40)
    (row,) = rows.read(desk.file)
    assert row["at_utc"]
    assert {
        name: row[name] for name in ("unit", "predicted", "wanted", "measured", "interval")
    } == {
        "unit": "µs",
        "predicted": 29.5,
        "wanted": None,
        "measured": 28.25,
        "interval": [28.0, 28.5],
    }
    told = report.table([desk.file], [QUESTIONS["topk_64x1024"]]).splitlines()[-1]
    assert told.endswith("| 29.5 µs | 40.5 µs | – | 28.25 µs [28, 28.5], NVIDIA H200: no bar |")


def test_of_two_answers_the_later_is_shown(tmp_path: Path) -> None:
    desk = Desk(STEPS["facts"], tmp_path / "rows.jsonl", tmp_path, small=False, gpu="NVIDIA H100")
    desk.answer("l2", None, why="a first try")
    desk.answer("l2", 50.0)
    told = report.table([desk.file], [QUESTIONS["l2"]])
    assert "50 MB, NVIDIA H100: no bar" in told
    assert "a first try" not in told
