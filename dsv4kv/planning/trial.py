"""One deployment, simulated until it is clear whether it keeps the limits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import add, gt
from typing import Any, NamedTuple, Self

import numpy as np

from dsv4kv.choices import TRANSFERS
from dsv4kv.config.fleet import GroupSection
from dsv4kv.errors import ConfigError
from dsv4kv.fleet.outcome import Fates
from dsv4kv.fleet.run import FindParts, Fleet, FleetOutcome
from dsv4kv.planning.question import Question, Slo
from dsv4kv.planning.servers import Bounds, Server
from dsv4kv.replay.build import find_parts
from dsv4kv.replay.requests import Served
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
class Seen:
    """What a simulation has found.

    Attributes:
        values_s: What requests have of every limited time, in s by label; empty where it was
            given up.
        rate: Requests a second that came.
        good: Share of requests that kept all limits asked.
        meets: Whether every limit is kept.
        requests: Requests that were simulated.
        came: Of these, those that had come before it was given up.
        served: Of these, those that were served.
    """

    values_s: dict[str, float]
    rate: float
    good: float
    meets: bool
    requests: int
    came: int
    served: int

    def tightest(self, slos: Sequence[Slo]) -> Slo:
        """The limit that it is nearest to."""
        return max(slos, key=lambda slo: self.values_s.get(slo.label, 0.0) / slo.limit_s)

    def excess(self, slos: Sequence[Slo]) -> float:
        """How many times its limit the time is that breaks it most, or is nearest to it."""
        slo = self.tightest(slos)
        return self.values_s.get(slo.label, 0.0) / slo.limit_s

    def under(self, slos: Sequence[Slo]) -> Self:
        """The same by tighter limits; ``good`` stays the share by those that were asked."""
        kept = self.meets and all(self.values_s[slo.label] <= slo.limit_s for slo in slos)
        return replace(self, meets=kept)


@dataclass(frozen=True)
class Trial(Seen):
    """A deployment, simulated.

    Attributes:
        kind: Its servers.
        units: How many of them, or of their units.
        speed: How much faster than it was recorded the trace was.
        cost: GPUs, or money in an hour.
    """

    kind: Kind
    units: int
    speed: float
    cost: float

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.units * self.kind.gpus

    def near(self, slos: Sequence[Slo]) -> list[Slo]:
        """Limits that it keeps by less than the clock may be off."""
        return [slo for slo in slos if self.values_s[slo.label] * self.error(slo) > slo.limit_s]

    def error(self, slo: Slo) -> float:
        """What the time of a limit is right within."""
        return self.kind.server.times.held_out.of(slo.name)


class _GaveUp(Exception):
    """So many requests broke a limit that it cannot be kept any more."""


class Watch:
    """Counts requests that break limits; those that have ended are looked at once."""

    def __init__(self, slos: Sequence[Slo], count: int) -> None:
        """Of ``count`` requests."""
        self._slos = slos
        self._may = [(1 - slo.percent / 100) * (count - 1) + 1 for slo in slos]
        self._late = [0] * len(slos)
        self._ended: set[int] = set()

    def lost(self, so_far: FleetOutcome) -> bool:
        """Whether a limit is lost whatever becomes of the other requests."""
        late = [0] * len(self._slos)
        for pool in so_far.pools:
            for replica in pool:
                for served in replica.served:
                    number = served.number
                    if number in self._ended or so_far.answers[number] is not served:
                        continue
                    if served.finished_s is None:
                        _count(late, self._slos, _waited_s(served, so_far, replica.now_s))
                        continue
                    times = replica.replay.outcome.times(served, so_far.prompts[number])
                    last = pool is so_far.pools[-1]  # behind others it may be on its way there
                    _count(self._late if last else late, self._slos, times)
                    if last:
                        self._ended.add(number)
        return any(map(gt, map(add, late, self._late), self._may))


def _count(late: list[int], slos: Sequence[Slo], times_s: Mapping[str, float]) -> None:
    for place, slo in enumerate(slos):
        late[place] += times_s.get(slo.name, 0.0) > slo.limit_s


def _waited_s(served: Served, so_far: FleetOutcome, now_s: float) -> dict[str, float]:
    """How long a request that is not served yet has waited already, in s by name."""
    waited_s = now_s - so_far.prompts[served.number].arrival_s
    has_begun = served.first_token_s is not None
    return {"latency": waited_s} | ({} if has_begun else {"ttft": waited_s})


def simulate(
    question: Question,
    requests: Sequence[Request],
    kind: Kind,
    units: int,
    speed: float,
    find: FindParts = find_parts,
    *,
    give_up: bool = True,
) -> Seen:
    """Serve requests, until they are served or, if it may, it is clear that a limit is broken."""
    base, slos, count = kind.server.config, question.slos, len(requests)
    fleet = base.fleet.model_copy(update=kind.fleet(units))
    workload = base.workload.model_copy(update={"speed": speed})
    config = base.model_copy(update={"fleet": fleet, "workload": workload})
    every = max(1, count // _LOOKS)
    early = {every // part for part in _EARLY}
    watch = Watch(slos, count)

    def look(done: int) -> None:
        looks = give_up and (done % every == 0 or done in early)
        if looks and watch.lost(made.outcome(ended=False)):
            raise _GaveUp

    made = Fleet(config, requests, look, find)
    span_s = (requests[-1].arrival_s - requests[0].arrival_s) / speed
    rate = count / max(span_s, 1e-9)
    try:
        made.run()
    except _GaveUp:
        so_far = made.outcome(ended=False)
        came, served = len(so_far.answers), len(Fates.of(so_far).numbers)
        return Seen({}, rate, 0.0, False, count, came, served)
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
    served = len(fates.numbers)
    meets = served == count and all(values[slo.label] <= slo.limit_s for slo in slos)
    return Seen(values, rate, good / count, meets, count, count, served)
