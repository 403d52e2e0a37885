"""Launches whose steps took turns, two by two: what the one takes beside the other."""

from collections.abc import Mapping, Sequence

import numpy as np

from dsv4kv.compare.side import Launched
from dsv4kv.report.quantities import Quantity, ratio_of_calls

Ratios = dict[str, float]  # of every pair, by its name


def pair_up(before: Sequence[Launched], after: Sequence[Launched]) -> Ratios:
    """How many times as long the side after takes in each pair; empty where none took turns."""
    firsts = {each.pair: each.measured for each in before if each.pair}
    return {
        each.pair: ratio_of_calls(firsts[each.pair], each.measured)
        for each in after
        if each.pair in firsts
    }


def mean_of_rows(rows: Mapping[Quantity, Ratios]) -> list[float]:
    """Geometric mean over all rows, pair by pair; pairs that lack a row are out."""
    whole = set.intersection(*(set(ratios) for ratios in rows.values())) if rows else set()
    return [
        float(np.exp(np.mean([np.log(ratios[pair]) for ratios in rows.values()])))
        for pair in sorted(whole)
    ]
