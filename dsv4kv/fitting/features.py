"""What took time in a measured run, request by request: the run, replayed and counted.

Times are linear in what is counted (``clock.steps``), so a replay says how every coefficient moves
every time; in a closed loop the order of things hardly depends on them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dsv4kv.clock.coefficients import MeasuredOn
from dsv4kv.clock.sources import find_gpu, name_deployment
from dsv4kv.clock.steps import COUNTS, ModelTimes
from dsv4kv.config.load import load_config
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.errors import ConfigError
from dsv4kv.fitting.results import Floats, Measured
from dsv4kv.replay.build import Parts, Wiring, build_replay, find_parts
from dsv4kv.replay.clock import VirtualClock
from dsv4kv.replay.outcome import Outcome
from dsv4kv.replay.requests import Served
from dsv4kv.replay.scheduler import Scheduler


@dataclass(frozen=True)
class Spent:
    """What took time; the last column is what a server waited for the next request.

    In a closed loop that is clients' time, counted in times of a client; else it is in seconds.

    Attributes:
        ttft: float64[requests, COUNTS + 1]: from a request's arrival to its first token.
        tpot: float64[requests, COUNTS + 1]: for each further token.
        whole: float64[COUNTS + 1]: from the first arrival to the last token.
    """

    ttft: Floats
    tpot: Floats
    whole: Floats

    def predict(self, run: Measured, times: ModelTimes) -> Floats:
        """Seconds of everything that was measured, in the order of ``quantities_of``."""
        rates = np.append(times.rates, _waiting_s(run, times))
        values = {"ttft": self.ttft @ rates + times.client_s, "tpot": self.tpot @ rates}
        ordered = {name: np.sort(each) for name, each in values.items()}
        found = [
            ordered[name].mean() if math.isnan(share) else _percentile(ordered[name], share)
            for name, share, _ in run.latencies
        ]
        whole_s = [self.whole @ rates + times.client_s] if run.duration_s else []
        return np.array([*found, *whole_s])


def _waiting_s(run: Measured, times: ModelTimes) -> float:
    """Seconds of one unit of the last column."""
    return 1.0 if run.concurrency is None else times.client_s


def _percentile(ordered: Floats, share: float) -> float:
    """As ``np.percentile`` of values in ascending order."""
    place = share / 100 * (len(ordered) - 1)
    before = int(place)
    after = min(before + 1, len(ordered) - 1)
    return float(ordered[before] + (place - before) * (ordered[after] - ordered[before]))


def quantities_of(run: Measured) -> tuple[list[str], Floats]:
    """What was measured, by name, and how many seconds."""
    names = [name for name, *_ in run.latencies] + ["throughput"] * bool(run.duration_s)
    seconds = [seconds for *_, seconds in run.latencies]
    return names, np.array(seconds + ([run.duration_s] if run.duration_s else []))


class _Moments:
    """Watches a scheduler: what had been counted whenever time had passed."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self.instants, self.counted = [0.0], [[0.0] * (len(COUNTS) + 1)]
        self.requests: list[tuple[float, float, float, int]] = []

    def stepped(self, scheduler: Scheduler) -> None:
        self._outcome.stepped(scheduler)
        self._take(scheduler.clock)

    def _take(self, clock: VirtualClock) -> None:
        self.instants.append(clock.now_s)
        self.counted.append([*map(float, clock.done.counts), clock.idle_s])

    def finish(self, served: Served) -> None:
        self._outcome.finish(served)
        assert served.first_token_s is not None
        assert served.finished_s is not None
        moments = served.arrival_s, served.first_token_s, served.finished_s
        self.requests.append((*moments, served.output_tokens))

    def reject(self, served: Served, reason: str) -> None:
        raise ConfigError(
            f"a request of {served.input_tokens:,} and {served.output_tokens:,} tokens cannot be "
            f"served by this configuration ({reason}): give the server's own settings by --set."
        )

    def at(self, moments: Sequence[float]) -> Floats:
        """What had been counted at some moments: float64[n, COUNTS + 1]."""
        counted = np.array(self.counted)
        return np.stack([np.interp(moments, self.instants, column) for column in counted.T], 1)


@dataclass(frozen=True)
class Scene:
    """A measured run and the deployment that it was measured on.

    Attributes:
        run: The run.
        config: The deployment, as a replay of the run.
    """

    run: Measured
    config: ReplayConfig

    @cached_property
    def parts(self) -> Parts:
        """What no coefficient changes."""
        return find_parts(self.config, self.run.requests)

    @property
    def times(self) -> ModelTimes:
        """By the coefficients that there are so far."""
        assert isinstance(self.parts.times, ModelTimes)
        return self.parts.times

    @property
    def measured_on(self) -> MeasuredOn:
        """The deployment, as a calibration names it."""
        model = self.parts.memory.model
        return name_deployment(find_gpu(self.config.cost), model, self.times.layout)

    def count(self, times: ModelTimes) -> Spent:
        """Replay the run by some coefficients, and count."""
        seen = list[_Moments]()

        def observe(outcome: Outcome) -> _Moments:
            seen.append(_Moments(outcome))
            return seen[0]

        wiring = Wiring(parts=replace(self.parts, times=times), observe=observe)
        made = build_replay(self.config, self.run.requests, wiring=wiring)
        made.scheduler.run()
        rows = [row for row in seen[0].requests if row[3] > 1]
        if not rows:
            raise ConfigError(f"{self.run.name}: no request has a second token: nothing to fit.")
        arrived, first, last = (seen[0].at([row[i] for row in rows]) for i in range(3))
        further = np.array([row[3] - 1 for row in rows], dtype=float)[:, None]
        (whole,) = seen[0].at([max(row[2] for row in seen[0].requests)])
        spent = first - arrived, (last - first) / further, whole
        for each in spent:
            each[..., -1] /= _waiting_s(self.run, times)
        return Spent(*spent)


def open_scenes(
    config: str | None, overrides: Sequence[str], runs: Sequence[Measured]
) -> list[Scene]:
    """Every run as a replay of a deployment.

    Raises:
        ConfigError: A setting that is none, or a deployment that cannot be.
    """
    return [Scene(run, _deployment(config, overrides, run)) for run in runs]


def _deployment(config: str | None, overrides: Sequence[str], run: Measured) -> ReplayConfig:
    own = ["cost.source=model", "prefix.reuse=false", "workload.trace=null"]
    own += ["workload.arrivals=" + ("trace" if run.concurrency is None else "closed")]
    if run.concurrency is not None:
        own.append(f"workload.concurrency={run.concurrency}")
    if run.engine == "sglang":
        own.append("scheduler.prompts=alone")
    made = load_config(config, [*own, *overrides], ReplayConfig).config
    drafts = made.scheduler.speculative.draft_tokens
    if run.accepted and run.accepted > drafts + 1:
        raise ConfigError(
            f"{run.name} says that a step yields {run.accepted:g} tokens of a request, and with "
            f"scheduler.speculative.draft_tokens={drafts} it yields {drafts + 1} at most: give "
            "the server's own by --set."
        )
    if drafts and run.accepted:
        chance = _acceptance(run.accepted, drafts)
        settled = [*own, *overrides, f"scheduler.speculative.acceptance={chance:.6f}"]
        made = load_config(config, settled, ReplayConfig).config
    return made


def _acceptance(tokens: float, drafts: int) -> float:
    """The chance of a draft whose forerunners were accepted, for so many tokens of a step."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if sum(middle**each for each in range(drafts + 1)) < tokens:
            low = middle
        else:
            high = middle
    return (low + high) / 2
