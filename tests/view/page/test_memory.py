"""Moments of a timeline as a table."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.view.page.sections import memory_sections, moments_table
from tests.runs.records import make_case
from tests.view.page.pages import make_memory


@given(st.integers(1, 600))
def test_moments_are_few_equally_far_apart_and_hold_the_first_and_the_last(count: int) -> None:
    table = moments_table(
        [float(n) for n in range(count)], {"blocks": [str(n) for n in range(count)]}
    )
    shown = [int(row[1].value) for row in table.cells]
    assert (shown[0], shown[-1]) == (0, count - 1)
    assert len(shown) == min(count, len(shown)) <= 12
    assert len({after - before for before, after in pairwise(shown[:-1])}) <= 1
    assert all(row[0].value == f"{int(row[1].value):,.3f}" for row in table.cells)


@pytest.mark.parametrize(("count", "note"), [(5, ""), (12, ""), (24, "9 of 24 points")])
def test_a_table_says_how_many_points_it_leaves_out(count: int, note: str) -> None:
    table = moments_table([0.0] * count, {"blocks": ["1"] * count})
    assert table.note == note


def test_a_case_that_was_not_watched_has_no_section_for_it() -> None:
    sections = [section.key for section in memory_sections(make_case())]
    assert sections == ["memory"]
    memory = make_memory()
    units = [each.model_copy(update={"held": []}) for each in memory.units]
    empty = memory.model_copy(update={"at_ns": [], "units": units})
    assert [each.key for each in memory_sections(make_case(memory=empty))] == ["memory"]


def test_a_pool_named_as_what_it_is_counted_in_keeps_its_own_column() -> None:
    memory = make_memory()
    pool = memory.pools[-1].model_copy(update={"name": "slots"})
    *_, section = memory_sections(make_case(memory=memory.model_copy(update={"pools": [pool]})))
    headers = [column.header for column in section.tables["moments-table"].columns]
    assert headers == ["s", "blocks", "slots", "cached blocks", "slots, bytes"]
