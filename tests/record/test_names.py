"""Names of runs."""

import re
from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from dsv4kv.record.store import new_run_id

NOW = datetime(2026, 11, 21, 4, 19, 3, tzinfo=UTC)


def test_a_name_tells_time_and_configuration() -> None:
    assert re.fullmatch(r"20261121T041903Z-default-[0-9a-f]{6}", new_run_id("default", NOW))


def test_the_time_is_utc_wherever_the_run_was() -> None:
    there = NOW.astimezone(timezone(timedelta(hours=8)))
    assert new_run_id("default", there).startswith("20261121T041903Z-")


def test_two_runs_in_one_second_have_two_names() -> None:
    assert len({new_run_id("default", NOW) for _ in range(50)}) == 50


@given(st.text())
def test_any_configuration_name_gives_a_safe_file_name(name: str) -> None:
    assert re.fullmatch(
        r"20261121T041903Z-[A-Za-z0-9._-]{1,60}-[0-9a-f]{6}", new_run_id(name, NOW)
    )


def test_a_path_as_name_stays_inside_the_folder() -> None:
    assert new_run_id("../../etc/passwd", NOW)[:-7] == "20261121T041903Z-etc-passwd"
