"""A request computed alone does not depend on how it was brought so far."""

from collections.abc import Iterator
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.replay.build import build_replay
from dsv4kv.replay.data.check import KINDS, UNKNOWN, FreshCache, Running
from dsv4kv.serve import inputs
from dsv4kv.serve.operations import Step
from tests.examples import examples
from tests.replay.scenes import request, small_config

GATHERS: tuple[tuple[int, Step], ...] = (
    (2, ("gather_all", False)),
    (2, ("gather_all", True)),
    (3, ("gather_all", False)),
    (2, ("gather_window", False)),
)


@pytest.fixture(autouse=True, scope="module")
def few_distinct_tokens() -> Iterator[None]:
    with patch.object(inputs, "_DISTINCT_TOKENS", 521):
        yield


@pytest.fixture(scope="module")
def fresh() -> FreshCache:
    """A cache for requests 0 and 1, which begin alike."""
    requests = [request((1, 2, 3)), request((1, 2, 4))]
    config = small_config(workload__data="real", scheduler__step_tokens=200, model__layers=[2, 3])
    data = build_replay(config, requests).data
    assert data is not None
    for number, each in enumerate(requests):
        data.parts.contents.add(number, each)
    return data.parts.check.fresh


def gathered(fresh: FreshCache, number: int, tokens: int) -> list[torch.Tensor]:
    fresh.compute(number, tokens)
    return [fresh.gather(layer, operation).clone() for layer, operation in GATHERS]


@examples(40)
@given(st.integers(128, 250), st.integers(1, 130))
def test_going_on_gives_the_same_bits_as_beginning_anew(
    fresh: FreshCache, tokens: int, more: int
) -> None:
    fresh.compute(0, tokens)
    went_on = gathered(fresh, 0, tokens + more)
    fresh.compute(1, 1)
    anew = gathered(fresh, 0, tokens + more)
    assert all(torch.equal(a, b) for a, b in zip(went_on, anew, strict=True))


def test_what_prompts_have_in_common_is_equal_and_the_rest_is_not(fresh: FreshCache) -> None:
    first, second = gathered(fresh, 0, 384), gathered(fresh, 1, 384)
    assert torch.equal(first[0][:64], second[0][:64])
    assert not torch.equal(first[0][64:], second[0][64:])
    assert not torch.equal(first[3], second[3])


# ---- where something came from ------------------------------------------------------------------


def running(**chosen: object) -> Running:
    made: dict[str, object] = {
        "slot": 0,
        "generation": 1,
        "resumed_tokens": 256,
        "found_tokens": 512,
        "exact": True,
        "again": False,
        "lost": np.zeros(6, dtype=np.bool_),
        "shared_tokens": 128,
        "block_tokens": 128,
    }
    return Running(**(made | chosen))  # type: ignore[arg-type]


def kinds(found: Running, tokens: int, before: int) -> list[str]:
    """Kind of the CSA entry that ends with each fourth token."""
    entries = np.arange(tokens // 4)
    told = found.kinds_of_entries(entries, 4, 8, before)
    return ["unknown" if kind == UNKNOWN else KINDS[kind] for kind in told]


def test_entries_before_the_resume_are_shared_and_the_next_pools_restored_rows() -> None:
    told = kinds(running(), 400, before=256)
    assert set(told[:64]) == {"shared"}
    assert told[64] == "resumed"
    assert set(told[65:]) == {"fresh"}


def test_found_blocks_are_shared_once_their_tokens_are_there() -> None:
    assert set(kinds(running(), 600, before=600)[:128]) == {"shared"}
    assert set(kinds(running(), 600, before=400)[65:96]) == {"shared"}
    assert set(kinds(running(), 600, before=400)[96:]) == {"fresh"}


def test_a_stretch_computed_without_its_history_is_not_compared() -> None:
    found = running(resumed_tokens=385, exact=False)
    told = kinds(found, 640, before=385)
    assert set(told[:96]) == {"shared"}
    assert set(told[96:128]) == {"unknown"}
    assert set(told[128:]) == {"fresh"}
    assert "unknown" not in kinds(found, 640, before=512)


def test_a_block_that_a_resume_ends_in_is_copied() -> None:
    found = running(resumed_tokens=385, exact=False, block_tokens=256)
    told = kinds(found, 640, before=385)
    assert (set(told[:64]), set(told[64:96])) == ({"shared"}, {"copied"})


def test_what_had_been_evicted_is_computed_again() -> None:
    lost = np.array([False, False, False, False, True, False])
    told = kinds(running(lost=lost), 768, before=512)
    assert (set(told[128:160]), set(told[160:])) == ({"recomputed"}, {"fresh"})
    assert set(kinds(running(again=True), 768, before=512)[128:]) == {"recomputed"}


def test_a_window_behind_a_checkpoint_came_from_it() -> None:
    positions = np.arange(200, 300)
    told = [KINDS[kind] for kind in running().kinds_of_window(positions)]
    assert (set(told[:56]), set(told[56:])) == ({"resumed"}, {"fresh"})
    begun = running(resumed_tokens=0, found_tokens=0).kinds_of_window(positions)
    assert {KINDS[kind] for kind in begun} == {"fresh"}
