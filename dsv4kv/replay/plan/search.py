"""The search: kinds of deployment by their least cost, each with as few replicas as keep limits.

Bounds give the fewest replicas, the best answer so far the most that are worth trying, so most
kinds take one simulation or none. More replicas are assumed to be no worse.
"""

import gc
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from operator import attrgetter, le
from types import MappingProxyType

from dsv4kv.config.replay import ReplayConfig
from dsv4kv.errors import ConfigError, DoesNotFit
from dsv4kv.processes import without_collector
from dsv4kv.replay.build import Parts, find_parts
from dsv4kv.replay.fleet.run import FindParts
from dsv4kv.replay.plan.question import Question
from dsv4kv.replay.plan.trial import Bounds, Kind, Split, Trial, layouts_of, open_server, simulate
from dsv4kv.traces.request import Request
from dsv4kv.units import counted

_GARBAGE = 1_500_000
"""Objects after which simulations are searched for cycles; the collector is off while planning."""
WINDOW = 400  # requests of the window that deployments are screened on
_BURST = 10.0
"""A trace that spans less than this part of the longest limit of waiting has no sustained rate."""
_FEWER = 4  # how many times fewer units than the window needed are tried first on the whole trace
_SOON = 4  # units are doubled up to this many times the first number, then the maximum is tried
_NEARER, _NEAR = 1.03, 1.1
"""Precision of the highest rate, on a window and on a long trace: the clock's error is larger."""
_MIN_SPEED = 1e-3  # the lowest rate that is tried: a trace takes a thousand times as long
_FASTER, _LITTLE_FASTER = 2.0, 1.25
"""Steps of the rate until a limit breaks, and where a window gave the first rate."""


@dataclass
class Tally:
    """Deployments considered (kinds × replicas), pruned without a simulation, and why.

    ``reasons`` are by a kind's label; ``least_s`` has a limit's lower bound and its server.
    """

    considered: int = 0
    pruned: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    least_s: dict[str, tuple[float, str]] = field(default_factory=dict)

    def prune(self, why: str, count: int) -> None:
        self.pruned[why] = self.pruned.get(why, 0) + count


@dataclass(frozen=True)
class Answer:
    """The best deployment, the best of other servers, and the simulations of both windows."""

    best: Trial | None
    second: Trial | None
    safer: Trial | None  # the cheapest beyond the clock's error, unless the best is
    nearest: Trial | None  # where there is no best, the deployment that came nearest to the limits
    trials: list[Trial]
    confirmed: list[Trial]
    tally: Tally
    window: int  # requests of the window, or of the trace if it is no longer


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
    """The kinds that bounds do not rule out, by alternative ``args``; ``tally`` has the others."""
    kinds = []
    for gpu in gpus:
        for layout, (variant, words) in product(layouts_of(preset), args.items()):
            units = [layout.gpus * sum(split or (1,)) for split in splits]
            count = sum(map(question.counts, units)) * len(routers)
            tally.considered += count
            label = f"{gpu} {layout.label} {variant}".rstrip()
            try:
                server = open_server(question, settings, engine, gpu, layout, variant, words)
            except DoesNotFit as error:
                tally.prune("memory", count)
                tally.reasons[label] = f"memory: {str(error).partition('. ')[0]}"
                continue
            bounds = Bounds(server, question)
            for slo, least_s in bounds.least_s.items():
                here = least_s, server.label
                tally.least_s[slo] = min(here, tally.least_s.get(slo, here))
            if (broken := bounds.broken()) is not None:
                tally.prune(broken, count)
                tally.reasons[label] = f"{broken} of a single request"
                continue
            kinds += [Kind(server, each, bounds, split) for split in splits for each in routers]
    return kinds


class RememberedParts(dict[tuple[str, int], Parts]):
    """A ``find_parts`` that runs once for all simulations of a server on a window."""

    def __call__(self, config: ReplayConfig, requests: Sequence[Request]) -> Parts:
        key = config.model_dump_json(exclude={"fleet", "workload"}), len(requests)
        return self.get(key) or self.setdefault(key, find_parts(config, requests))


@dataclass
class Search:
    """A search on one window; what is in ``known`` or ``looser`` is not simulated again."""

    question: Question
    kinds: Sequence[Kind]
    requests: Sequence[Request]
    tally: Tally = field(default_factory=Tally)
    preferred: Collection[str] = ()  # labels of kinds that are tried first
    first_units: Mapping[str, int] = field(default_factory=dict)  # by servers
    first_speeds: Mapping[str, float] = field(default_factory=dict)
    nearer: float = _NEARER  # how precise a highest rate is
    find_parts: FindParts = field(default_factory=RememberedParts)
    on_trial: Callable[[Trial], None] = lambda _: None
    looser: Mapping[tuple[object, ...], Trial] = field(default_factory=dict)
    known: dict[tuple[object, ...], Trial] = field(default_factory=dict, init=False)

    @property
    def trials(self) -> list[Trial]:
        return list(self.known.values())

    def restart(self, found: Sequence[Trial], requests: Sequence[Request]) -> "Search":
        """Return a search on another window, of the servers of ``found``."""
        units = {each.kind.servers: each.units // _FEWER for each in found}
        return replace(
            self,
            kinds=[kind for kind in self.kinds if kind.servers in units],
            requests=requests,
            tally=Tally(),
            preferred={each.kind.label for each in found},
            first_units=units,
            first_speeds={each.kind.servers: each.speed for each in found if each.meets},
            nearer=_NEAR,
        )

    def _simulate(self, kind: Kind, units: int, speed: float, *, to_end: bool = False) -> Trial:
        asked = self.question, self.requests
        trial = simulate(*asked, kind, units, speed, self.find_parts, to_end=to_end)
        if gc.get_freeze_count() and gc.get_count()[0] > _GARBAGE:
            gc.collect()
            gc.freeze()
        self.on_trial(trial)
        return trial

    def _try(self, kind: Kind, units: int, speed: float) -> Trial:
        key = kind.key(units, speed)
        if key in self.looser:
            return self.looser[key].under(self.question.slos)
        if key not in self.known:
            self.known[key] = self._simulate(kind, units, speed)
        return self.known[key]

    def find_best(self) -> list[Trial]:
        """The best deployment (cheapest, or of highest rate), then the best of other servers."""
        if not self.question.exactly:
            return self.find_cheapest()
        best = self.find_fastest(self.kinds)
        if best is None:
            return []
        second = self.find_fastest([k for k in self.kinds if k.servers != best.kind.servers])
        return [best, second] if second else [best]

    def find_cheapest(self, count: int = 2) -> list[Trial]:
        """The cheapest that keep every limit, of two kinds of server unless ``count`` is 1."""
        asked, found = self.question, list[Trial]()

        def order(kind: Kind) -> tuple[bool, float]:
            least = kind.cost(kind.min_units(asked.speed), asked)
            return kind.label not in self.preferred, least

        for kind in sorted(self.kinds, key=order):
            others = [each for each in found if each.kind.servers != kind.servers]
            others = others if count > 1 else []
            if trial := self._find_fewest_units(kind, found, others):
                found = sorted([*others, trial], key=attrgetter("cost"))[:count]
        return found

    def _find_fewest_units(
        self, kind: Kind, found: Sequence[Trial], others: Sequence[Trial]
    ) -> Trial | None:
        """Return the fewest units that keep every limit, if they are worth having.

        They must cost less than the trial that they would replace: the one of ``found`` by the
        same servers, or the second where ``others`` are two.
        """
        asked, speed = self.question, self.question.speed
        low, high = kind.min_units(speed), asked.most_gpus // kind.gpus
        name, reason = "unit" if kind.split else "replica", "more than allowed"
        to_beat = [each for each in found if each not in others] or found[1:]
        if to_beat and high and kind.cost(high, asked) >= to_beat[0].cost:
            reason = f"no cheaper than the {'answer' if to_beat[0] is found[0] else 'runner-up'}"
            while high and kind.cost(high, asked) >= to_beat[0].cost:
                high -= 1
        if low > high:
            needed = f"prefill alone needs ≥ {counted(low, name)}, {reason}"
            self.tally.reasons.setdefault(kind.label, needed)
            return None
        units = high if to_beat else max(low, min(high, self.first_units.get(kind.servers, 1)))
        while not to_beat and found and units < high and kind.cost(units, asked) < found[0].cost:
            units += 1  # the runner-up is most likely no cheaper than the best
        soon = _SOON * units
        while not (trial := self._try(kind, units, speed)).meets:
            if units == high:
                broken = f"misses the SLO with {counted(high, name)}, and more are {reason}"
                self.tally.reasons.setdefault(kind.label, broken)
                return None
            low, units = units + 1, min(2 * units, high) if units < soon else high
        while low < trial.units:
            tried = self._try(kind, (low + trial.units) // 2, speed)
            low, trial = (low, tried) if tried.meets else (tried.units + 1, trial)
        return trial

    def find_fastest(self, kinds: Sequence[Kind]) -> Trial | None:
        """Return the deployment of all GPUs that keeps every limit at the highest rate."""
        gpus = self.question.most_gpus
        best: Trial | None = None
        for kind in sorted(kinds, key=lambda k: k.label not in self.preferred):
            if gpus % kind.gpus:
                reason = f"{counted(gpus, 'GPU')} are no multiple of {kind.gpus}"
                self.tally.reasons.setdefault(kind.label, reason)
            else:
                best = self._find_highest_rate(kind, gpus // kind.gpus, best) or best
        return best

    def _find_highest_rate(self, kind: Kind, units: int, best: Trial | None) -> Trial | None:
        """A deployment at its highest rate, if above the best's; a first rate is halved twice."""
        nearer, begin = self.nearer, self.first_speeds.get(kind.servers, self.question.speed)
        further = _LITTLE_FASTER if kind.servers in self.first_speeds else _FASTER
        speed = best.speed * nearer if best else begin
        found, high = None, math.inf
        trace_s = self.requests[-1].arrival_s - self.requests[0].arrival_s
        count = len(self.requests)
        wait_s = max(slo.limit_s for slo in self.question.slos if slo.name != "tpot")
        while found is None or high > nearer * found.speed:
            if trace_s / speed < wait_s / _BURST:
                raise ConfigError(
                    f"{kind.label} keeps the limits even where all of {counted(count, 'request')} "
                    f"come within {trace_s / speed:.2g} s: too few to say what rate it sustains. "
                    "Give a longer trace, or tighter limits."
                )
            if kind.min_units(speed) <= units and self._try(kind, units, speed).meets:
                found = self._try(kind, units, speed)
            elif not found and (best or speed <= _MIN_SPEED):
                return None
            else:
                high = speed
            if found:
                speed = further * found.speed if high == math.inf else (found.speed * high) ** 0.5
            else:
                speed = high / 2 if high > begin / 4 else _MIN_SPEED
        return found

    def find_safer(self, best: Trial) -> Trial | None:
        """Return the best that keeps limits by more than the clock's error, if ``best`` does not.

        It is searched for with limits divided by that error; where the number of GPUs is given,
        among the servers of ``best``.
        """
        asked = self.question
        if not best.near(asked.slos):
            return None
        slos = tuple(replace(s, limit_s=s.limit_s / best.error(s)) for s in asked.slos)
        tight = replace(asked, slos=slos, speed=best.speed, asked=asked.slos)
        bounds = {id(kind.bounds): replace(kind.bounds, question=tight) for kind in self.kinds}
        kinds = [replace(kind, bounds=bounds[id(kind.bounds)]) for kind in self.kinds]
        kinds = [kind for kind in kinds if kind.bounds.broken() is None]
        search = replace(self, question=tight, kinds=kinds, tally=Tally(), looser=self.known)
        search.first_units, search.first_speeds = {}, {best.kind.servers: best.speed}
        if asked.exactly:
            safer = search.find_fastest([k for k in kinds if k.servers == best.kind.servers])
        else:
            safer = next(iter(search.find_cheapest(1)), None)
        if safer:
            self.known.setdefault(safer.kind.key(safer.units, safer.speed), safer)
        return safer

    def find_safer_on(self, whole: "Search", best: Trial) -> Trial | None:
        """Return the safe deployment of the whole trace by the cheapest servers that are here.

        ``whole`` has searched the servers of its answer, and found none that is safe. Others are
        tried with the router and split of ``best``.
        """
        way = best.kind.router, best.kind.split
        like = [each for each in self.kinds if (each.router, each.split) == way]
        first = replace(self, kinds=like).find_safer(best)
        if first is None:
            return None
        other = self.restart([first], whole.requests)
        safer = other.find_safer(best)
        whole.known |= other.known
        return safer

    def list_nearest(self, below: float = math.inf, besides: Collection[str] = ()) -> list[Trial]:
        """Return the trials that came nearest to keeping the limits, of two kinds of server.

        They cost less than ``below``, by servers that are not in ``besides``.
        """
        slos, found, most = self.question.slos, dict[str, Trial](), dict[str, Trial]()
        for trial in sorted(self.trials, key=lambda t: t.units):
            if trial.cost < below and trial.kind.servers not in besides:
                most[trial.kind.label] = trial
        for trial in sorted(most.values(), key=lambda t: (-t.came, -t.served, t.excess(slos))):
            found.setdefault(trial.kind.servers, trial)
        return [*found.values()][:2]

    def find_nearest(self) -> Trial | None:
        """Return the trial that came nearest to keeping the limits, simulated to its end."""
        nearest = next(iter(self.list_nearest()), None)
        if nearest is None or nearest.values_s:
            return nearest
        return self._simulate(nearest.kind, nearest.units, nearest.speed, to_end=True)


def plan(search: Search) -> Answer:
    """Search the window, then its two best (or nearest) servers on the whole trace.

    The window is the busiest part: what costs less and came near its limits follows.
    """
    gc.freeze()  # else requests are searched for cycles again and again, a fifth of the time
    with without_collector():
        question, last = search.question, search
        found = search.find_best()
        screened = found or search.list_nearest()
        if screened and len(search.requests) < len(question.requests):
            last = search.restart(screened, question.requests)
            found = last.find_best()
            below = found[0].cost if found else math.inf
            servers = {each.kind.servers for each in screened}
            if not question.exactly and (near := search.list_nearest(below, servers)):
                last.kinds = [*last.kinds, *(each.kind for each in near)]
                found = last.find_best()
        best, second, *_ = *found, None, None
        if best and last is not search and not question.exactly:
            first = search.restart(found, search.requests).find_safer(best)
            last.preferred = {first.kind.label} if first else ()
        safer = last.find_safer(best) if best else None
        if best and not safer and last is not search and not question.exactly:
            safer = search.find_safer_on(last, best)
        if best and safer and not question.exactly and safer.cost <= best.cost:
            second = second if safer.kind.servers == best.kind.servers else best
            best, safer = safer, None
        nearest = None if best else last.find_nearest()
        confirmed = [] if last is search else last.trials
        trials, tally = search.trials, search.tally
        simulated = len({each.kind.key(each.units, 0.0) for each in trials})  # at whatever speed
        left = tally.considered - sum(tally.pruned.values()) - simulated
        tally.prune("work or cost", max(0, left))
        if best and second:
            tried = [*(confirmed or trials), *([safer] if safer else [])]
            second = _undominated(best, second, tried)
            second = None if second is safer else second
        gc.freeze()  # nor is the rest worth a search: the program ends
        return Answer(best, second, safer, nearest, trials, confirmed, tally, len(search.requests))


def _undominated(best: Trial, second: Trial, tried: Sequence[Trial]) -> Trial:
    """Return the runner-up, or what is no slower, costs no more and is better in something."""

    def figures(trial: Trial) -> tuple[float, ...]:
        return trial.cost, -trial.rate, *trial.values_s.values()

    own = best.kind.label, best.units
    others = [each for each in tried if each.meets and (each.kind.label, each.units) != own]
    better = [each for each in others if all(map(le, figures(each), figures(second)))]
    return min([second, *better], key=figures)


def front(
    trials: Sequence[Trial], label: str, cost: Callable[[Trial], float] = attrgetter("cost")
) -> list[Trial]:
    """Return the Pareto front of cost and the time of ``label``, the cheapest first."""
    kept: list[Trial] = []
    whole = [each for each in trials if each.values_s]
    for trial in sorted(whole, key=lambda each: (cost(each), each.values_s[label])):
        if not kept or trial.values_s[label] < kept[-1].values_s[label]:
            kept.append(trial)
    return kept
