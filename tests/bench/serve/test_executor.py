"""A step's operations: what is chosen, what is counted, and what is timed."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4kv.bench.build import plan_from
from dsv4kv.bench.serve import executor, loop
from dsv4kv.bench.serve.executor import Outputs, Recorder, StepTokens
from dsv4kv.bench.serve.inputs import EntryChooser
from dsv4kv.bench.serve.verifier import Verifier
from dsv4kv.cache.manager import KVCacheManager, prepare_forward
from dsv4kv.cache.step import Step
from dsv4kv.ops import cpu
from tests.bench.serve.serving import drive_on_cpu, make_config, serve

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


# ---- counted work -------------------------------------------------------------------------------

Counts = dict[tuple[str, str], tuple[int, int]]
"""Entries and bytes by operation and layer type."""

ENTRY = 448 + 8 + 128  # fp8_ds_mla: e4m3 values, scales, bf16 rope channels
KEY = 64 + 4  # mxfp4
READ = ENTRY + 2 * 512  # an entry in, bf16 out
READ_KEY = KEY + 2 * 128


class Bench:
    """A cache with its executor, to be driven step by step."""

    def __init__(self, *options: str) -> None:
        self.config = make_config(*options)
        self.manager = KVCacheManager(plan_from(self.config))
        self.recorder = Recorder()
        drive = drive_on_cpu(self.config, self.manager, self.recorder)
        self.executor, self.verifier = drive.executor, drive.verifier

    def step(self, before: Sequence[int], after: Sequence[int]) -> StepTokens:
        """A step of new requests that already have ``before`` tokens."""
        slots = [self.manager.admit_request() for _ in before]
        prepare_forward(self.manager, slots, before, after)
        batch = Step.of(self.manager, slots, before, after)
        return StepTokens(batch, np.arange(len(slots)), np.array(after))

    def counts(self) -> Counts:
        """Work of the only call of every operation."""
        return {
            key: (samples[1], samples[2])
            for key, samples in self.recorder.operations.items()
            if len(samples) == 4
        }


def test_a_decode_step_counts_its_work() -> None:
    bench = Bench()
    bench.executor.decode(bench.step([127, 300], [128, 301]))
    expected: Counts = {
        # only the first request completes an entry: 128 tokens are whole groups of 4 and 128
        ("state_append", "csa"): (2, 2 * 1024 * 4 * 4),
        ("state_append", "hca"): (2, 2 * 512 * 4 * 4),
        ("indexer_state_append", "csa"): (2, 2 * 256 * 4 * 4),
        ("flush", "csa"): (1, 8 * 512 * 8 + ENTRY),
        ("flush", "hca"): (1, 128 * 512 * 8 + ENTRY),
        ("indexer_flush", "csa"): (1, 8 * 128 * 8 + KEY),
        # 32 and 75 entries of 4 tokens in 1 and 3 blocks, 1 and 2 entries of 128 tokens
        ("indexer_gather_all", "csa"): (107, 4 * 4 + 107 * READ_KEY),
        ("gather_topk", "csa"): (107, 2 * 512 * 4 + 107 * READ),
        ("gather_all", "hca"): (3, 3 * 4 + 3 * READ),
    }
    for kind in ("swa", "csa", "hca"):
        expected["window_insert", kind] = (2, 2 * (2 * 512 + 8 + ENTRY))
        expected["gather_window", kind] = (256, 2 * 8 + 256 * READ)
    assert bench.counts() == expected


def test_a_prompt_chunk_counts_its_work() -> None:
    bench = Bench("workload.step_tokens=200")
    bench.executor.prefill(bench.step([0], [130]))
    expected: Counts = {
        # the rows that stay in the state: 8 of CSA, 128 of HCA
        ("compress_chunk", "csa"): (130, (130 + 8) * 1024 * 8 + 32 * ENTRY),
        ("compress_chunk", "hca"): (130, (130 + 128) * 512 * 8 + ENTRY),
        ("indexer_compress_chunk", "csa"): (130, (130 + 8) * 256 * 8 + 32 * KEY),
        ("gather_all", "csa"): (32, 4 + 32 * READ),
        ("gather_all", "hca"): (1, 4 + READ),
        ("indexer_gather_all", "csa"): (32, 4 + 32 * READ_KEY),
    }
    for kind in ("swa", "csa", "hca"):  # two tokens are overwritten before they are stored
        expected["window_insert", kind] = (128, 128 * (2 * 512 + 8 + ENTRY))
    assert bench.counts() == expected


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
