"""Commands of a planned deployment start the layouts that were planned, and their router."""

import pytest

from dsv4kv.budget.inputs import read_inputs
from dsv4kv.budget.launch import read_command
from dsv4kv.budget.layout import Layout
from dsv4kv.budget.scenario import resolve
from dsv4kv.replay.plan.launches import launches
from dsv4kv.replay.plan.servers import Bounds, open_server
from dsv4kv.replay.plan.trial import Kind, Split, Trial
from tests.replay.plan.test_plan import SETTINGS, question

DYNAMO = "python -m dynamo.frontend --router-mode kv"
GATEWAY = "python -m sglang_router.launch_router --policy"


@pytest.mark.parametrize(
    ("engine", "router", "split", "units", "started"),
    [
        ("sglang", "dynamo", None, 1, ""),  # alone
        ("sglang", "round_robin", None, 2, f"{GATEWAY} round_robin --worker-urls"),
        ("sglang:0.5.20", "cache_aware", None, 3, f"{GATEWAY} cache_aware --eviction-interval-"),
        ("vllm", "round_robin", None, 2, "vllm-router --policy round_robin --worker-urls"),
        ("vllm", "cache_aware", None, 2, None),
        ("sglang", "dynamo", None, 2, DYNAMO),
        ("vllm", "dynamo", Split(1, 2), 2, DYNAMO),
        ("sglang", "round_robin", Split(1, 2), 1, DYNAMO),  # one prefill replica, no choice
        ("sglang", "round_robin", Split(1, 2), 2, None),
        ("sglang", "least_loaded", None, 2, None),
    ],
)
@pytest.mark.parametrize("layout", [Layout(tp=4), Layout(tp=2, dp=2, ep=4)])
def test_every_replica_and_the_router_have_a_command(
    engine: str, router: str, split: Split | None, units: int, started: str | None, layout: Layout
) -> None:
    asked = question(1, "ttft_p90=2s")
    server = open_server(asked, SETTINGS, engine, "b200", layout)
    kind = Kind(server, router, Bounds(server, asked), split)
    trial = Trial(kind, units, 1.0, 1.0, {}, 1.0, 1.0, meets=True, requests=1, came=1, served=1)
    commands = dict(launches(trial))
    for role in split._fields if split else ("",):
        (command,) = (each for whose, each in commands.items() if f"{role} replica" in whose[:18])
        (scenario,) = resolve(read_inputs({**read_command(command).texts, "gpu": "b200"}))
        assert scenario.layout == layout
        assert ("dynamo." in command) == (started == DYNAMO)
    last, command = commands.popitem()
    if started:
        assert command.startswith(started)
        assert router == "dynamo" or split or f"{{1..{units}}}" in command
    else:
        assert "router" not in last or (command == "" and f"of {router}" in last)
