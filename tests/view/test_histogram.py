import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.view.sparks import are_far_apart, make_bins

SAMPLES = st.lists(st.integers(0, 10**12), min_size=1, max_size=60)


@given(SAMPLES, st.integers(1, 50))
def test_every_sample_lies_in_a_bin(samples: list[int], count: int) -> None:
    bins = make_bins(samples, count)
    assert len(bins.edges) == count + 1
    assert int(bins.count(samples).sum()) == len(samples)


@given(SAMPLES)
def test_edges_rise_by_equal_steps_or_equal_factors(samples: list[int]) -> None:
    bins = make_bins(samples, 8)
    steps = np.diff(np.log(bins.edges) if bins.is_log else bins.edges)
    assert np.all(steps > 0)
    np.testing.assert_allclose(steps, steps[0], rtol=1e-3)


def test_an_axis_is_logarithmic_from_a_factor_of_four_on_and_never_with_zero() -> None:
    assert not are_far_apart([1, 4])
    assert are_far_apart([1, 4.1])
    assert not are_far_apart([0, 100])
