"""Student's t, held against printed tables and against itself."""

import pytest

from dsv4kv.measure.statistics import t_quantile

# Abramowitz and Stegun, Handbook of Mathematical Functions, table 26.10
PRINTED = {
    (1, 0.025): 12.706,
    (2, 0.025): 4.303,
    (3, 0.025): 3.182,
    (6, 0.025): 2.447,
    (13, 0.025): 2.160,
    (30, 0.025): 2.042,
    (1, 0.005): 63.657,
    (4, 0.005): 4.604,
    (5, 0.0005): 6.869,
    (6, 0.0005): 5.959,
}


@pytest.mark.parametrize(("freedom", "tail"), PRINTED)
def test_quantiles_are_those_of_the_printed_tables(freedom: int, tail: float) -> None:
    assert t_quantile(tail, freedom) == pytest.approx(PRINTED[freedom, tail], abs=6e-4)


@pytest.mark.parametrize("freedom", [1, 2, 5, 8, 51])
def test_a_rarer_tail_begins_further_out(freedom: int) -> None:
    quantiles = [t_quantile(tail, freedom) for tail in (0.4, 0.1, 0.01, 1e-3, 1e-5)]
    assert quantiles == sorted(quantiles)
    assert quantiles[0] > 0
