"""Budgets, plans and replays give what is pinned: integers to the last, times to 1e-9."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.examples import FULL
from tests.goldens import budgets, plans, replays

Measure = Callable[[Any], Any]
BUDGETS = {" ".join(words): words for words in budgets.questions()}
CASES: dict[str, tuple[dict[str, Any], Measure, dict[str, Any]]] = {
    kind.__name__: (asked, kind.measure, json.loads(kind.RESULTS.read_text()))
    for kind, asked in ((budgets, BUDGETS), (plans, plans.CASES), (replays, dict(replays.cases())))
}
needs_traces = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not replays.CONVERSATION.exists(), reason="needs the traces of shared/data"
    ),
]
TRIED = [
    pytest.param(kind, name, marks=[] if asked is BUDGETS else needs_traces)
    for kind, (asked, _, _) in CASES.items()
    for name in (list(asked) if FULL else list(asked)[::3])
]


@pytest.mark.parametrize("kind", CASES)
def test_every_case_is_pinned_and_nothing_else(kind: str) -> None:
    asked, _, pinned = CASES[kind]
    assert set(pinned) == set(asked)


@pytest.mark.parametrize(("kind", "name"), TRIED)
def test_what_is_asked_has_the_pinned_answer(kind: str, name: str) -> None:
    asked, measure, pinned = CASES[kind]
    found = measure(asked[name])
    if asked is BUDGETS:
        assert found == pinned[name]
    else:
        assert differences(found, pinned[name]) == []


def differences(found: Any, pinned: Any, path: str = "") -> list[str]:
    """Paths that differ; integers and texts must be equal, floats and times nearly."""
    if isinstance(pinned, dict) and isinstance(found, dict):
        keys = sorted(pinned.keys() | found.keys())
        return [
            line
            for key in keys
            for line in differences(found.get(key), pinned.get(key), f"{path}.{key}")
        ]
    if isinstance(pinned, list) and isinstance(found, list) and len(pinned) == len(found):
        pairs = enumerate(zip(found, pinned, strict=True))
        return [line for n, pair in pairs for line in differences(*pair, f"{path}[{n}]")]
    is_time = "_ns" in path or isinstance(pinned, float)
    expected: Any = pinned
    if is_time:
        expected = pytest.approx(pinned, rel=1e-9, abs=2)
    elif "peak" in path:
        expected = pytest.approx(pinned, rel=0.02)
    equal = found == expected
    return [] if equal else [f"{path}: {found} is not {pinned}"]
