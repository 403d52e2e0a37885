"""The search: deployments by what they cost at least, each kind with as few replicas as do.

Bounds say from how many replicas on a kind can do, and the best found so far up to how many it is
worth having, so most kinds are ruled out by one simulation or none. More replicas are taken to be
no worse.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from dsv4kv.choices import TRANSFERS
from dsv4kv.config.fleet import GroupSection
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.errors import ConfigError, DoesNotFit
from dsv4kv.fleet.outcome import Fates
from dsv4kv.fleet.run import FindParts, Fleet
from dsv4kv.planning.question import Question, Slo, busiest
from dsv4kv.planning.servers import Bounds, Server, layouts_of, open_server
from dsv4kv.replay.build import Parts, find_parts
from dsv4kv.traces.request import Request
from dsv4kv.units import counted

WINDOW = 400
"""Requests of the window that deployments are screened on."""
_LOOKS = 24
"""How often a simulation looks whether it can still keep its limits."""
_BURST = 10.0
"""A trace that comes within this part of the longest wait says nothing of a rate."""
_NEARER = 1.03
"""The highest rate is found to 3 %."""


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
        good: Share of requests that kept all limits.
        meets: Whether every limit is kept.
        requests: Requests that were simulated.
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

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.units * self.kind.gpus

    def tightest(self, slos: Sequence[Slo]) -> Slo:
        """The limit that it is nearest to."""
        return max(slos, key=lambda slo: self.values_s.get(slo.label, 0.0) / slo.limit_s)

    def under(self, slos: Sequence[Slo]) -> "Trial":
        """The same by tighter limits; ``good`` stays the share by those it was simulated with."""
        kept = self.meets and all(self.values_s[slo.label] <= slo.limit_s for slo in slos)
        return replace(self, meets=kept)

    def near(self, slos: Sequence[Slo]) -> list[Slo]:
        """Limits that it keeps by less than the clock may be off."""
        return [slo for slo in slos if self.values_s[slo.label] * self.error(slo) > slo.limit_s]

    def error(self, slo: Slo) -> float:
        """What the time of a limit is right within."""
        return self.kind.server.times.held_out.of(slo.name)


class _GaveUp(Exception):
    """So many requests broke a limit that it cannot be kept any more."""


def broken_too_often(fates: Fates, slos: Sequence[Slo], count: int) -> bool:
    """Whether a limit is lost whatever becomes of the other requests."""
    for slo in slos:
        late = sum(each > slo.limit_s * 1e9 for each in fates.samples_ns[slo.name])
        if late > (1 - slo.percent / 100) * (count - 1) + 1:
            return True
    return False


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
) -> Trial:
    """Serve requests, until they are served or it is clear that a limit is not kept."""
    base, slos = kind.server.config, question.slos
    fleet = base.fleet.model_copy(update=kind.fleet(units))
    workload = base.workload.model_copy(update={"speed": speed})
    config = base.model_copy(update={"fleet": fleet, "workload": workload})
    every = max(1, len(requests) // _LOOKS)

    def look(done: int) -> None:
        if done % every == 0:
            so_far = Fates.of(made.outcome(ended=False))
            if broken_too_often(so_far, slos, len(requests)):
                raise _GaveUp

    made = Fleet(config, requests, look, find)
    cost = units * kind.gpus * question.price(kind.server.gpu)
    span_s = (requests[-1].arrival_s - requests[0].arrival_s) / speed
    rate = len(requests) / max(span_s, 1e-9)
    try:
        made.run()
    except _GaveUp:
        return Trial(kind, units, speed, cost, {}, rate, 0.0, False, len(requests))
    fates = Fates.of(made.outcome(ended=True))
    values = {
        slo.label: float(np.percentile(fates.samples_ns[slo.name] or [0], slo.percent)) / 1e9
        for slo in slos
    }
    limits = {slo.name: min(s.limit_s for s in slos if s.name == slo.name) for slo in slos}
    good = sum(
        all(spans.get(name, 0.0) <= limit for name, limit in limits.items())
        for spans in fates.times.values()
    )
    meets = len(fates.numbers) == len(requests)
    meets = meets and all(values[slo.label] <= slo.limit_s for slo in slos)
    share = good / len(requests)
    return Trial(kind, units, speed, cost, values, rate, share, meets, len(requests))


@dataclass
class Tally:
    """What became of the deployments considered, and of which kinds why.

    Attributes:
        considered: Deployments: every kind with every number of replicas that is allowed.
        pruned: Of which were ruled out without being simulated, by what.
        reasons: Why a kind was left out or lost, by its label.
    """

    considered: int = 0
    pruned: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def prune(self, why: str, count: int) -> None:
        """Deployments are ruled out."""
        self.pruned[why] = self.pruned.get(why, 0) + count


@dataclass(frozen=True)
class Answer:
    """What was found.

    Attributes:
        best: The cheapest, or the one of the highest rate; None where there is none.
        second: The same among other servers than the best's.
        safer: The cheapest that keeps limits by more than the clock's error; None where there is
            none, or the best does.
        trials: All that were simulated on the window, but those that ``safer`` was sought with.
        confirmed: Those that were simulated on the whole trace, in order.
        tally: What became of all others.
        window: Requests of the window; as many as there are where there was none.
    """

    best: Trial | None
    second: Trial | None
    safer: Trial | None
    trials: list[Trial]
    confirmed: list[Trial]
    tally: Tally
    window: int


def list_kinds(
    question: Question,
    settings: Sequence[str],
    engine: str,
    gpus: Sequence[str],
    routers: Sequence[str],
    preset: str,
    tally: Tally,
    splits: Sequence[Split | None] = (None,),
    args: Mapping[str, str] = MappingProxyType({"": ""}),
) -> list[Kind]:
    """Kinds of deployment that bounds leave; what they rule out is tallied.

    ``args`` are words of the launch command that are tried, by name; see ``name_args``.

    Raises:
        ConfigError: A setting, GPU or model that there is not.
    """
    kinds = []
    for gpu in gpus:
        for layout, (variant, words) in product(layouts_of(preset), args.items()):
            units = [layout.gpus * sum(split or (1,)) for split in splits]
            count = sum(question.most_gpus // unit for unit in units) * len(routers)
            tally.considered += count
            label = f"{gpu} {layout.label} {variant}".rstrip()
            try:
                server = open_server(question, settings, engine, gpu, layout, variant, words)
            except DoesNotFit as error:
                tally.prune("memory", count)
                tally.reasons[label] = f"memory: {str(error).partition('. ')[0]}"
                continue
            bounds = Bounds(server, question)
            if (broken := bounds.broken()) is not None:
                tally.prune(broken, count)
                tally.reasons[label] = f"{broken} of a single request"
                continue
            kinds += [Kind(server, each, bounds, split) for split in splits for each in routers]
    return kinds


class Search:
    """Remembers what was simulated.

    Attributes:
        tally: What became of what was considered.
        window: What is simulated.
        parts: What simulations have in common.
    """

    def __init__(
        self,
        question: Question,
        kinds: Sequence[Kind],
        tally: Tally,
        on_trial: Callable[[], None] = lambda: None,
        window: int = WINDOW,
        looser: "Search | None" = None,
    ) -> None:
        """``looser`` has simulated the same window with limits that allow more."""
        self._question, self._kinds, self.tally = question, kinds, tally
        self._on_trial = on_trial
        self.window = busiest(question.requests, window)
        self.parts: KnownParts = looser.parts if looser else KnownParts()
        self._trials: dict[tuple[object, ...], Trial] = {}
        self._looser = looser._trials if looser else {}

    @property
    def trials(self) -> list[Trial]:
        """All so far."""
        return list(self._trials.values())

    def _try(self, kind: Kind, units: int, speed: float) -> Trial:
        alone = units * (kind.split or (1,))[0] == 1  # then a router has nothing to choose
        key = kind.servers, "" if alone else kind.router, units, speed
        if key in self._looser:
            return self._looser[key].under(self._question.slos)
        if key not in self._trials:
            self._trials[key] = simulate(
                self._question, self.window, kind, units, speed, self.parts
            )
            self._on_trial()
        return self._trials[key]

    def _cost(self, kind: Kind, units: int) -> float:
        return units * kind.gpus * self._question.price(kind.server.gpu)

    def cheapest(self, leave: Callable[[Kind], bool] = lambda kind: False) -> Trial | None:
        """The cheapest deployment that keeps every limit, some kinds left out."""
        speed, best = self._question.speed, None
        kinds = [kind for kind in self._kinds if not leave(kind)]
        for kind in sorted(kinds, key=lambda k: self._cost(k, k.fewest(speed))):
            found = self._fewest(kind, kind.fewest(speed), best)
            best = found or best
        return best

    def _fewest(self, kind: Kind, low: int, best: Trial | None) -> Trial | None:
        """The fewest units, ``low`` at least, that do and cost less than the best so far."""
        speed, high = self._question.speed, self._question.most_gpus // kind.gpus
        name = "unit" if kind.split else "replica"
        reason = "more than allowed"
        while best and high and self._cost(kind, high) >= best.cost:
            high, reason = high - 1, "no cheaper than the answer"
        if low > high:
            needed = f"{counted(low, name)} or more for the prompts, {reason}"
            self.tally.reasons.setdefault(kind.label, needed)
            return None
        place = high if best else low
        while not (trial := self._try(kind, place, speed)).meets:
            if place == high:
                broken = f"a limit is broken by {counted(high, name)}, and more are {reason}"
                self.tally.reasons.setdefault(kind.label, broken)
                return None
            low, place = place + 1, min(2 * place, high)
        while low < trial.units:
            tried = self._try(kind, (low + trial.units) // 2, speed)
            low, trial = (low, tried) if tried.meets else (tried.units + 1, trial)
        return trial

    def fastest(
        self, gpus: int, leave: Callable[[Kind], bool] = lambda kind: False
    ) -> Trial | None:
        """The deployment of so many GPUs that keeps every limit at the highest rate."""
        best: Trial | None = None
        kinds = [k for k in self._kinds if not leave(k) and gpus % k.gpus == 0]
        for kind in kinds:
            units = gpus // kind.gpus
            speed = best.speed * _NEARER if best else self._question.speed
            while best is None and not self._can(kind, units, speed) and speed > 1e-3:
                speed /= 2
            low, high = 0.0, float("inf")
            while high / max(low, 1e-9) > _NEARER:
                if self._can(kind, units, speed):
                    best, low = self._try(kind, units, speed), speed
                else:
                    high = speed
                    if not low:
                        break
                speed = 2 * low if high == float("inf") else (low * high) ** 0.5
        return best

    def _can(self, kind: Kind, units: int, speed: float) -> bool:
        span_s = self.window[-1].arrival_s - self.window[0].arrival_s
        wait_s = max(slo.limit_s for slo in self._question.slos if slo.name != "tpot")
        if span_s / speed < wait_s / _BURST:
            raise ConfigError(
                f"{kind.label} keeps the limits even where all {len(self.window):,} requests come "
                f"within {span_s / speed:.2g} s: too few to say what rate it sustains. Give a "
                "longer trace, or tighter limits."
            )
        return kind.fewest(speed) <= units and self._try(kind, units, speed).meets

    def safer(self, best: Trial) -> Trial | None:
        """The cheapest that keeps limits by more than the clock's error, if the best does not.

        It is searched for with limits that are lower by that much.
        """
        asked = self._question
        if not best.near(asked.slos):
            return None
        slos = tuple(replace(s, limit_s=s.limit_s / best.error(s)) for s in asked.slos)
        tight = replace(asked, slos=slos, speed=best.speed)
        kinds = [replace(k, bounds=replace(k.bounds, question=tight)) for k in self._kinds]
        kinds = [kind for kind in kinds if kind.bounds.broken() is None]
        search = Search(tight, kinds, Tally(), self._on_trial, len(self.window), self)
        found = search.cheapest()
        return found and self._try(found.kind, found.units, found.speed)


def confirm(question: Question, found: Trial, parts: KnownParts, most: int = 3) -> Iterator[Trial]:
    """The same on the whole trace, with more units until limits are kept, ``most`` times."""
    units = found.units
    for _ in range(most):
        trial = simulate(question, question.requests, found.kind, units, found.speed, parts)
        yield trial
        if trial.meets:
            return
        units += max(1, units // 8)


def plan(search: Search, question: Question, gpus: int | None = None) -> Answer:
    """Answer a question: the highest rate of ``gpus``, or the cheapest deployment."""

    def find(leave: Callable[[Kind], bool]) -> Trial | None:
        return search.cheapest(leave) if gpus is None else search.fastest(gpus, leave)

    best = find(lambda kind: False)
    second = safer = None
    confirmed: list[Trial] = []
    tally = search.tally
    if best:
        servers = best.kind.servers
        second = find(lambda kind: kind.servers == servers)
        safer = search.safer(best) if gpus is None else None
        if len(search.window) < len(question.requests) and gpus is None:
            for found in filter(None, (best, second)):
                confirmed += confirm(question, found, search.parts)
                best = confirmed[-1]
                if best.meets:
                    break
    left = tally.considered - sum(tally.pruned.values()) - len(search.trials)
    tally.prune("work or cost", max(0, left))
    return Answer(best, second, safer, search.trials, confirmed, tally, len(search.window))


def front(trials: Sequence[Trial], label: str) -> list[Trial]:
    """Trials that no other beats in both cost and a time, the cheapest first."""
    kept: list[Trial] = []
    whole = [each for each in trials if each.values_s]
    for trial in sorted(whole, key=lambda each: (each.cost, each.values_s[label])):
        if not kept or trial.values_s[label] < kept[-1].values_s[label]:
            kept.append(trial)
    return kept
