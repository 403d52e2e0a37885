"""The search: deployments by what they cost at least, each kind with as few replicas as do.

Bounds say from how many replicas on a kind can do, and the best found so far up to how many it is
worth having, so most kinds are ruled out by one simulation or none. More replicas are taken to be
no worse.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from operator import attrgetter
from time import monotonic
from types import MappingProxyType

from dsv4kv.errors import ConfigError, DoesNotFit, Dsv4kvError
from dsv4kv.planning.ahead import Place, Simulations
from dsv4kv.planning.question import Question, Slo
from dsv4kv.planning.servers import Bounds, layouts_of, open_server
from dsv4kv.planning.trial import Kind, Seen, Split, Trial
from dsv4kv.units import counted

WINDOW = 400
"""Requests of the window that deployments are screened on."""
_BURST = 10.0
"""A trace that comes within this part of the longest wait says nothing of a rate."""
_FEWER = 4
"""How many times fewer units are tried first than another window needs."""
_SOON = 4
"""How many times the units tried first may be, before it is asked whether the most do at all."""
_NEARER, _NEAR = 1.03, 1.1
"""The highest rate is found to 3 % on a window, to a tenth on a long trace: times are right within
more."""
_SLOWEST = 1e-3
"""The least of a rate that is worth having: a trace takes a thousand times as long."""
_FASTER, _LITTLE_FASTER = 2.0, 1.25
"""How much faster is tried next; and where another window says about how fast it goes."""


@dataclass
class Tally:
    """What became of the deployments considered, and of which kinds why.

    Attributes:
        considered: Deployments: every kind with every number of replicas that is allowed.
        pruned: Of which were ruled out without being simulated, by what.
        reasons: Why a kind was left out or lost, by its label.
        least_s: What no deployment undercuts of every limited time, by label, and whose it is.
    """

    considered: int = 0
    pruned: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    least_s: dict[str, tuple[float, str]] = field(default_factory=dict)

    def bound(self, bounds: Bounds) -> None:
        """Hear what a server cannot undercut."""
        for label, least_s in bounds.least_s.items():
            here = least_s, bounds.server.label
            self.least_s[label] = min(here, self.least_s.get(label, here))

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
        nearest: Where there is no best, what came nearest to the limits.
        trials: All that were simulated on the window.
        confirmed: Those that were simulated on the whole trace, where there was a window.
        tally: What became of all others.
        window: Requests of the window; as many as there are where there was none.
        gpus: How many there are, where the highest rate was asked.
    """

    best: Trial | None
    second: Trial | None
    safer: Trial | None
    nearest: Trial | None
    trials: list[Trial]
    confirmed: list[Trial]
    tally: Tally
    window: int
    gpus: int | None = None


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
            tally.bound(bounds)
            if (broken := bounds.broken()) is not None:
                tally.prune(broken, count)
                tally.reasons[label] = f"{broken} of a single request"
                continue
            kinds += [Kind(server, each, bounds, split) for split in splits for each in routers]
    return kinds


@dataclass(frozen=True)
class Hints:
    """What is known from elsewhere: what is tried first, and what is guessed.

    Attributes:
        preferred: Kinds that are tried before all others, by label: what they cost bounds what
            these are tried with.
        units: How many are tried first, by servers.
        speeds: How fast a trace is tried first, by servers.
        trials: Of another window.
        nearer: How near the highest rate is found.
    """

    preferred: Collection[str] = ()
    units: Mapping[str, int] = field(default_factory=dict)
    speeds: Mapping[str, float] = field(default_factory=dict)
    trials: Sequence[Trial] = ()
    nearer: float = _NEARER


class Search:
    """Remembers what was simulated.

    Attributes:
        tally: What became of what was considered.
        window: How many requests are simulated.
        hints: What is known from elsewhere.
        slowest_s: Seconds that a simulation was waited for at most, by servers.
    """

    def __init__(
        self,
        simulations: Simulations,
        kinds: Sequence[Kind],
        tally: Tally,
        on_trial: Callable[[], None] = lambda: None,
        window: int = WINDOW,
        looser: "Search | None" = None,
        question: Question | None = None,
    ) -> None:
        """Ask ``question`` where it is not that of ``simulations``.

        ``looser`` has simulated the same window with limits that allow more.
        """
        self._simulations, self._question = simulations, question or simulations.question
        self._kinds, self.tally, self._on_trial = kinds, tally, on_trial
        self.window = min(window, len(self._question.requests))
        self.hints = Hints()
        self.slowest_s: dict[str, float] = {}
        self._trials: dict[tuple[object, ...], Trial] = {}
        self._looser = looser._trials if looser else {}
        self._course: Callable[[Search], object] = Search.nearest

    @property
    def trials(self) -> list[Trial]:
        """All so far."""
        return list(self._trials.values())

    def of(self, found: Sequence[Trial], window: int) -> "Search":
        """The same on a window of another length, of servers that were found."""
        servers = {each.kind.servers for each in found}
        kinds = [kind for kind in self._kinds if kind.servers in servers]
        made = Search(self._simulations, kinds, Tally(), self._on_trial, window)
        made.hints = Hints(
            preferred={each.kind.label for each in found},
            units={each.kind.servers: each.units // _FEWER for each in found},
            speeds={each.kind.servers: each.speed for each in found if each.meets},
            trials=self.trials,
            nearer=_NEAR,
        )
        return made

    def _try(self, kind: Kind, units: int, speed: float) -> Trial:
        key = kind.place(units, speed)
        if key in self._looser:
            return self._looser[key].under(self._question.slos)
        if key not in self._trials:
            place = Place(kind.label, units, speed, self.window, *self._limits)
            seen = self._simulate(kind, place)
            cost = self._cost(kind, units)
            self._trials[key] = Trial(**vars(seen), kind=kind, units=units, speed=speed, cost=cost)
        return self._trials[key]

    @property
    def _limits(self) -> tuple[tuple[Slo, ...], tuple[Slo, ...] | None]:
        return self._question.slos, self._question.asked

    def _simulate(self, kind: Kind, place: Place) -> Seen:
        begun_s = monotonic()
        seen = self._simulations(place, self._expect)
        took_s = monotonic() - begun_s
        self.slowest_s[kind.servers] = max(took_s, self.slowest_s.get(kind.servers, 0.0))
        self._on_trial()
        return seen

    def _expect(self, count: int) -> Sequence[Place]:
        """What is asked for next if what is not known yet is as it is guessed."""
        guess = _Guess(self, count)
        with suppress(_Enough, Dsv4kvError):
            self._course(guess)
        return guess.wanted

    def _cost(self, kind: Kind, units: int) -> float:
        return units * kind.gpus * self._question.price(kind.server.gpu)

    def cheapest(self, count: int = 2) -> list[Trial]:
        """The cheapest deployment that keeps every limit, then that of other servers, if any.

        With a ``count`` of 1 no others are sought.
        """
        self._course = partial(Search._cheapest, count=count)
        return self._cheapest(count)

    def _cheapest(self, count: int) -> list[Trial]:
        speed, found = self._question.speed, list[Trial]()
        for kind in sorted(
            self._kinds,
            key=lambda k: (k.label not in self.hints.preferred, self._cost(k, k.fewest(speed))),
        ):
            others = [each for each in found if each.kind.servers != kind.servers]
            others = others if count > 1 else []
            if trial := self._fewest(kind, found, others):
                found = sorted([*others, trial], key=lambda each: each.cost)[:count]
        return found

    def _fewest(self, kind: Kind, found: Sequence[Trial], others: Sequence[Trial]) -> Trial | None:
        """The fewest units that do and cost less than what they would take the place of.

        That is the best of the same servers, or the second of others.
        """
        speed, high = self._question.speed, self._question.most_gpus // kind.gpus
        low, most = kind.fewest(speed), high
        name, reason = "unit" if kind.split else "replica", "more than allowed"
        to_beat = [each for each in found if each not in others] or found[1:]
        while to_beat and high and self._cost(kind, high) >= to_beat[0].cost:
            high -= 1
        if high < most:
            reason = f"no cheaper than the {'answer' if to_beat[0] is found[0] else 'runner-up'}"
        if low > high:
            needed = f"{counted(low, name)} or more for the prompts, {reason}"
            self.tally.reasons.setdefault(kind.label, needed)
            return None
        place = high if to_beat else max(low, min(high, self.hints.units.get(kind.servers, 1)))
        while not to_beat and found and place < high and self._cost(kind, place) < found[0].cost:
            place += 1  # the runner-up is most likely no cheaper than the best
        soon = _SOON * place
        while not (trial := self._try(kind, place, speed)).meets:
            if place == high:
                broken = f"a limit is broken by {counted(high, name)}, and more are {reason}"
                self.tally.reasons.setdefault(kind.label, broken)
                return None
            low, place = place + 1, min(2 * place, high) if place < soon else high
        while low < trial.units:
            tried = self._try(kind, (low + trial.units) // 2, speed)
            low, trial = (low, tried) if tried.meets else (tried.units + 1, trial)
        return trial

    def fastest(
        self, gpus: int, leave: Callable[[Kind], bool] = lambda kind: False
    ) -> Trial | None:
        """The deployment of so many GPUs that keeps every limit at the highest rate."""
        self._course = partial(Search._fastest, gpus=gpus, leave=leave)
        return self._fastest(gpus, leave)

    def _fastest(self, gpus: int, leave: Callable[[Kind], bool]) -> Trial | None:
        best: Trial | None = None
        for kind in sorted(self._kinds, key=lambda k: k.label not in self.hints.preferred):
            if gpus % kind.gpus:
                reason = f"{counted(gpus, 'GPU')} are no multiple of {kind.gpus}"
                self.tally.reasons.setdefault(kind.label, reason)
            if leave(kind) or gpus % kind.gpus:
                continue
            best = self._faster(kind, gpus // kind.gpus, best) or best
        return best

    def _faster(self, kind: Kind, units: int, best: Trial | None) -> Trial | None:
        """The highest rate of a deployment, if it is higher than the best's.

        Where the first does not do, half of it is tried twice, then whether any does at all.
        """
        begin = self.hints.speeds.get(kind.servers, self._question.speed)
        further = _LITTLE_FASTER if kind.servers in self.hints.speeds else _FASTER
        speed = best.speed * self.hints.nearer if best else begin
        found, high = None, math.inf
        while found is None or high > self.hints.nearer * found.speed:
            if self._can(kind, units, speed):
                found = self._try(kind, units, speed)
            elif not found and (best or speed <= _SLOWEST):
                return None
            else:
                high = speed
            if found:
                speed = further * found.speed if high == math.inf else (found.speed * high) ** 0.5
            else:
                speed = high / 2 if high > begin / 4 else _SLOWEST
        return found

    def fastest_two(self, gpus: int) -> list[Trial]:
        """The fastest, then the fastest of other servers, if any."""
        best = self.fastest(gpus)
        second = best and self.fastest(gpus, lambda k: k.servers == best.kind.servers)
        return [each for each in (best, second) if each]

    def _can(self, kind: Kind, units: int, speed: float) -> bool:
        window = self._simulations.window(self.window)
        span_s = window[-1].arrival_s - window[0].arrival_s
        wait_s = max(slo.limit_s for slo in self._question.slos if slo.name != "tpot")
        if span_s / speed < wait_s / _BURST:
            raise ConfigError(
                f"{kind.label} keeps the limits even where all of "
                f"{counted(self.window, 'request')} come within {span_s / speed:.2g} s: too "
                "few to say what rate it sustains. Give a longer trace, or tighter limits."
            )
        return kind.fewest(speed) <= units and self._try(kind, units, speed).meets

    def safer(self, best: Trial, gpus: int | None = None) -> Trial | None:
        """The cheapest that keeps limits by more than the clock's error, if the best does not.

        It is searched for with limits that are lower by that much. Of ``gpus`` it is what the
        best's servers do at the highest rate.
        """
        asked = self._question
        if not best.near(asked.slos):
            return None
        slos = tuple(replace(s, limit_s=s.limit_s / best.error(s)) for s in asked.slos)
        tight = replace(asked, slos=slos, speed=best.speed, asked=asked.slos)
        kinds = [replace(k, bounds=replace(k.bounds, question=tight)) for k in self._kinds]
        kinds = [kind for kind in kinds if kind.bounds.broken() is None]
        search = Search(
            self._simulations, kinds, Tally(), self._on_trial, self.window, self, tight
        )
        speeds = {best.kind.servers: best.speed}
        search.hints = replace(self.hints, units={}, speeds=speeds, trials=())
        if gpus is None:
            found = search.cheapest(1)
        else:
            fastest = search.fastest(gpus, lambda kind: kind.servers != best.kind.servers)
            found = [fastest] if fastest else []
        for trial in found:
            self._trials.setdefault(trial.kind.place(trial.units, trial.speed), trial)
        return found[0] if found else None

    def nearest(self) -> list[Trial]:
        """What came nearest to limits that nothing keeps, then the same of other servers."""
        slos, found = self._question.slos, dict[str, Trial]()
        most = {trial.kind.label: trial for trial in sorted(self.trials, key=lambda t: t.units)}
        for trial in sorted(most.values(), key=lambda t: (-t.came, -t.served, t.excess(slos))):
            found.setdefault(trial.kind.servers, trial)
        return [*found.values()][:2]

    def seconds_of_all(self, found: Sequence[Trial]) -> float:
        """About how long one simulation of all requests by servers that were found takes."""
        parts = self._question.requests, self._simulations.window(self.window)
        tokens = [sum(each.input_tokens for each in part) for part in parts]
        slowest_s = max(self.slowest_s[each.kind.servers] for each in found)
        return slowest_s * tokens[0] / tokens[1]

    def to_its_end(self, trial: Trial) -> Trial:
        """The same, also where it was given up."""
        if trial.values_s:
            return trial
        place = Place(
            trial.kind.label, trial.units, trial.speed, self.window, *self._limits, False
        )
        return replace(trial, **vars(self._simulations(place)))


class _Enough(Exception):
    """So many places are wanted as were asked for."""


class _Guess(Search):
    """A search that goes on without waiting, to see what it will want.

    Limits are taken to be kept where fewer units of the kind keep them, here or on another window.

    Attributes:
        wanted: Places that nobody has simulated yet, in the order in which they are asked for.
    """

    def __init__(self, search: Search, count: int) -> None:
        """What ``search`` will ask for, ``count`` places."""
        vars(self).update(vars(search))
        self.tally, self._trials = Tally(), dict(search._trials)
        self.wanted, self._count = list[Place](), count

    def _simulate(self, kind: Kind, place: Place) -> Seen:
        if seen := self._simulations.known(place):
            return seen
        if len(self.wanted) == self._count:
            raise _Enough
        self.wanted.append(place)
        kept = any(
            trial.meets and trial.units <= place.units and trial.speed >= place.speed
            for trial in (*self._trials.values(), *self.hints.trials)
            if trial.kind.label == place.kind
        )
        return Seen({}, 0.0, 0.0, kept, 0, 0, 0)


def plan(
    search: Search,
    question: Question,
    gpus: int | None = None,
    on_all: Callable[[float], None] = lambda seconds: None,
) -> Answer:
    """Answer a question: the highest rate of ``gpus``, or the cheapest deployment.

    What is best on the window, and its runner-up, are searched for again on the whole trace; so is
    what comes nearest where nothing does. ``on_all`` hears about how many seconds one
    simulation of all requests will take.
    """
    last, tally, confirmed = search, search.tally, list[Trial]()
    found = search.cheapest() if gpus is None else search.fastest_two(gpus)
    screened = found or search.nearest()
    if screened and search.window < len(question.requests):
        on_all(search.seconds_of_all(screened))
        last = search.of(screened, len(question.requests))
        found = last.cheapest() if gpus is None else last.fastest_two(gpus)
    best, second, *_ = *found, None, None
    if (
        best and gpus is None and last is not search
    ):  # whose safer ones are of the same servers as the window's
        first = search.of(found, search.window).safer(best)
        last.hints = replace(last.hints, preferred={first.kind.label} if first else ())
    safer = last.safer(best, gpus) if best else None
    if best and safer and gpus is None and safer.cost <= best.cost:
        second = second if safer.kind.servers == best.kind.servers else best
        best, safer = safer, None
    nearest = None if best else next(map(last.to_its_end, last.nearest()), None)
    if last is not search:
        confirmed = last.trials
    left = tally.considered - sum(tally.pruned.values()) - len(search.trials)
    tally.prune("work or cost", max(0, left))
    trials, window = search.trials, search.window
    return Answer(best, second, safer, nearest, trials, confirmed, tally, window, gpus)


def front(
    trials: Sequence[Trial], label: str, cost: Callable[[Trial], float] = attrgetter("cost")
) -> list[Trial]:
    """Trials that no other beats in both cost and a time, the cheapest first."""
    kept: list[Trial] = []
    whole = [each for each in trials if each.values_s]
    for trial in sorted(whole, key=lambda each: (cost(each), each.values_s[label])):
        if not kept or trial.values_s[label] < kept[-1].values_s[label]:
            kept.append(trial)
    return kept
