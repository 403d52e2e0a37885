"""Replays give the results that are pinned: integers to the last, times to 1e-9."""

import json
from typing import Any

import pytest

from tests.examples import FULL
from tests.goldens.replays import CONVERSATION, RESULTS, cases, measure

PINNED = json.loads(RESULTS.read_text())
CASES = dict(cases())
TRIED = list(CASES) if FULL else list(CASES)[::3]


def test_every_case_is_pinned_and_nothing_else() -> None:
    assert set(PINNED) == set(CASES)


@pytest.mark.slow
@pytest.mark.skipif(not CONVERSATION.exists(), reason="needs the traces of shared/data")
@pytest.mark.parametrize("name", TRIED)
def test_a_replay_gives_the_pinned_result(name: str) -> None:
    found, pinned = measure(CASES[name]), PINNED[name]
    assert differences(found, pinned) == []


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
