"""Plans give the answers that are pinned: integers to the last, times to 1e-9."""

import json

import pytest

from tests.examples import FULL
from tests.goldens.plans import CASES, RESULTS, measure
from tests.goldens.replays import CONVERSATION
from tests.goldens.test_replays import differences

PINNED = json.loads(RESULTS.read_text())
TRIED = list(CASES) if FULL else list(CASES)[::3]


def test_every_question_is_pinned_and_nothing_else() -> None:
    assert set(PINNED) == set(CASES)


@pytest.mark.slow
@pytest.mark.skipif(not CONVERSATION.exists(), reason="needs the traces of shared/data")
@pytest.mark.parametrize("name", TRIED)
def test_a_plan_gives_the_pinned_answer(name: str) -> None:
    assert differences(measure(CASES[name]), PINNED[name]) == []
