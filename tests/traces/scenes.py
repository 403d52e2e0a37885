"""What several tests of traces need."""

from collections.abc import Iterable

from dsv4kv.traces import TraceSummary, summarize_batches
from dsv4kv.traces.paths import batches_of
from dsv4kv.traces.request import Request


def summarize(requests: Iterable[Request]) -> TraceSummary:
    return summarize_batches(batches_of(requests), "request {}".format)
