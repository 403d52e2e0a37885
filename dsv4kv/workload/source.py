"""The requests that a configuration asks for: a slice of a trace, or generated."""

from collections.abc import Iterator
from itertools import islice

from dsv4kv.config.bench import WorkloadSection
from dsv4kv.errors import TraceError
from dsv4kv.workload.request import Request
from dsv4kv.workload.synth import synthesize
from dsv4kv.workload.traces import ReadOptions, read_trace


def open_requests(workload: WorkloadSection, seed: int) -> Iterator[Request]:
    """The requests in order; every call starts anew. Raises ``TraceError``."""
    if workload.trace is None:
        requests = synthesize(workload.synthetic, seed)
    else:
        # they come as fast as they are served: their times do not count
        requests = read_trace(workload.trace, workload.trace_format, ReadOptions(any_order=True))
    stop = None if workload.limit is None else workload.skip + workload.limit
    return islice(requests, workload.skip, stop)


def count_tokens(workload: WorkloadSection, seed: int) -> int:
    """Tokens of all requests; reads the workload to its end, so that a defect shows early.

    Raises:
        TraceError: The trace has a defect, or fewer requests than are skipped.
    """
    tokens = requests = 0
    for request in open_requests(workload, seed):
        requests += 1
        tokens += request.total_tokens
    if not requests:
        source = workload.trace or "the synthetic workload"
        raise TraceError(
            f"{source}: no request is left after skipping {workload.skip}: lower workload.skip."
        )
    return tokens
