"""Facts of a run where they are unusual or absent; goldens of whole runs have the others."""

import pytest

from dsv4kv.runs.schema import RunRecord
from dsv4kv.view.facts import header
from tests.runs.records import (
    make_case,
    make_record,
)


def facts_of(record: RunRecord) -> dict[str, str]:
    return dict(header(record).rows)


@pytest.mark.parametrize("config", [{"workload": 1.0}, {"measure": {"threads": "x"}}])
def test_a_configuration_of_other_shapes_is_shown(config: dict[str, object]) -> None:
    assert header(make_record(make_case(config=config), trace_source=None))


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("dsv4kv bench 'a b.yaml' --set x=1", "dsv4kv bench 'a b.yaml' --set x=1"),
        ("dsv4kv bench x; touch y $(z)", "dsv4kv bench 'x;' touch y '$(z)'"),
        ("dsv4kv $(y) 'x", None),
        ("bash -c 'touch x'", None),
        ("reboot", None),
    ],
)
def test_a_recorded_command_runs_no_other(line: str, shown: str | None) -> None:
    assert facts_of(make_record(make_case(), reproduce=line)).get("repeat") == shown
