"""Made-up records of several launches, for tests of comparisons."""

from collections.abc import Sequence
from random import Random
from typing import Any

from dsv4kv.bench.compare.comparison import Side
from dsv4kv.runs.schema import Case, Launch, Operation, RunRecord
from tests.runs.records import make_case, make_latency, make_record

OPERATIONS = {"gather_topk": 400_000, "flush": 90_000, "window_insert": 30_000}


def make_launched_case(
    launch: int, factors: dict[str, float], seed: int, spread: float = 0.003, **changes: Any
) -> Case:
    """Three operations and a step; ``factors`` slow some of them down in this launch."""
    random = Random(f"{seed} {launch}")
    operations = []
    for name, median_ns in OPERATIONS.items():
        factor = factors.get(name, 1.0) * random.gauss(1, spread)
        samples_ns = [round(median_ns * factor * random.uniform(0.98, 1.02)) for _ in range(51)]
        operations.append(
            Operation(
                name=name,
                layer_type="csa",
                samples_ns=samples_ns,
                entries=[64] * 51,
                bytes=[74_752] * 51,
            )
        )
    step = round(2_000_000 * factors.get("step", 1.0) * random.gauss(1, spread))
    facts: dict[str, Any] = {
        "launch": launch,
        "operations": operations,
        "latencies": [make_latency("step", samples=51, median_ns=step)],
    }
    return make_case(**facts | changes)


def make_launches(count: int) -> list[Launch]:
    """One launch a minute."""
    return [
        Launch(
            pair="",
            launch=index,
            started_utc=f"2026-11-21T04:{index:02}:00+00:00",
            ended_utc=f"2026-11-21T04:{index:02}:09+00:00",
            status="complete",
            error=None,
        )
        for index in range(count)
    ]


def make_launched_record(
    count: int = 7,
    *,
    factors: dict[str, float] | None = None,
    seed: int = 0,
    cases: Sequence[Case] | None = None,
    **changes: Any,
) -> RunRecord:
    """A run of several launches."""
    made = [make_launched_case(launch, factors or {}, seed) for launch in range(count)]
    facts: dict[str, Any] = {"launches": make_launches(count), "run_id": f"run-{seed}"}
    return make_record(*(made if cases is None else cases), **facts | changes)


def make_side(name: str, *records: RunRecord) -> Side:
    return Side(name, records)
