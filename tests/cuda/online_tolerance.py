"""How far an online state may be from another's: ``expf`` is not the same function everywhere.

A token folded into (max, denominator, weighted sum) scales the older or the newer part, whichever
has the smaller score, by e = exp(-|difference|); the other by exp(0) = 1 exactly. glibc's ``expf``
is correctly rounded but for 0.002 ulp; a GPU's is allowed one step from it on the grid of floats.
Carried through, with what is rounded behind it, half an ulp on either side:

    denominator   scaled part · ulp(e) + ulp(denominator)
    weighted sum  |scaled part| · ulp(e) + ulp(scaled part · e) + ulp(weighted sum)

The maximum, the first token of a group and slots without a token have the same bits.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.cuda.scenes import Arguments

Floats = NDArray[np.float64]

EXPONENTIAL_ULPS = 1


def is_online(argument: Any) -> bool:
    """Whether an argument of an operation is online states, float32[S, 3, C]."""
    return isinstance(argument, Tensor) and argument.dim() == 3 and argument.dtype == torch.float32


def online_tolerance(arguments: Arguments, after: Tensor) -> Floats:
    """What ``state_append`` may differ by, [S, 3, C].

    arguments: Before the call; after: the states that one of the two has left.
    """
    compressor, state, kv, score, slots, positions = arguments
    tolerance = np.zeros(state.shape)
    biased = score + compressor.ape[positions % compressor.ratio]
    for token, slot in enumerate(slots.tolist()):
        if slot < 0 or int(positions[token]) % compressor.ratio == 0:
            continue
        top, denominator, weighted = state[slot].double().numpy()
        newer = biased[token].double().numpy()
        older_scaled = newer > top
        exponential = np.exp(-np.abs(top - newer))
        off = EXPONENTIAL_ULPS * _ulp(exponential)
        counted = np.where(older_scaled, denominator, 1.0)
        summed = np.abs(np.where(older_scaled, weighted, kv[token].double().numpy()))
        results = _ulp(after[slot].double().numpy())
        tolerance[slot, 1] = counted * off + results[1]
        tolerance[slot, 2] = summed * off + _ulp(summed * exponential) + results[2]
    return tolerance


def assert_within(found: Tensor, expected: Tensor, tolerance: Floats) -> None:
    """Equal to ``tolerance``, an absolute difference for each element."""
    difference = (found.double() - expected.double()).abs().numpy()
    assert bool(np.all(difference <= tolerance)), f"{np.sum(difference > tolerance)} differ"


def _ulp(values: Floats) -> Floats:
    """The distance to the next float32 away from zero; the wider one, at a power of two."""
    wider = np.abs(values).astype(np.float32) * np.float32(1 + 2**-20)
    ulps: Floats = np.spacing(wider).astype(np.float64)
    return ulps
