"""Where a decode step's bytes and time go, by kind of work."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dsv4kv.measure.statistics import summarize
from dsv4kv.record.schema import Case, Operation

KINDS: dict[str, tuple[str, ...]] = {
    "scores": ("indexer_query", "index_scores"),
    "top-k": ("select_blocks", "select_topk"),
    "attention": ("attend",),
    "gathers": ("indexer_gather_all", "gather_all", "gather_topk", "gather_window"),
    "write": (),  # all others
}
"""Operations of a decode step by kind, in the order of a step."""

BOOKKEEPING = "bookkeeping"


@dataclass(frozen=True)
class StepShare:
    """What one kind of work takes of a decode step, of all layers held and all requests.

    Attributes:
        kind: One of ``KINDS``, or ``BOOKKEEPING``.
        bytes: Useful bytes, by the byte model.
        ns: Time: the mean on a CPU, the sum of the operations' medians on a GPU.
    """

    kind: str
    bytes: float
    ns: float


def step_shares(case: Case) -> list[StepShare]:
    """The kinds that a step has, bookkeeping last; nothing where no step is like another.

    On a CPU the contexts must be placed: else operations of prompts are among the samples. On a
    GPU operations were timed one by one, on requests as long as the pools hold.
    """
    found = {kind: StepShare(kind, 0, 0) for kind in KINDS}
    for each in case.operations:
        calls, size, time_ns = per_step(case, each)
        if calls:
            kind = kind_of(each.name)
            share = found[kind]
            found[kind] = replace(share, bytes=share.bytes + size, ns=share.ns + time_ns)
    shares = [share for share in found.values() if share.ns]
    return [*shares, StepShare(BOOKKEEPING, 0, _bookkeeping_ns(case))] if shares else []


def kind_of(name: str) -> str:
    """The kind of an operation, by its name."""
    return next((kind for kind, names in KINDS.items() if name in names), "write")


def per_step(case: Case, operation: Operation) -> tuple[float, float, float]:
    """Calls of an operation in one step, their bytes, and their time in ns; zeros if unknown."""
    samples = operation.samples_ns
    if operation.temperature is not None:
        calls = operation.calls_per_step or 0
        if operation.temperature == "hot" or not samples:
            return 0, 0, 0
        return calls, calls * operation.bytes[0], calls * summarize(samples).median
    steps = len(_samples(case, "decode_step"))
    workload = case.config.get("workload")
    if not steps or not isinstance(workload, dict) or not workload.get("context"):
        return 0, 0, 0
    return len(samples) / steps, sum(operation.bytes) / steps, sum(samples) / steps


def _bookkeeping_ns(case: Case) -> float:
    samples = _samples(case, "prepare")
    return sum(samples) / len(samples) if samples else 0


def _samples(case: Case, name: str) -> Sequence[int]:
    return next((each.samples_ns for each in case.latencies if each.name == name), [])
