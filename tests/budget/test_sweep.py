"""A sweep answers every combination."""

import pytest

from dsv4kv.budget.answer import answer
from dsv4kv.budget.sweep import Axis, parse_axis, run_sweep, to_values
from dsv4kv.errors import ConfigError
from tests.budget.questions import ask

CONTEXTS = Axis("context", ("4K", "32K", "1M"))
GPUS = Axis("gpu", ("h200", "b200"))
EIGHT = {"gpus": "8"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("context", "--axis context: write NAME=A,B"),
        ("contxt=4K", "no input to sweep 'contxt' (did you mean context"),
        ("context=4K,", "--axis context=4K,: a value is missing or comes twice."),
        ("context=4K,4K", "--axis context=4K,4K: a value is missing or comes twice."),
    ],
)
def test_a_wrong_axis_is_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_axis(text)
    assert str(refusal.value).startswith(sentence)


def test_a_sweep_of_too_many_points_is_refused_before_they_are_made() -> None:
    contexts = Axis("context", tuple(map(str, range(1, 5000))))
    with pytest.raises(ConfigError, match="more than 4,096 points"):
        run_sweep({}, [contexts, Axis("concurrency", contexts.values), GPUS])


def test_every_combination_has_the_answer_that_it_has_alone() -> None:
    rows = run_sweep(EIGHT, [CONTEXTS, GPUS])
    points = [tuple(row.point.values()) for row in rows]
    assert points == [(context, gpu) for context in CONTEXTS.values for gpu in GPUS.values]
    for row in rows:
        assert row.found is not None
        alone = answer(ask(**EIGHT, **row.point))
        assert row.found.use == alone.use
        assert to_values(row)["max_concurrency"] == alone.max_concurrency
