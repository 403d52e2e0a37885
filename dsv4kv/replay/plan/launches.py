"""Commands that start a planned deployment: its replicas, by role, and their router.

By the arguments of sglang-router 0.3.2, vllm-router 0.1.17 and ai-dynamo 1.6.1.
"""

from collections.abc import Iterator

from dsv4kv.config.fleet import FleetSection
from dsv4kv.engines.names import family_of
from dsv4kv.replay.plan.trial import Trial
from dsv4kv.units import counted

_SGLANG = "python -m sglang_router.launch_router --policy"
_GATEWAYS = {
    ("sglang", "round_robin"): ("sglang-router 0.3.2", f"{_SGLANG} round_robin", 30_000),
    ("sglang", "cache_aware"): (
        "sglang-router 0.3.2", f"{_SGLANG} cache_aware --eviction-interval-secs 120", 30_000
    ),
    ("vllm", "round_robin"): ("vllm-router 0.1.17", "vllm-router --policy round_robin", 8000),
}  # fmt: skip
"""Project, command and port of a replica, by engine and router."""
_EVENTS = '--kv-events-config \'{{{}"publisher": "zmq", "endpoint": "tcp://*:5557"}}\''
_WORKERS = {
    "sglang": ("python -m dynamo.sglang", _EVENTS.format(""), ""),
    "vllm": (
        "python -m dynamo.vllm --model",
        _EVENTS.format('"enable_kv_cache_events": true, '),
        " --disaggregation-mode {role}",
    ),
}
"""What dynamo starts in place of an engine's program, and adds for its events and for a role."""
_AS_STARTED = ("decode_router", "dynamo", "gateway", "router_session_affinity_ttl_secs")
"""Settings that no command here says: they must be the defaults."""


def launches(trial: Trial) -> Iterator[tuple[str, str]]:
    """``2 prefill replicas`` and the command that starts one; ``""`` where none is known."""
    server, roles, router = trial.kind.server, trial.roles, trial.kind.router
    family, fleet = family_of(server.config.server.engine or ""), server.config.fleet
    assert family is not None
    program, name = family.launch.program, family.name
    prefill = next(iter(roles.values()))
    by_dynamo = router == "dynamo" or ("" not in roles and prefill == 1)  # nothing to choose
    known = all(getattr(fleet, each) == getattr(FleetSection(), each) for each in _AS_STARTED)
    gateway = None if "prefill" in roles else _GATEWAYS.get((name, router))
    alone = sum(roles.values()) == 1
    for role, count in roles.items():
        command, more = server.command, family.launch.role.format(role=role) if role else ""
        if by_dynamo and known and not alone:
            worker, events, said = _WORKERS[name]
            command = f"{command.replace(program, worker, 1)} {events}"
            more += said.format(role=role) if role else ""
        yield counted(count, f"{role} replica".strip()), f"{command} {more}".rstrip()
    if alone:
        return
    if by_dynamo and known:
        label = "router (ai-dynamo 1.6.1; finds the replicas by etcd)"
        yield label, "python -m dynamo.frontend --router-mode kv"
    elif gateway and known:
        project, command, port = gateway
        urls = f"http://replica{{1..{prefill}}}:{port}"
        yield f"router ({project}; your hosts as URLs)", f"{command} --worker-urls {urls}"
    else:
        settings = "" if known else ", with these settings,"
        decode = f", then {fleet.decode_router}," if "prefill" in roles else ""
        yield f"router: no launch command of {router}{decode}{settings} is known here", ""
