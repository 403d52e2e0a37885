"""What a visit will do, and its questions as data."""

from dataclasses import replace
from pathlib import Path

import pytest

from dsv4kv.bench.predict import H200
from tests.gpu_twin import twin_device, twin_gpu
from tests.visit import kernels_page
from visit import report, rows
from visit.desk import Desk
from visit.first_light import modules_of_steps
from visit.place import TWIN, Place, planned_place
from visit.plan import CALLS, MOST_S, QUESTIONS, STEPS
from visit.questions import COMPILE_S, CORES, GPUS, MODULES, figure, planned_step

NOTES = Path(__file__).parents[2] / "results" / "h200" / "NOTES.md"


@pytest.mark.parametrize("call", CALLS)
def test_a_call_plans_nine_minutes_at_most(call: str) -> None:
    assert sum(step.limit_s for step in CALLS[call]) <= MOST_S == 9 * 60


def test_every_question_has_a_prediction_for_both_cards_and_its_reason() -> None:
    for question in QUESTIONS.values():
        assert all(question.on(gpu) is not None for gpu in GPUS), question.name
        assert question.words.endswith("?")
        assert question.why


def test_the_notes_hold_all_predictions_and_answers_as_they_are() -> None:
    measured = [NOTES.parent / "rows" / f"{gpu}.jsonl" for gpu in ("h200", "h100")]
    assert report.table(measured, list(QUESTIONS.values())) in NOTES.read_text()


def test_the_page_of_kernels_holds_what_is_predicted_and_measured() -> None:
    assert kernels_page.table() in (NOTES.parents[2] / "docs" / "kernels.md").read_text()


# ---- predictions --------------------------------------------------------------------------------


def test_a_step_is_predicted_by_the_launches_that_its_configuration_captures() -> None:
    shipped, gathered = planned_step(H200), planned_step(H200, "workload.step=gather")
    assert {"attend", "index_scores", "select_topk"} <= {each.name for each in shipped}
    assert {"gather_topk", "gather_all"} <= {each.name for each in gathered}
    for step in (shipped, gathered):
        assert all(each.bytes for each in step if each.name != "tables")
        assert sum(len(each.launches) for each in step) >= 61 * 2
    asked = QUESTIONS["graph_64"].on("H200")
    assert asked == sum(each.ns(H200) for each in shipped) / 1e6
    assert asked != pytest.approx(sum(each.ns(H200) for each in gathered) / 1e6, rel=0.1)


def test_work_is_predicted_by_its_launches_and_bytes() -> None:
    place = planned_place()
    for question in QUESTIONS.values():
        if question.work and not question.name.endswith("_share"):
            work = question.work(place)
            told = figure(question.unit, work.predicted_ns(H200), work, H200)
            assert question.on("H200") == told
            assert work.predicted_ns(H200) > H200.roofline_ns(work.bytes, work.flops)
            twice = replace(work, bytes=4 * work.bytes, flops=4 * work.flops)
            assert twice.predicted_ns(H200) > work.predicted_ns(H200)


def test_what_compiles_in_a_step_fits_its_limit() -> None:
    with twin_gpu() as gpu:
        place = Place(twin_device(gpu), TWIN, small=False)
        assert len(modules_of_steps(place)) == MODULES
    assert STEPS["compile"].limit_s / 2 > MODULES * COMPILE_S / CORES


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
        (0.427, "NVIDIA H200", "met"),
        (0.428, "NVIDIA H200", "missed"),
        (0.428, "NVIDIA H100 80GB HBM3", "no bar"),
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


def test_an_answer_holds_all_that_a_table_needs(tmp_path: Path) -> None:
    desk = Desk(STEPS["speeds"], tmp_path / "rows.jsonl", tmp_path, small=False, gpu="NVIDIA H200")
    desk.answer("topk_64x1024", 28.25, (28.0, 28.5), samples=40)
    (row,) = rows.read(desk.file)
    assert row["at_utc"]
    assert {
        name: row[name] for name in ("unit", "predicted", "wanted", "measured", "interval")
    } == {
        "unit": "µs",
        "predicted": QUESTIONS["topk_64x1024"].on("H200"),
        "wanted": None,
        "measured": 28.25,
        "interval": [28.0, 28.5],
    }
    told = report.table([desk.file], [QUESTIONS["topk_64x1024"]]).splitlines()[-1]
    assert told.endswith(" µs | – | 28.25 µs [28, 28.5], NVIDIA H200: no bar |")
