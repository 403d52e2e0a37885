"""Healthy streams come through whole beside clients and servers that mean it ill."""

import asyncio

import pytest

from tests.record.stress import run


@pytest.mark.slow
def test_healthy_streams_are_whole_and_nobody_elses_beside_hostile_ones() -> None:
    requests = 150
    found = asyncio.run(run(requests, 60.0, 4))
    assert found.wrong == {}
    assert found.whole == found.rows == requests
    assert not any("smuggled" in path for path in found.seen)
    assert found.rss[-1] < found.rss[1] + 32, found.rss
