"""The requests a configuration asks for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.bench.serve.loop import count_tokens, open_requests
from dsv4kv.config.bench import Synthetic, WorkloadSection
from dsv4kv.errors import TraceError
from dsv4kv.traces.synth import synthesize

SYNTHETIC = Synthetic(requests=20)


def synthetic(skip: int = 0, limit: int | None = None) -> WorkloadSection:
    return WorkloadSection(trace=None, synthetic=SYNTHETIC, skip=skip, limit=limit)


@given(skip=st.integers(0, 25), limit=st.none() | st.integers(1, 25))
def test_skip_and_limit_take_a_slice(skip: int, limit: int | None) -> None:
    every = list(synthesize(SYNTHETIC, 0))
    end = None if limit is None else skip + limit
    assert list(open_requests(synthetic(skip, limit), seed=0)) == every[skip:end]


@pytest.mark.parametrize(
    ("workload", "source"),
    [
        (synthetic(skip=20), "the synthetic workload"),
        (WorkloadSection(skip=100_000), "builtin:chat"),
    ],
)
def test_skipping_everything_is_refused(workload: WorkloadSection, source: str) -> None:
    with pytest.raises(TraceError) as refusal:
        count_tokens(workload, seed=0)
    assert str(refusal.value) == (
        f"{source}: no request is left after skipping {workload.skip}: lower workload.skip."
    )
