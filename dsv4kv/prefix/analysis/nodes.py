"""A number for every different block of a trace."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dsv4kv.prefix.analysis.paths import Ints
from dsv4kv.prefix.analysis.reuse import Reuse


@dataclass(frozen=True)
class NumberedPaths:
    """The prompts of a trace as numbers of blocks.

    Attributes:
        paths: int64 for every request: the numbers of its blocks.
        count: How many different ones there are.
    """

    paths: tuple[Ints, ...]
    count: int


def number_paths(reuse: Reuse) -> NumberedPaths:
    """The same as ``number_blocks``, request by request."""
    offsets, numbers, count = number_blocks(reuse)
    return NumberedPaths(tuple(numbers[a:b] for a, b in pairwise(offsets)), count)


def number_blocks(reuse: Reuse) -> tuple[Ints, Ints, int]:
    """Number blocks in order of first use; equal blocks with equal history share a number.

    Returns:
        int64[requests + 1]: where every request's blocks begin; int64[blocks of all requests]: the
        numbers; and how many different ones there are.
    """
    offsets = np.concatenate([[0], reuse.blocks.cumsum()])
    numbers = np.zeros(int(offsets[-1]), np.int64)
    seen = np.zeros(len(reuse.blocks), np.int64)
    np.maximum.at(seen, reuse.request, reuse.end)
    fresh = np.concatenate([[0], (reuse.blocks - seen).cumsum()])
    for request in range(len(reuse.blocks)):
        begin, end = offsets[request] + seen[request], offsets[request + 1]
        numbers[begin:end] = np.arange(fresh[request], fresh[request + 1])
    _copy_stretches(reuse, offsets, numbers)
    return offsets, numbers, int(fresh[-1])


def _copy_stretches(reuse: Reuse, offsets: Ints, numbers: Ints) -> None:
    """In order: an owner's numbers are complete before a later request copies them."""
    to = offsets[reuse.request]
    source = offsets[reuse.owner]
    columns = (to + reuse.begin, to + reuse.end, source + reuse.begin, source + reuse.end)
    for begin, end, low, high in zip(*(column.tolist() for column in columns), strict=True):
        numbers[begin:end] = numbers[low:high]
