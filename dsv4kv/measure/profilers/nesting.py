"""Time that an operation takes itself, without the operations inside it."""

import numpy as np

from dsv4kv.measure.profilers.trace import Column


def self_times(thread: Column, start_ns: Column, end_ns: Column) -> Column:
    """Durations less those of the operations directly inside, on the same thread.

    An operation that begins inside another but ends after it counts as inside for the time that
    they share.
    """
    left = (end_ns - start_ns).tolist()
    starts, ends, threads = start_ns.tolist(), end_ns.tolist(), thread.tolist()
    open_rows: list[int] = []
    for row in np.lexsort((-end_ns, start_ns, thread)).tolist():
        while open_rows and (
            threads[open_rows[-1]] != threads[row] or ends[open_rows[-1]] <= starts[row]
        ):
            open_rows.pop()
        if open_rows:
            outer = open_rows[-1]
            left[outer] -= min(ends[row], ends[outer]) - starts[row]
        open_rows.append(row)
    return np.array(left, dtype=np.int64)
