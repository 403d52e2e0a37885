"""What a trace must not say, before it is replayed."""

from collections.abc import Sequence

from dsv4kv.config.replay import ArrivalSection
from dsv4kv.workload.request import Request
from dsv4kv.workload.traces import ReadOptions
from dsv4kv.workload.traces.collect import check_histories, collect_paths, place_of


def read_options(workload: ArrivalSection) -> ReadOptions:
    """How the trace is read: with closed arrivals its times do not count."""
    return ReadOptions(stagger_s=workload.stagger_s, any_order=workload.arrivals == "closed")


def check_ids(requests: Sequence[Request], workload: ArrivalSection) -> None:
    """Refuse block ids that contradict each other.

    Raises:
        TraceError: The sentence names both requests, by file and line where there is a file.
    """
    if not any(len(request.prefix_hashes) for request in requests):
        return

    def name(number: int) -> str:
        if workload.trace is None:
            return f"request {number + 1:,} of the synthetic workload"
        return place_of(
            workload.skip + number,
            workload.trace,
            workload.trace_format,
            read_options(workload),
        )

    check_histories(collect_paths(requests), name)
