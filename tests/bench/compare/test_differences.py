"""What two sides must share, and how it is told when they do not."""

from typing import Any

import pytest

from dsv4kv.bench.compare.comparison import list_differences
from dsv4kv.runs.schema import RunRecord
from tests.bench.compare.launched import make_launched_case, make_launched_record, make_side
from tests.runs.records import H200, make_environment


def told(before: RunRecord, after: RunRecord) -> list[str]:
    return [str(d) for d in list_differences(make_side("A", before), make_side("B", after))]


def on(**environment: Any) -> RunRecord:
    return make_launched_record(environment=make_environment(**environment))


def configured(**changes: Any) -> RunRecord:
    """A run whose configuration has some top-level values changed, or taken out with None."""
    case = make_launched_case(0, {}, 0)
    config = {k: v for k, v in (case.config | changes).items() if v != "taken out"}
    return make_launched_record(cases=[case.model_copy(update={"config": config})])


def test_a_run_is_like_another_of_the_same_machine_and_configuration() -> None:
    assert told(make_launched_record(seed=1), make_launched_record(seed=2)) == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"cpu": "Arm Neoverse-V2"}, "cpu: AMD EPYC 9554 against Arm Neoverse-V2"),
        ({"governor": "powersave"}, "governor: unknown against powersave"),
        ({"hostname_sha256": "1" * 64}, f"hostname_sha256: {'0' * 64} against {'1' * 64}"),
        ({"variables": {}}, "variables.OMP_NUM_THREADS: 1 against not there"),
        ({"gpu": H200}, "gpu.name: none against NVIDIA H200"),
        (
            {"versions": {"dsv4kv": "0.1.0", "torch": "2.14.0", "numpy": "2.4.6"}},
            "versions.torch: 2.13.0+cpu against 2.14.0",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_another_machine_or_software_is_told_by_field(
    changes: dict[str, Any], sentence: str
) -> None:
    assert f"machine: {sentence}" in told(on(), on(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"git_sha": "f" * 40},
        {"git_dirty": False},
        {"load_1min": 9.0},
        {"versions": make_environment().versions | {"dsv4kv": "0.2.0"}},
    ],
    ids=lambda value: next(iter(value)),
)
def test_another_revision_and_another_load_are_no_difference(changes: dict[str, Any]) -> None:
    assert told(on(), on(**changes)) == []


def test_a_setting_that_one_version_does_not_know_is_told_and_does_not_matter() -> None:
    (difference,) = list_differences(
        make_side("A", configured(backend="taken out")), make_side("B", configured())
    )
    assert difference.kind == "unknown"
    assert str(difference) == "unknown: backend: not there against unknown"


def test_a_side_that_mixes_machines_is_told_even_if_the_other_mixes_the_same() -> None:
    sides = [make_side(name, on(cpu="one"), on(cpu="another")) for name in "AB"]
    assert [str(d) for d in list_differences(*sides)] == [
        "machine: cpu: one or another against one or another"
    ]
