"""Requests that take one token a step are where those are that verify windows of one token."""

from itertools import count
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.prefix.tree import NO_IDS
from dsv4kv.replay.decoders import Decoders, Drafting, Drafts, Stepping
from dsv4kv.replay.requests import NEVER, Served
from tests.examples import examples
from tests.replay.scenes import replay, request

MADE = replay([request([1, 2, 3], output=900)])
COST, GROUP = MADE.scheduler._cost, MADE.memory.group


def served(number: int, prompt: int, output: int, spare: int) -> Served:
    blocks = GROUP.blocks_for(prompt) + spare
    return Served(
        number, 0.0, prompt, output, lambda: NO_IDS, (), 0,
        position=prompt, prompt_tokens=prompt, blocks=blocks,
    )  # fmt: skip


def found(decoders: Decoders, steps: int) -> Any:
    lacking = decoders.lacking(steps)
    assert decoders.all_lacking(steps) == lacking.sum()
    columns = decoders.position, decoders.left, decoders.blocks, decoders.begun, lacking
    return [column.tolist() for column in columns], decoders.tokens_per_step


def written(gone: list[Served]) -> Any:
    return [
        (each.number, each.position, each.generated, each.blocks, each.reached) for each in gone
    ]


coming = st.tuples(st.integers(1, 400), st.integers(1, 300), st.integers(0, 2))
going = st.lists(st.integers(0, 5), max_size=2, unique=True)
turns = st.lists(
    st.tuples(st.lists(coming, max_size=3), going, st.integers(1, 60), st.integers(0, 8)),
    min_size=1,
    max_size=12,
)


@examples(100)
@given(turns)
def test_steps_of_one_token_are_windows_of_one_token(turns: Any) -> None:
    both = Stepping(COST, GROUP), Drafting(COST, GROUP, Drafts(0, 0.0, seed=0))
    numbers = count()
    for come, go, longest, available in turns:
        for each in come:
            number = next(numbers)
            for decoders in both:
                decoders.add(served(number, *each))
        places = [place for place in go if place < len(both[0])]
        one, other = (written(decoders.remove(places)) for decoders in both)
        assert one == other
        if not len(both[0]):
            continue
        until_end = min(longest, int(both[0].left.min()))
        assert found(both[0], until_end) == found(both[1], until_end)
        clock = MADE.scheduler.clock
        plans = [decoders.plan(available, clock, NEVER, longest) for decoders in both]
        assert plans[0] == plans[1]
        steps, work = plans[0]
        ahead = both[0].steps(steps), both[1].steps(steps)
        assert COST._count(ahead[0]) == tuple(work.counts) == COST._count(ahead[1])
        assert both[0].advance(steps) == both[1].advance(steps)
        one, other = (written(decoders.remove_done()) for decoders in both)
        assert one == other
        if len(both[0]):
            assert found(both[0], 1) == found(both[1], 1)


def test_nobody_lacks_a_block_that_is_held_already() -> None:
    decoders = Stepping(COST, GROUP)
    size = decoders.block_tokens
    decoders.add(served(0, size, 3 * size, spare=1))
    assert decoders.all_lacking(size) == 0
    assert decoders.all_lacking(size + GROUP.ratio) == 1
    assert decoders.advance(2 * size + GROUP.ratio) == 2
    assert np.array_equal(decoders.blocks, [4])


@examples(100)
@given(st.lists(coming, min_size=2, max_size=6), st.lists(st.tuples(going, st.integers(1, 40))))
def test_who_sits_steps_out_is_as_if_it_had_gone_and_come_again(come: Any, turns: Any) -> None:
    one, other = Stepping(COST, GROUP), Stepping(COST, GROUP)
    for decoders in (one, other):
        for number, each in enumerate(come):
            decoders.add(served(number, *each))
    for out, longest in turns:
        places = sorted(place for place in out if place < len(one))
        if len(places) == len(one):
            continue
        aside, gone = one.set_aside(places), other.remove(places)
        assert found(one, 1) == found(other, 1)
        steps = min(longest, int(one.left.min()))
        assert one.work(steps) == other.work(steps)
        assert COST._count(one.steps(steps)) == COST._count(other.steps(steps))
        assert one.advance(steps) == other.advance(steps)
        if aside.members:
            one.put_back(aside)
        for each in gone:
            other.add(each)
        assert found(one, 1) == found(other, 1)
        assert found(one, 30) == found(other, 30)
        assert one.work(1) == other.work(1)
        assert written(one.remove_done()) == written(other.remove_done())
