"""Simulations, and in free processes those that a search is likely to ask for next."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType
from typing import NamedTuple

from dsv4kv.config.replay import ReplayConfig
from dsv4kv.errors import ConfigError
from dsv4kv.planning.question import Question, Slo, busiest
from dsv4kv.planning.trial import Kind, Seen, simulate
from dsv4kv.replay.build import Parts, find_parts
from dsv4kv.traces.request import Request
from dsv4kv.workers import Forks, Lost


class Place(NamedTuple):
    """What is simulated.

    Attributes:
        kind: Label of servers and router.
        units: How many.
        speed: How much faster than it was recorded the trace is.
        window: Requests, those with the most prompt tokens a second.
        slos: Limits that are to be kept.
        asked: Those that good requests keep, where others are to be kept.
        gives_up: Whether it may end when it is clear that a limit is broken.
    """

    kind: str
    units: int
    speed: float
    window: int
    slos: tuple[Slo, ...]
    asked: tuple[Slo, ...] | None
    gives_up: bool = True


Expect = Callable[[int], Sequence[Place]]
"""So many places, or fewer, that are likely asked for next."""


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


class Simulations(AbstractContextManager["Simulations"]):
    """Simulates places, in ``jobs`` processes where that is more than one and forks lose nothing.

    What is found does not depend on how many there are.

    Attributes:
        question: What is asked.
        parts: What simulations have in common.
    """

    def __init__(self, question: Question, kinds: Sequence[Kind], jobs: int = 1) -> None:
        """Of ``kinds``; the processes are there from now on."""
        self.question, self.parts = question, KnownParts()
        self._kinds = {kind.label: kind for kind in kinds}
        self._windows: dict[int, list[Request]] = {}
        self._begun, self._seen = set[Place](), dict[Place, Seen]()
        self._forks = Forks(self._simulate, jobs if jobs > 1 else 0)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._forks.kill()

    def window(self, count: int) -> list[Request]:
        """The requests that are simulated where so many are."""
        if count not in self._windows:
            self._windows[count] = busiest(self.question.requests, count)
        return self._windows[count]

    def known(self, place: Place) -> Seen | None:
        """What was found, also where nobody has asked yet."""
        return self._seen.get(place)

    def __call__(self, place: Place, expect: Expect = lambda count: ()) -> Seen:
        """What is found; meanwhile others begin with what ``expect`` names, the likeliest first.

        Raises:
            ConfigError: A process was lost.
        """
        self._begin(place)
        if place not in self._seen and place not in self._begun:
            self._seen[place] = self._simulate(place)
        while place not in self._seen:
            for each in expect(len(self._begun) + self._forks.free) if self._forks.free else ():
                self._begin(each)
            for ended, seen in self._forks.end():
                if isinstance(seen, Lost):
                    raise ConfigError(f"a simulation was lost: {seen.why}: give fewer --jobs.")
                self._begun.remove(ended)
                self._seen[ended] = seen
        return self._seen[place]

    def _begin(self, place: Place) -> None:
        if self._forks.free and place not in self._begun and place not in self._seen:
            self._begun.add(place)
            self._forks.begin(place)

    def _simulate(self, place: Place) -> Seen:
        question = replace(self.question, slos=place.slos, asked=place.asked)
        kind, window = self._kinds[place.kind], self.window(place.window)
        units, speed = place.units, place.speed
        return simulate(question, window, kind, units, speed, self.parts, give_up=place.gives_up)
