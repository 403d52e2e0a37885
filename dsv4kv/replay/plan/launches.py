"""Commands that start a planned deployment: its replicas, by role and host, and their router.

By the arguments of SGLang 0.5.23, sglang-router 0.3.2, vllm-router 0.1.17 and ai-dynamo 1.6.1.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dsv4kv.budget.layout import NODE_GPUS
from dsv4kv.config.replay import FleetSection
from dsv4kv.engines.names import family_of
from dsv4kv.replay.plan.trial import Trial
from dsv4kv.units import counted

_LISTENS = {
    "sglang": ("--host 0.0.0.0 --port", "301${i}0"),
    "vllm": ("--port", "81${i}0"),
}
"""Flags and port of the replica in place ``i`` of a host; SGLang takes more ports, from 234 above
its own, and listens on the loopback alone by default."""
_BOOTSTRAP = "89${i}8"  # of an SGLang prefill replica
_ROUTERS = {
    "sglang": {
        "round_robin": "--policy round_robin",
        "cache_aware": "--policy cache_aware --eviction-interval-secs 120",
    },
    "vllm": {
        "round_robin": "--policy round_robin",
        "cache_aware": "--policy cache_aware",
        "consistent_hashing": "--policy consistent_hash",
    },
}
_PROGRAMS = {
    "sglang": ("sglang-router 0.3.2", "python -m sglang_router.launch_router"),
    "vllm": ("vllm-router 0.1.17", "vllm-router --host 0.0.0.0"),
}
"""Project and command of the engine's own router."""
_EVENTS = '--kv-events-config \'{{{}"publisher": "zmq", "endpoint": "tcp://*:55\'${{i}}\'7"}}\''
_WORKERS = {
    "sglang": ("python -m dynamo.sglang", _EVENTS.format(""), ""),
    "vllm": (
        "python -m dynamo.vllm --model",
        _EVENTS.format('"enable_kv_cache_events": true, '),
        " --disaggregation-mode {role}",
    ),
}
"""What dynamo starts in place of an engine's program, and adds for its events and for a role."""
_FRONTENDS = {"dynamo": "", "dynamo-agentic": " --agentic"}
_DECODES = {"sglang": {"dynamo-decode": "power_of_two", "round_robin": "round_robin"}}
"""Policy of the engine's router that is nearest to a decode router."""
_NIXL = "VLLM_NIXL_SIDE_CHANNEL_PORT=56${i}0 {}"
_PORTS = {
    "sglang": {"prefill": f"{{}} --disaggregation-bootstrap-port {_BOOTSTRAP}"},
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
    host_gpus: int
    assumed: bool  # ``host_gpus`` is
    first: int = 0  # place of the first on each host

    @property
    def each(self) -> int:
        hosts = -(-self.count * self.gpus // self.host_gpus)
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
        size = f"{counted(self.host_gpus, 'GPU')}{' (assumed)' * self.assumed}"
        return f"{many} {hosts} of {size}{''.join(rest)}"

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
            return command if size == self.host_gpus else f"CUDA_VISIBLE_DEVICES={gpus} {command}"
        gpus = f"$(seq -s, $(({size}*i)) $(({size}*i+{size - 1})))" if size > 1 else "$i"
        loop = f"for i in {_span(first, self.each)}"
        return f"{loop}; do CUDA_VISIBLE_DEVICES={gpus} {command} & done"


def _host_gpus(trial: Trial, given: int | None) -> tuple[int, bool]:
    """GPUs of a host, and whether that is assumed; of a replica on several hosts, its own.

    ``given`` where that is less than the host of the GPU's coefficients, else that host's.
    """
    size, known = trial.kind.server.layout.gpus, trial.kind.server.times.coefficients.host_gpus
    if given and given <= known:
        return given, False
    return max(size, known), size > known or known == NODE_GPUS


def launches(trial: Trial, gpus: int | None = None) -> Iterator[tuple[str, str]]:
    """``2 prefill replicas``, where they are, and the command that starts them on a host.

    ``gpus`` are there, where that is given. The last are of the router; the command is ``""``
    where none is known.
    """
    server, roles, router = trial.kind.server, trial.roles, trial.kind.router
    family, fleet = family_of(server.config.server.engine or ""), server.config.fleet
    assert family is not None
    engine, size = family.name, server.layout.gpus
    if sum(roles.values()) == 1:
        yield "1 replica", server.command
        return
    # with one prefill replica there is nothing to choose
    by_dynamo = router in _FRONTENDS or roles.get("prefill") == 1
    by_dynamo &= "" in roles or fleet.decode_router == FleetSection().decode_router
    flags, port = _LISTENS[engine]
    command, of_role = f"{server.command} {flags} {port}", f" {family.launch.role}"
    if by_dynamo:
        worker, events, more = _WORKERS[engine]
        command = f"{command.replace(family.launch.program, worker, 1)} {events}"
        of_role += more
    spreads, first = dict[str, _Spread](), 0
    host_gpus, assumed = _host_gpus(trial, gpus)
    share = sum(roles.values()) * size <= host_gpus  # one host
    for role, count in roles.items():
        host = "host" if share else role or "host"
        spreads[role] = spread = _Spread(count, size, host, host_gpus, assumed, first)
        first += count if share else 0
        line = f"{command}{of_role.format(role=role)}" if role else command
        line = _PORTS[engine].get(role, "{}").replace("{}", line)
        yield f"{counted(count, f'{role} replica'.strip())}, {spread.where}", spread.start(line)
    if by_dynamo:
        label = "router (ai-dynamo 1.6.1; finds the replicas by etcd)"
        yield label, f"python -m dynamo.frontend --router-mode kv{_FRONTENDS.get(router, '')}"
    else:
        yield _router(engine, router, fleet.decode_router, spreads)


def _router(
    engine: str, router: str, decode_router: str, spreads: Mapping[str, _Spread]
) -> tuple[str, str]:
    """What a router is, and its command with the addresses of the replicas."""
    port = _LISTENS[engine][1]
    policy = _ROUTERS[engine].get(router)
    decode = _DECODES.get(engine, {}).get(decode_router)
    project, program = _PROGRAMS[engine]
    if policy and "" in spreads:
        urls = spreads[""].urls("http://", port)
        label = f"router ({project}; your hosts as URLs)"
        return label, f"{program} {policy} --worker-urls {urls}"
    if policy and decode:
        prefills = spreads["prefill"].urls("", port[:-1])
        ports = f"http://${{p}}0 {_BOOTSTRAP.replace('${i}', '${p: -1}')}"
        words = [
            f"{program} --pd-disaggregation {policy} --decode-policy {decode}",
            f"$(for p in {prefills}; do echo --prefill {ports}; done)",
            spreads["decode"].urls("--decode=http://", port),
        ]
        planned = "" if decode == decode_router else f"; planned with {decode_router}"
        return f"router ({project}; your hosts as URLs{planned})", " ".join(words)
    then = f" for prefill and {decode_router} for decode" if "prefill" in spreads else ""
    return f"router: no command is known of {router}{then}", ""
