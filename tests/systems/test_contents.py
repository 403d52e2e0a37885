"""What stands for a model: its KV depends on all tokens before, and is the same in any pieces."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.bench.systems.workload import _FACTOR
from dsv4kv.model.schedule import RouterMode
from tests.systems.small import MODEL

TOKENS = st.lists(st.integers(0, 129_279), min_size=1, max_size=40)


@given(TOKENS)
def test_the_history_is_a_plain_recurrence(tokens: list[int]) -> None:
    history, told = 0, []
    for token in tokens:
        history = (_FACTOR * history + token + 1) % 2**64
        told.append(history)
    found = MODEL.compute(np.array(tokens, np.int32), None)
    assert found[:, 0].tolist() == told


@given(TOKENS, st.data())
def test_computed_in_pieces_it_is_the_same(tokens: list[int], data: st.DataObject) -> None:
    words, cut = np.array(tokens, np.int32), data.draw(st.integers(0, len(tokens)))
    whole = MODEL.compute(words, None)
    if 0 < cut < len(words):
        rest = MODEL.compute(words[cut:], whole[cut - 1])
        assert np.array_equal(rest, whole[cut:])


@given(TOKENS, st.data())
def test_another_token_changes_everything_after_it_and_nothing_before(
    tokens: list[int], data: st.DataObject
) -> None:
    words, at = np.array(tokens, np.int32), data.draw(st.integers(0, len(tokens) - 1))
    other = words.copy()
    other[at] += 1
    equal = (MODEL.compute(words, None) == MODEL.compute(other, None)).any(axis=1)
    assert equal[:at].all()
    assert not equal[at:].any()


def test_hashed_layers_route_by_the_token_alone_and_the_others_by_its_history() -> None:
    words = np.array([5, 6, 5], np.int32)
    experts = MODEL.route(words, MODEL.compute(words, None))
    for number, spec in enumerate(MODEL.layers):
        same = np.array_equal(experts[0, number], experts[2, number])
        assert same == (spec.router is RouterMode.HASH)
