"""The arithmetic model: floating-point operations of the reads of a decode step.

Counted: the matrix products, a multiplication and an addition each. Not counted: ReLU, softmax,
sums over heads, and decoding of entries, which tensor cores do not do.
"""

from dsv4kv.ops.traffic import Count


def index_scores_flops(scores: Count, heads: int, dims: int) -> Count:
    """Every head's query times the key of each score: 16,384 for 64 heads of 128 channels."""
    return 2 * scores * heads * dims


def attend_flops(attended: Count, heads: int, dims: int) -> Count:
    """Every head's query times each entry, and its weight times it: 262,144 for 128 of 512."""
    return 4 * attended * heads * dims
