"""A fleet that has served a trace."""

from collections.abc import Sequence

from dsv4kv.config.replay import ReplayConfig
from dsv4kv.replay.fleet.run import Fleet
from dsv4kv.traces.request import Request


def run_fleet(config: ReplayConfig, requests: Sequence[Request]) -> Fleet:
    fleet = Fleet(config, requests)
    for _ in fleet.run():
        pass
    return fleet
