"""What was held over time, in bytes and as a table."""

import pytest
from pydantic import ValidationError

from dsv4kv.runs.telemetry import HeldPool, HeldUnits, MemorySeries
from dsv4kv.view.telemetry import held_table, pool_sizes
from tests.runs.records import make_case, make_record
from tests.view.page.pages import make_memory
from tests.view.terminal import shown, told


def test_pools_of_a_name_are_added_up_over_their_layer_types_and_units() -> None:
    memory = make_memory()
    checkpoint = HeldPool(name="state", layer_type="all", unit="blocks", unit_bytes=1)
    both = memory.model_copy(update={"pools": [*memory.pools, checkpoint]})
    assert pool_sizes(both) == {
        "main": [0, 120 << 20, 160 << 20],
        "state": [1 << 24, (2 << 24) + 60, (1 << 24) + 80],
    }


def test_a_row_tells_first_most_last_and_the_bytes_at_most() -> None:
    rows = [line.split() for line in shown(held_table(make_memory())).splitlines()]
    assert ["blocks", "100", "0", "80", "(80.0", "%)", "80", "160", "MiB", "▆█"] in rows
    assert ["slots", "2", "1", "2", "(100.0", "%)", "1", "32.0", "MiB", "▄█▄"] in rows
    assert ["cached", "blocks", "100", "0", "70", "(70.0", "%)", "70", "–", "▄█"] in rows


def test_a_terminal_shows_the_memory_of_a_case_that_was_watched() -> None:
    assert "Memory over time" in told(make_record(make_case(memory=make_memory())))
    assert "Memory over time" not in told(make_record())


def test_what_a_point_stands_for_is_told() -> None:
    each = held_table(make_memory()).note
    many = held_table(make_memory().model_copy(update={"stride_steps": 2048})).note
    assert each == "a point per step"
    assert many == "a point per 2,048 steps, the fullest of them"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"at_ns": [0, 1]}, "2 moments and series of {'blocks': 1}"),
        ({"pools": [HeldPool(name="main", layer_type="csa", unit="pages", unit_bytes=1)]},
         "counted in pages, which is absent"),
    ],
)  # fmt: skip
def test_a_series_that_contradicts_itself_is_refused(
    changes: dict[str, object], sentence: str
) -> None:
    fields: dict[str, object] = {
        "stride_steps": 1,
        "at_ns": [0],
        "units": [HeldUnits(name="blocks", units=2, held=[1])],
        "pools": [],
    }
    with pytest.raises(ValidationError, match=sentence):
        MemorySeries.model_validate(fields | changes)
