"""Blocks of a path of runs where every key is a block, and that what is given away is a copy."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.prefix.tree import NO_IDS, Blocks, Run


def path_of(lengths: list[int]) -> list[Run]:
    """Runs one below the other, whose values count up."""
    above, path = Run(None, b"", 0, 0, NO_IDS), list[Run]()
    for length in lengths:
        values = np.arange(above.end, above.end + length)
        above = Run(above, bytes(8 * length), above.end, length, values)
        path.append(above)
    return path


@given(st.lists(st.integers(1, 6), max_size=5), st.data())
def test_blocks_of_one_key_are_the_keys(lengths: list[int], data: st.DataObject) -> None:
    path, blocks = path_of(lengths), Blocks(1)
    first = path[-1].start if path else 0
    depth = data.draw(st.integers(first + bool(path), sum(lengths)))
    assert blocks.join(path, depth).tolist() == list(range(depth))
    given_values = data.draw(st.integers(0, depth + 3))
    assert blocks.first_key(depth, given_values) == max(depth - given_values, -1)
    for run in path:
        at, count = data.draw(st.integers(run.start, run.end)), data.draw(st.integers(0, 9))
        assert blocks.count(run) == run.length
        assert blocks.cut(run, count) == max(run.end - count, run.start)
        assert blocks.head(run.values, run.start, at).tolist() == list(range(run.start, at))
        assert blocks.tail(run.values, run.start, at).tolist() == list(range(at, run.end))
        assert blocks.owned(run, at).tolist() == list(range(at, run.end))


def test_what_a_lease_was_given_stays_when_the_run_is_cut() -> None:
    for layout in (Blocks(1), Blocks(2)):
        (run,) = path_of([4])
        joined = layout.join([run], 4)
        run.values[:] = 0
        assert joined.any()
