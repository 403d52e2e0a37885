"""Commands of a planned deployment start the layouts that were planned, and their router."""

import re
import subprocess
from itertools import chain
from typing import NamedTuple

import pytest

from dsv4kv.budget.inputs import read_inputs
from dsv4kv.budget.launch import read_command
from dsv4kv.budget.layout import Layout
from dsv4kv.budget.scenario import resolve
from dsv4kv.replay.plan.launches import launches
from dsv4kv.replay.plan.trial import Bounds, Kind, Split, Trial, open_server
from tests.replay.plan.test_plan import SETTINGS, question

DYNAMO = "python -m dynamo.frontend --router-mode kv"
GATEWAY = "python -m sglang_router.launch_router --policy"
PD = "python -m sglang_router.launch_router --pd-disaggregation --policy"
PORTS = ("--port", "--disaggregation-bootstrap-port", "--kv-events-config", "SIDE_CHANNEL_PORT")
SHELL = r"""
python() { echo "$CUDA_VISIBLE_DEVICES SIDE_CHANNEL_PORT $VLLM_NIXL_SIDE_CHANNEL_PORT $*"; }
vllm() { python "$@"; }
"""


class Started(NamedTuple):
    """A replica, as bash starts it: its host, its GPUs there and the ports that it takes."""

    host: str
    gpus: tuple[int, ...]
    ports: dict[str, int]


def bash(script: str) -> list[str]:
    """Lines that a script prints."""
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def start(whose: str, command: str) -> list[Started]:
    """Start a line on each host that its label names."""
    found = list[Started]()
    on = r" on (?:each of )?(\w+(?:\{\S+\})?)(?: \((for i in \S+)\))?"
    for hosts, loop in re.findall(on, whose):
        for host in bash(f"printf '%s\\n' {hosts}"):
            there = re.sub("for i in [^;]+", loop, command) if loop else command
            for line in bash(f"{SHELL}{there}\nwait"):
                gpus, _, words = line.partition(" ")
                ports = {n: re.search(rf"{n} (?:\{{.*tcp://\*:)?(\d+)", words) for n in PORTS}
                mine = tuple(map(int, gpus.split(","))) if gpus else tuple(range(8))
                found.append(Started(host, mine, {n: int(p[1]) for n, p in ports.items() if p}))
    return found


def trial_of(
    engine: str,
    router: str,
    split: Split | None,
    units: int,
    layout: Layout,
    *settings: str,
    gpu: str = "b300",
) -> Trial:
    asked = question(1, "ttft_p90=2s")
    server = open_server(asked, [*SETTINGS, *settings], engine, gpu, layout)
    kind = Kind(server, router, Bounds(server, asked), split)
    return Trial(kind, units, 1.0, 1.0, {}, 1.0, 1.0, meets=True, requests=1, came=1, served=1)


@pytest.mark.parametrize(
    ("engine", "router", "split", "units", "started"),
    [
        ("sglang", "dynamo", None, 1, ""),  # alone
        ("sglang", "round_robin", None, 2, f"{GATEWAY} round_robin --worker-urls"),
        ("sglang:0.5.20", "cache_aware", None, 3, f"{GATEWAY} cache_aware --eviction-interval-"),
        ("vllm", "round_robin", None, 2, "vllm-router --host 0.0.0.0 --policy round_robin"),
        ("vllm", "cache_aware", None, 2, "vllm-router --host 0.0.0.0 --policy cache_aware"),
        ("vllm", "dynamo-agentic", None, 2, f"{DYNAMO} --agentic"),
        ("vllm", "dynamo-decode", None, 2, None),
        ("vllm", "llm-d:precise", None, 2, None),
        ("sglang", "dynamo", None, 2, DYNAMO),
        ("vllm", "dynamo", Split(1, 2), 2, DYNAMO),
        ("sglang", "round_robin", Split(1, 2), 1, DYNAMO),  # one prefill replica, no choice
        ("sglang", "round_robin", Split(1, 2), 2, f"{PD} round_robin --decode-policy power_"),
        ("sglang", "least_loaded", Split(1, 1), 2, None),
        ("vllm", "round_robin", Split(1, 2), 2, None),
        ("sglang", "least_loaded", None, 2, None),
    ],
)
@pytest.mark.parametrize("layout", [Layout(tp=2, dp=2, ep=4), Layout(tp=8)], ids=str)
def test_every_replica_and_the_router_have_a_command(
    engine: str, router: str, split: Split | None, units: int, started: str | None, layout: Layout
) -> None:
    commands = dict(launches(trial_of(engine, router, split, units, layout)))
    for role in split._fields if split else ("",):
        (command,) = (each for whose, each in commands.items() if f"{role} replica" in whose[:18])
        (scenario,) = resolve(read_inputs({**read_command(command).texts, "gpu": "b300"}))
        assert scenario.layout == layout
        assert ("dynamo." in command) == (started or "").startswith(DYNAMO)
    last, command = commands.popitem()
    if started:
        assert command.startswith(started)
    else:
        assert "router" not in last or (command == "" and router in last)


@pytest.mark.parametrize(
    ("engine", "layout"),
    [
        ("sglang", Layout(tp=1)),
        ("sglang", Layout(tp=1, dp=2, ep=2)),
        ("vllm", Layout(tp=2)),
        ("vllm", Layout(tp=1, dp=4, ep=4)),
    ],
    ids=str,
)
@pytest.mark.parametrize("router", ["round_robin", "dynamo"])
@pytest.mark.parametrize(
    ("split", "units"),
    [(None, 2), (None, 7), (None, 12), (None, 17), *((Split(1, 2), n) for n in (1, 2, 4, 9))],
)
def test_replicas_share_no_gpu_and_no_port_and_the_router_reaches_them(
    engine: str, router: str, split: Split | None, units: int, layout: Layout
) -> None:
    trial = trial_of(engine, router, split, units, layout)
    *replicas, (_, route) = launches(trial)
    roles = [sorted(start(*each)) for each in replicas]  # bash starts many at once
    assert list(map(len, roles)) == list(trial.roles.values())
    everyone = [*chain(*roles)]
    gpus = [(each.host, gpu) for each in everyone for gpu in each.gpus]
    assert len(set(gpus)) == len(gpus) == trial.gpus
    assert {gpu for _, gpu in gpus} <= set(range(8))
    for name in PORTS:  # a rank of data parallelism takes the next one
        taken = [(e.host, e.ports[name] // 10) for e in everyone if name in e.ports]
        assert len(set(taken)) == len(taken)
    listens = [f"http://{each.host}:{each.ports.get('--port')}" for each in everyone]
    if not route:
        assert (engine, split) == ("vllm", Split(1, 2))
    elif "dynamo" in route:
        assert all("--kv-events-config" in each.ports for each in everyone)
    else:
        said = bash("printf '%s\\n' " + route)
        for way, role in zip(("--prefill", "--decode") if split else ("",), roles, strict=True):
            urls = [word for word in said if word.startswith("http://")]
            if way == "--prefill":
                boot = [said[said.index(url) + 1] for url in urls]
                assert boot == [f"{e.ports['--disaggregation-bootstrap-port']}" for e in role]
            elif way == "--decode":
                urls = [w.removeprefix("--decode=") for w in said if w.startswith("--decode=")]
            assert urls == listens[: len(role)]
            del listens[: len(role)]


@pytest.mark.parametrize(
    ("given", "gpu", "tp", "units", "where"),
    [
        (None, "b300", 2, 3, "on host1 of 8 GPUs (assumed)"),
        (6, "b300", 2, 3, "on host1 of 6 GPUs"),
        (16, "b300", 2, 3, "on host1 of 8 GPUs (assumed)"),
        (None, "gb300", 4, 2, "1 on each of host{1..2} of 4 GPUs"),
        (None, "gb300", 8, 2, "1 on each of host{1..2} of 8 GPUs (assumed)"),
    ],
)
def test_a_host_has_the_gpus_that_are_given_or_known_or_is_said_to_be_assumed(
    given: int | None, gpu: str, tp: int, units: int, where: str
) -> None:
    trial = trial_of("sglang", "round_robin", None, units, Layout(tp=tp), gpu=gpu)
    assert next(launches(trial, given))[0] == f"{units} replicas, {where}"
