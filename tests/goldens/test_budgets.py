"""Budgets give the answers that are pinned, to the last integer."""

import json

import pytest

from tests.examples import FULL
from tests.goldens.budgets import RESULTS, measure, questions

PINNED = json.loads(RESULTS.read_text())
QUESTIONS = {" ".join(words): words for words in questions()}
TRIED = list(QUESTIONS) if FULL else list(QUESTIONS)[::3]


def test_every_question_is_pinned_and_nothing_else() -> None:
    assert set(PINNED) == set(QUESTIONS)


@pytest.mark.parametrize("name", TRIED)
def test_a_budget_gives_the_pinned_answer(name: str) -> None:
    assert measure(QUESTIONS[name]) == PINNED[name]
