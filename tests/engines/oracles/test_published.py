"""The engines' publishers send, and their managers answer, what is kept of them."""

import pytest

from dsv4kv.record.events import Event, Removed, Stored, unpack
from tests.engines.oracles.asking import needs_engines
from tests.engines.oracles.published import RULES, Workload, published, read_published


def shape(event: Event) -> tuple[str, int | None, int]:
    """An event without names: the engine draws a new seed for them."""
    blocks = len(event.hashes) if isinstance(event, Stored | Removed) else 0
    return type(event).__name__, getattr(event, "group", None), blocks


def shapes(workload: Workload) -> list[list[tuple[str, int | None, int]]]:
    return [[shape(event) for event in unpack(frames[-1]).events] for frames in workload.frames]


@needs_engines
@pytest.mark.parametrize(("engine", "rule"), [(e, r) for e, rs in RULES.items() for r in rs])
def test_the_engines_publish_and_answer_as_recorded(engine: str, rule: str) -> None:
    again = published(engine, rule)
    kept = [workload for workload in read_published(engine) if workload.rule == rule]
    assert [workload.hits for workload in again] == [workload.hits for workload in kept]
    assert list(map(shapes, again)) == list(map(shapes, kept))
