"""A step's operations: what is chosen, what is counted, and what is timed."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4kv.bench.serve import executor, loop
from dsv4kv.bench.serve.executor import Outputs, StepTokens
from dsv4kv.bench.serve.inputs import EntryChooser
from dsv4kv.bench.serve.verifier import Verifier
from dsv4kv.ops import cpu
from tests.bench.serve.serving import serve

# ---- chosen entries -----------------------------------------------------------------------------


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(0, 2**20), min_size=1, max_size=8),
    topk=st.integers(1, 2048),
    seed=st.integers(0, 99),
)
def test_chosen_entries_are_distinct_and_visible_and_as_many_as_there_are(
    lengths: list[int], topk: int, seed: int
) -> None:
    chosen = EntryChooser(topk, seed).choose(np.array(lengths)).numpy()
    assert chosen.shape == (len(lengths), topk)
    assert chosen.dtype == np.int32
    for row, length in zip(chosen, lengths, strict=True):
        found = row[row >= 0]
        assert len(found) == len(set(found.tolist())) == min(length, topk)
        assert (found < length).all()
        assert (row[len(found) :] == -1).all()


# ---- observed and timed -------------------------------------------------------------------------


def test_inputs_choices_and_checks_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a clock that only operations and checks move, a step takes what its operations do.

    Of operations that an operation consists of, none takes time of its own.
    """
    now, inside = [0], [False]
    for module in (executor, loop):
        monkeypatch.setattr(module, "perf_counter_ns", lambda: now[0])

    def take(target: Any, name: str, duration: int) -> None:
        right = getattr(target, name)

        def slow(*arguments: Any, **options: Any) -> Any:
            if inside[0]:
                return right(*arguments, **options)
            now[0] += duration
            inside[0] = target is cpu
            try:
                return right(*arguments, **options)
            finally:
                inside[0] = False

        monkeypatch.setattr(target, name, slow)

    for name in ("window_insert", "state_append", "flush", "compress_chunk"):
        take(cpu, name, 7)
    for name in ("gather_topk", "gather_all", "gather_window"):
        take(cpu, name, 7)
    for owner, name in (
        (Verifier, "look"),
        (EntryChooser, "choose"),
        (StepTokens, "rows"),
        (Outputs, "take"),
    ):
        take(owner, name, 1_000_000)
    found = serve([(20, 9)]).recorder
    assert {ns for each in found.operations.values() for ns in each[::4]} == {7}
    calls = sum(len(each) // 4 for each in found.operations.values())
    assert sum(found.latencies["step"]) == 7 * calls
