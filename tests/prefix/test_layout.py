"""Where every key is a block, both layouts of blocks say the same."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.prefix.layout import Blocks, WholeBlocks
from dsv4kv.prefix.run import NO_IDS, Run


def path_of(lengths: list[int]) -> list[Run]:
    """Runs one below the other, whose values count up."""
    above, path = Run(None, b"", 0, 0, NO_IDS), list[Run]()
    for length in lengths:
        values = np.arange(above.end, above.end + length)
        above = Run(above, bytes(8 * length), above.end, length, values)
        path.append(above)
    return path


@given(st.lists(st.integers(1, 6), max_size=5), st.data())
def test_whole_blocks_are_blocks_of_one_key(lengths: list[int], data: st.DataObject) -> None:
    path, plain, whole = path_of(lengths), Blocks(1), WholeBlocks()
    first = path[-1].start if path else 0
    depth = data.draw(st.integers(first + bool(path), sum(lengths)))
    assert whole.join(path, depth).tolist() == plain.join(path, depth).tolist()
    assert whole.join(path, depth).tolist() == list(range(depth))
    given_values = data.draw(st.integers(0, depth + 3))
    assert whole.first_key(depth, given_values) == plain.first_key(depth, given_values)
    for run in path:
        at, count = data.draw(st.integers(run.start, run.end)), data.draw(st.integers(0, 9))
        assert whole.count(run) == plain.count(run) == run.length
        assert whole.cut(run, count) == plain.cut(run, count)
        for name in ("head", "tail"):
            ours, theirs = getattr(whole, name), getattr(plain, name)
            expected = theirs(run.values, run.start, at).tolist()
            assert ours(run.values, run.start, at).tolist() == expected
        assert whole.owned(run, at).tolist() == plain.owned(run, at).tolist()


def test_what_a_lease_was_given_stays_when_the_run_is_cut() -> None:
    for layout in (Blocks(1), WholeBlocks(), Blocks(2)):
        (run,) = path_of([4])
        joined = layout.join([run], 4)
        run.values[:] = 0
        assert joined.any()
