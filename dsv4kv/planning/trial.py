"""One deployment, simulated until it is clear whether it keeps the limits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from dsv4kv.choices import TRANSFERS
from dsv4kv.config.fleet import GroupSection
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.errors import ConfigError
from dsv4kv.fleet.outcome import Fates
from dsv4kv.fleet.run import FindParts, Fleet, FleetOutcome
from dsv4kv.planning.question import Question, Slo
from dsv4kv.planning.servers import Bounds, Server
from dsv4kv.replay.build import Parts, find_parts
from dsv4kv.traces.request import Request

_LOOKS = 24
"""How often a simulation looks whether it can still keep its limits."""
_EARLY = (16, 8, 4, 2)
"""Parts of the first stretch after which it looks, too: a queue is long before many are served."""


class Split(NamedTuple):
    """Replicas of a unit that compute prompts, and replicas that decode."""

    prefill: int
    decode: int


def parse_splits(texts: Sequence[str]) -> list[Split | None]:
    """Read ``none`` and ``1:2``.

    Raises:
        ConfigError: Something else.
    """
    return [None if text == "none" else _parse_split(text) for text in dict.fromkeys(texts)]


def _parse_split(text: str) -> Split:
    prefill, _, decode = text.partition(":")
    if not (prefill.isdecimal() and decode.isdecimal() and int(prefill) and int(decode)):
        raise ConfigError(
            f"--split {text}: write prefill and decode replicas, 1:2, or none for replicas that "
            "do both."
        )
    return Split(int(prefill), int(decode))


@dataclass(frozen=True)
class Kind:
    """Servers of one kind behind a router, alike or in units of prefill and decode replicas.

    Attributes:
        server: Each of them.
        router: In front.
        bounds: What no number of them undercuts.
        split: A unit; None where every replica does both.
    """

    server: Server
    router: str
    bounds: Bounds
    split: Split | None = None

    @property
    def label(self) -> str:
        """``h200 TP8 behind dynamo``, ``h200 TP8 1:2 behind dynamo``."""
        return f"{self.servers} behind {self.router}"

    @property
    def servers(self) -> str:
        """``h200 TP8``, ``h200 TP8 1:2``, ``h200 TP8 args 2``."""
        ratio = " {}:{}".format(*self.split) if self.split else ""
        return f"{self.server.label}{ratio} {self.server.variant}".rstrip()

    @property
    def gpus(self) -> int:
        """GPUs of a unit."""
        return self.server.layout.gpus * sum(self.split or (1,))

    def fewest(self, speed: float) -> int:
        """Units that can have computed the prompts when they have to be."""
        return -(-self.bounds.replicas(speed) // (self.split or (1,))[0])

    def place(self, units: int, speed: float) -> tuple[object, ...]:
        """What tells simulations apart; in front of one server a router has nothing to choose."""
        alone = units * (self.split or (1,))[0] == 1
        return self.servers, "" if alone else self.router, units, speed

    def fleet(self, units: int) -> dict[str, Any]:
        """Settings of so many."""
        if self.split is None:
            return {"replicas": units, "router": self.router}
        prefill, decode = (GroupSection(replicas=units * each) for each in self.split)
        asked = self.server.config
        family = (asked.server.engine or "").partition(":")[0]
        sends = next(name for name in TRANSFERS if name.startswith(family))
        transfer = asked.fleet.transfer.model_copy(update={"engine": sends})
        groups = {"prefill": prefill, "decode": decode}
        return {**groups, "router": self.router, "transfer": transfer}


@dataclass(frozen=True)
class Trial:
    """A deployment, simulated.

    Attributes:
        kind: Its servers.
        units: How many of them, or of their units.
        speed: How much faster than it was recorded the trace was.
        cost: GPUs, or money in an hour.
        values_s: What it has of every limited time, in s by label; empty where it was given up.
        rate: Requests a second that came.
        good: Share of requests that kept all limits asked.
        meets: Whether every limit is kept.
        requests: Requests that were simulated.
        came: Of these, those that had come before it was given up.
        served: Of these, those that were served.
    """

    kind: Kind
    units: int
    speed: float
    cost: float
    values_s: dict[str, float]
    rate: float
    good: float
    meets: bool
    requests: int
    came: int
    served: int

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.units * self.kind.gpus

    def tightest(self, slos: Sequence[Slo]) -> Slo:
        """The limit that it is nearest to."""
        return max(slos, key=lambda slo: self.values_s.get(slo.label, 0.0) / slo.limit_s)

    def under(self, slos: Sequence[Slo]) -> "Trial":
        """The same by tighter limits; ``good`` stays the share by those that were asked."""
        kept = self.meets and all(self.values_s[slo.label] <= slo.limit_s for slo in slos)
        return replace(self, meets=kept)

    def excess(self, slos: Sequence[Slo]) -> float:
        """How many times its limit the time is that breaks it most, or is nearest to it."""
        slo = self.tightest(slos)
        return self.values_s.get(slo.label, 0.0) / slo.limit_s

    def near(self, slos: Sequence[Slo]) -> list[Slo]:
        """Limits that it keeps by less than the clock may be off."""
        return [slo for slo in slos if self.values_s[slo.label] * self.error(slo) > slo.limit_s]

    def error(self, slo: Slo) -> float:
        """What the time of a limit is right within."""
        return self.kind.server.times.held_out.of(slo.name)


class _GaveUp(Exception):
    """So many requests broke a limit that it cannot be kept any more."""


def broken_too_often(so_far: FleetOutcome, slos: Sequence[Slo], count: int) -> bool:
    """Whether a limit is lost whatever becomes of the other requests."""
    samples_ns, waiting = Fates.of(so_far).samples_ns, list(_find_waiting(so_far))
    for slo in slos:
        late = sum(each > slo.limit_s * 1e9 for each in samples_ns[slo.name])
        late += sum(waits.get(slo.name, 0.0) > slo.limit_s for waits in waiting)
        if late > (1 - slo.percent / 100) * (count - 1) + 1:
            return True
    return False


def _find_waiting(so_far: FleetOutcome) -> Iterator[dict[str, float]]:
    """How long each request that is not served yet has waited already, in s by name."""
    for replica in so_far.replicas:
        for served in replica.served:
            if served.finished_s is None and so_far.answers[served.number] is served:
                waited_s = replica.now_s - so_far.prompts[served.number].arrival_s
                has_begun = served.first_token_s is not None
                yield {"latency": waited_s} | ({} if has_begun else {"ttft": waited_s})


class KnownParts:
    """Works out once what simulations of a server on the same requests have in common.

    However many replicas there are, whatever their router, and however fast the requests come.
    """

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._known: dict[tuple[str, int], Parts] = {}

    def __call__(self, config: ReplayConfig, requests: Sequence[Request]) -> Parts:
        """See ``FindParts``; of a trace and its window, which differ in length."""
        key = config.model_dump_json(exclude={"fleet", "workload"}), len(requests)
        if key not in self._known:
            self._known[key] = find_parts(config, requests)
        return self._known[key]


def simulate(
    question: Question,
    requests: Sequence[Request],
    kind: Kind,
    units: int,
    speed: float,
    find: FindParts = find_parts,
    *,
    give_up: bool = True,
) -> Trial:
    """Serve requests, until they are served or, if it may, it is clear that a limit is broken."""
    base, slos = kind.server.config, question.slos
    fleet = base.fleet.model_copy(update=kind.fleet(units))
    workload = base.workload.model_copy(update={"speed": speed})
    config = base.model_copy(update={"fleet": fleet, "workload": workload})
    every = max(1, len(requests) // _LOOKS)
    early = {every // part for part in _EARLY}

    def look(done: int) -> None:
        looks = give_up and (done % every == 0 or done in early)
        if looks and broken_too_often(made.outcome(ended=False), slos, len(requests)):
            raise _GaveUp

    made = Fleet(config, requests, look, find)
    cost = units * kind.gpus * question.price(kind.server.gpu)
    span_s = (requests[-1].arrival_s - requests[0].arrival_s) / speed
    rate = len(requests) / max(span_s, 1e-9)
    try:
        made.run()
    except _GaveUp:
        so_far, count = made.outcome(ended=False), len(requests)
        came, served = len(so_far.answers), len(Fates.of(so_far).numbers)
        return Trial(kind, units, speed, cost, {}, rate, 0.0, False, count, came, served)
    fates = Fates.of(made.outcome(ended=True))
    values = {
        slo.label: float(np.percentile(fates.samples_ns[slo.name] or [0], slo.percent)) / 1e9
        for slo in slos
    }
    asked = question.asked or slos
    limits = {slo.name: min(s.limit_s for s in asked if s.name == slo.name) for slo in asked}
    good = sum(
        all(spans.get(name, 0.0) <= limit for name, limit in limits.items())
        for spans in fates.times.values()
    )
    meets = len(fates.numbers) == len(requests)
    meets = meets and all(values[slo.label] <= slo.limit_s for slo in slos)
    share = good / len(requests)
    count, served = len(requests), len(fates.numbers)
    return Trial(kind, units, speed, cost, values, rate, share, meets, count, count, served)
