"""Commands that start a planned deployment: its replicas, by role and host, and their router.

By the arguments of SGLang 0.5.23, sglang-router 0.3.2, vllm-router 0.1.17 and ai-dynamo 1.6.1.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from dsv4kv.config.fleet import FleetSection
from dsv4kv.engines.names import family_of
from dsv4kv.replay.plan.servers import SIZES
from dsv4kv.replay.plan.trial import Trial
from dsv4kv.units import counted

_HOST_GPUS = max(SIZES)
_LISTENS = {"sglang": "--host 0.0.0.0 --port 301${i}0", "vllm": "--port 81${i}0"}
"""Of the replica in place ``i`` of a host; SGLang takes more ports, from 234 above its own, and
listens on the loopback alone by default."""
_ROUTERS = {
    "sglang": {
        "round_robin": "--policy round_robin",
        "cache_aware": "--policy cache_aware --eviction-interval-secs 120",
    },
    "vllm": {"round_robin": "--policy round_robin"},
}
_PROGRAMS = {
    "sglang": ("sglang-router 0.3.2", "python -m sglang_router.launch_router"),
    "vllm": ("vllm-router 0.1.17", "vllm-router --host 0.0.0.0"),
}
"""Project and command of the engine's own router."""
_EVENTS = '--kv-events-config \'{{{}"publisher": "zmq", "endpoint": "tcp://*:55\'${{i}}\'7"}}\''
_WORKERS = {
    "sglang": ("python -m dynamo.sglang", f"{_LISTENS['sglang']} {_EVENTS.format('')}", ""),
    "vllm": (
        "python -m dynamo.vllm --model",
        _EVENTS.format('"enable_kv_cache_events": true, '),
        " --disaggregation-mode {role}",
    ),
}
"""What dynamo starts in place of an engine's program, and adds for its events and for a role."""
_AS_STARTED = ("dynamo", "gateway", "router_session_affinity_ttl_secs")
"""Settings that no command here says: they must be the defaults."""
_DECODES = {"sglang": {"dynamo-decode": "power_of_two", "round_robin": "round_robin"}}
"""Policy of the engine's router that is nearest to a decode router."""
_NIXL = "VLLM_NIXL_SIDE_CHANNEL_PORT=56${i}0 {}"
_PORTS = {
    "sglang": {"prefill": "{} --disaggregation-bootstrap-port 89${i}8"},
    "vllm": {"prefill": _NIXL, "decode": _NIXL},
}
"""A command with the ports that a transfer takes on a host."""


def _span(first: int, count: int) -> str:
    return f"{{{first}..{first + count - 1}}}" if count > 1 else f"{first}"


@dataclass(frozen=True)
class _Spread:
    """Replicas of ``gpus`` GPUs on as few hosts as hold them, with fewer on the last at most."""

    count: int
    gpus: int
    host: str
    first: int = 0  # place of the first on each host

    @property
    def each(self) -> int:
        hosts = -(-self.count * self.gpus // _HOST_GPUS)
        return -(-self.count // hosts)

    @property
    def groups(self) -> list[tuple[str, int]]:
        """``host{1..2}`` and how many replicas each has."""
        full, rest = divmod(self.count, self.each)
        last = [(f"{self.host}{full + 1}", rest)] if rest else []
        return [(f"{self.host}{_span(1, full)}", self.each), *last]

    @property
    def where(self) -> str:
        (hosts, each), *last = self.groups
        many = f"{each} on each of" if "{" in hosts else f"{each} on" if last else "on"
        rest = [f", {count} on {host} (for i in {{0..{count - 1}}})" for host, count in last]
        return f"{many} {hosts} of {_HOST_GPUS} GPUs{''.join(rest)}"

    def urls(self, before: str, port: str) -> str:
        """Addresses of all, in bash's braces."""
        return " ".join(
            f"{before}{hosts}:{port.replace('${i}', _span(self.first, count))}"
            for hosts, count in self.groups
        )

    def start(self, command: str) -> str:
        """One line that starts the replicas of a host, each on GPUs of its own."""
        size, first = self.gpus, self.first
        if self.each == 1:
            command = command.replace("'${i}'", f"{first}").replace("${i}", f"{first}")
            gpus = ",".join(map(str, range(first * size, first * size + size)))
            return command if size == _HOST_GPUS else f"CUDA_VISIBLE_DEVICES={gpus} {command}"
        gpus = f"$(seq -s, $(({size}*i)) $(({size}*i+{size - 1})))" if size > 1 else "$i"
        loop = f"for i in {_span(first, self.each)}"
        return f"{loop}; do CUDA_VISIBLE_DEVICES={gpus} {command} & done"


def launches(trial: Trial) -> Iterator[tuple[str, str]]:
    """``2 prefill replicas``, where they are, and the command that starts them on a host.

    The last are of the router; the command is ``""`` where none is known.
    """
    server, roles, router = trial.kind.server, trial.roles, trial.kind.router
    family, fleet = family_of(server.config.server.engine or ""), server.config.fleet
    assert family is not None
    engine, size = family.name, server.layout.gpus
    if sum(roles.values()) == 1:
        yield "1 replica", server.command
        return
    chosen = FleetSection()
    known = all(getattr(fleet, each) == getattr(chosen, each) for each in _AS_STARTED)
    by_dynamo = known and (router == "dynamo" or roles.get("prefill") == 1)  # nothing to choose
    by_dynamo &= "" in roles or fleet.decode_router == chosen.decode_router
    command, of_role = f"{server.command} {_LISTENS[engine]}", f" {family.launch.role}"
    if by_dynamo:
        worker, events, more = _WORKERS[engine]
        command = f"{server.command.replace(family.launch.program, worker, 1)} {events}"
        of_role += more
    spreads, first = dict[str, _Spread](), 0
    share = sum(roles.values()) * size <= _HOST_GPUS  # one host
    for role, count in roles.items():
        spreads[role] = spread = _Spread(count, size, "host" if share else role or "host", first)
        first += count if share else 0
        line = f"{command}{of_role.format(role=role)}" if role else command
        line = _PORTS[engine].get(role, "{}").replace("{}", line)
        yield f"{counted(count, f'{role} replica'.strip())}, {spread.where}", spread.start(line)
    policy = _ROUTERS[engine].get(router)
    decode = _DECODES.get(engine, {}).get(fleet.decode_router)
    project, program = _PROGRAMS[engine]
    if by_dynamo:
        label = "router (ai-dynamo 1.6.1; finds the replicas by etcd)"
        yield label, "python -m dynamo.frontend --router-mode kv"
    elif policy and known and "prefill" not in roles:
        urls = spreads[""].urls("http://", _LISTENS[engine].rpartition(" ")[2])
        yield f"router ({project}; your hosts as URLs)", f"{program} {policy} --worker-urls {urls}"
    elif policy and known and decode:
        prefills = spreads["prefill"].urls("", "301${i}")
        words = [
            f"{program} --pd-disaggregation {policy} --decode-policy {decode}",
            f"$(for p in {prefills}; do echo --prefill http://${{p}}0 89${{p: -1}}8; done)",
            spreads["decode"].urls("--decode=http://", "301${i}0"),
        ]
        planned = "" if decode == fleet.decode_router else f"; planned with {fleet.decode_router}"
        yield f"router ({project}; your hosts as URLs{planned})", " ".join(words)
    else:
        settings = "" if known else ", with these settings,"
        then = f", then {fleet.decode_router}," if "prefill" in roles else ""
        yield f"router: no launch command of {router}{then}{settings} is known here", ""
