"""Coefficients that a user's own measurements say most about, and what they leave open.

Least squares on logarithms of times, predicted over measured, with large errors counting less. The
coefficients' own logarithms are fitted, so none is below 0; each starts at what is known of the
GPU and is held there loosely, so what the data says nothing about stays.

A measured run is replayed and counted, request by request. Times are linear in what is counted
(``clock.steps``), so a replay says how every coefficient moves every time; in a closed loop the
order of things hardly depends on them.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property

import numpy as np

from dsv4kv.budget.gpus import load_gpu
from dsv4kv.config.load import load_config
from dsv4kv.config.replay import ReplayConfig
from dsv4kv.core.clock import COUNTS
from dsv4kv.core.served import Served
from dsv4kv.engines.names import FAMILIES
from dsv4kv.errors import ConfigError
from dsv4kv.replay.build import Parts, build_replay, find_parts
from dsv4kv.replay.clock.measured import Floats, Measured
from dsv4kv.replay.clock.steps import (
    MOST_FACTOR,
    Coefficients,
    HeldOut,
    MeasuredOn,
    ModelTimes,
)


@dataclass(frozen=True)
class Spent:
    """What took time to first tokens, of further ones and in the whole run.

    float64[requests, COUNTS + 1] and [COUNTS + 1]; the last column is what a server waited for
    the next request, in a closed loop in times of a client, else in seconds.
    """

    ttft: Floats
    tpot: Floats
    whole: Floats

    def predict(self, run: Measured, times: ModelTimes) -> Floats:
        """Seconds of everything that was measured, in the order of ``Measured.quantities``."""
        rates = np.append(times.timer.rates, _waiting_s(run, times))
        values = {"ttft": self.ttft @ rates + times.client_s, "tpot": self.tpot @ rates}
        ordered = {name: np.sort(each) for name, each in values.items()}
        found = []
        for name, share, _ in run.quantities:
            times_s = ordered.get(name, self.whole @ rates[:, None] + times.client_s)
            place, places = share / 100 * (len(times_s) - 1), np.arange(len(times_s))
            found.append(
                times_s.mean() if math.isnan(share) else np.interp(place, places, times_s)
            )
        return np.array(found)


def _waiting_s(run: Measured, times: ModelTimes) -> float:
    return 1.0 if run.concurrency is None else times.client_s


@dataclass(frozen=True)
class Scene:
    """A measured run, and the deployment that it was measured on as a replay of the run."""

    run: Measured
    config: ReplayConfig

    @cached_property
    def parts(self) -> Parts:
        """What no coefficient changes."""
        return find_parts(self.config, self.run.requests)

    @property
    def times(self) -> ModelTimes:
        """By the coefficients that there are so far."""
        return self.parts.times

    @property
    def measured_on(self) -> MeasuredOn:
        """The deployment, as a calibration names it."""
        model, layout = self.parts.memory.model, self.times.layout
        return MeasuredOn(
            gpu=load_gpu(self.config.cost.gpu).name, model=model.name, layout=layout.label
        )

    def count(self, times: ModelTimes) -> Spent:
        """Replay the run by some coefficients, and count."""
        parts = replace(self.parts, times=times)
        scheduler = build_replay(self.config, self.run.requests, parts=parts).scheduler
        scheduler.ended = list[Served]()
        clock, steps = scheduler.clock, 0
        instants, counted = [0.0], [[0.0] * (len(COUNTS) + 1)]
        while scheduler.turn():
            if clock.steps > steps:  # it may have waited
                instants.append(clock.now_s)
                counted.append([*map(float, clock.counts), clock.idle_s])
            steps = clock.steps

        def at(moments: Sequence[float]) -> Floats:
            """What had been counted at some moments: float64[n, COUNTS + 1]."""
            columns = np.array(counted).T
            return np.stack([np.interp(moments, instants, column) for column in columns], 1)

        rows = list[tuple[float, float, float, int]]()
        for one in scheduler.ended:
            if one.finished_s is None or one.first_token_s is None:
                raise ConfigError(
                    f"a request of {one.input_tokens:,} and {one.output_tokens:,} tokens cannot "
                    "be served by this configuration: give the server's own settings by --set."
                )
            rows.append((one.arrival_s, one.first_token_s, one.finished_s, one.output_tokens))
        last_s = max(row[2] for row in rows)
        rows = [row for row in rows if row[3] > 1]
        if not rows:
            raise ConfigError(f"{self.run.name}: no request has a second token: nothing to fit.")
        arrived, first, last = (at([row[i] for row in rows]) for i in range(3))
        further = np.array([row[3] - 1 for row in rows], dtype=float)[:, None]
        (whole,) = at([last_s])
        spent = first - arrived, (last - first) / further, whole
        for each in spent:
            each[..., -1] /= _waiting_s(self.run, times)
        return Spent(*spent)


def open_scenes(
    config: str | None, overrides: Sequence[str], runs: Sequence[Measured]
) -> list[Scene]:
    """Every run as a replay of a deployment; raises ``ConfigError``."""
    return [Scene(run, _deployment(config, overrides, run)) for run in runs]


def _deployment(config: str | None, overrides: Sequence[str], run: Measured) -> ReplayConfig:
    own = ["prefix.reuse=false", "workload.trace=null"]
    own += ["workload.arrivals=" + ("trace" if run.concurrency is None else "closed")]
    if run.concurrency is not None:
        own.append(f"workload.concurrency={run.concurrency}")
    if FAMILIES[run.engine].prompts_alone:
        own.append("scheduler.prompts=alone")
    made = load_config(config, [*own, *overrides], ReplayConfig).config
    drafts, tokens = made.scheduler.speculative.draft_tokens, run.accepted
    if tokens and tokens > drafts + 1:
        raise ConfigError(
            f"{run.name} says that a step yields {tokens:g} tokens of a request, and with "
            f"scheduler.speculative.draft_tokens={drafts} it yields {drafts + 1} at most: give "
            "the server's own by --set."
        )
    if drafts and tokens:
        # the chance of a draft whose forerunners were accepted, by bisection
        low, high = 0.0, 1.0
        for _ in range(40):
            chance = (low + high) / 2
            yields = sum(chance**each for each in range(drafts + 1))
            low, high = (chance, high) if yields < tokens else (low, chance)
        settled = [*own, *overrides, f"scheduler.speculative.acceptance={(low + high) / 2:.6f}"]
        made = load_config(config, settled, ReplayConfig).config
    return made


HELD = ("state_passes", "all_to_all_ns", "across_hosts")
"""Coefficients of every prompt token, as ``tflops`` is: on one deployment they cannot be separated
from it, nor that of hosts from a layer, so they stay what is known of the GPU."""
FITTED = tuple(
    name
    for name, field in Coefficients.model_fields.items()
    if field.annotation is float and name not in HELD
)
"""Coefficients that are fitted."""

_PRIORS = np.array([0.2 if name == "bandwidth_share" else 1.0 for name in FITTED])
"""Spread of every coefficient's logarithm around what is known of the GPU."""
_NOISE = 0.01  # least error of a measurement: repeats of a run agree to 1 %
_TINY = 1e-9
_HUBER = 5.0  # errors beyond so many times the noise count linearly
_QUEUED, _QUEUED_TTFT = 3.0, 10.0
"""Errors of runs whose requests wait for one another, times those at concurrency 1: who comes when
moves them by more than repeats of a run differ, first tokens most."""
DETERMINED = 0.05
"""Largest standard error of a coefficient's logarithm at which the data is said to know it."""
_ROUNDS, _SETTLED = 10, 0.002  # the latter a fifth of what repeats of a run differ by
FEWEST_TO_LEAVE_OUT = 3
_STRAYS, _ELSEWHERE = 1.5, 5.0
"""How far fitted times are off in the median that are no fit; and times of the GPU, as it is
known, that belong to something else: on public servers they are off by less than 2."""


@dataclass(frozen=True)
class Estimate:
    """A coefficient as fitted, as known of the GPU, and the standard error of its logarithm."""

    name: str
    value: float
    before: float
    error: float

    @property
    def determined(self) -> bool:
        """Whether the data determines it."""
        return self.error <= DETERMINED


@dataclass(frozen=True)
class Compared:
    """A measured ``ttft``, ``tpot`` or ``throughput`` of a run, and predictions of it.

    ``share`` is its percentile, NaN for means and whole runs; ``left_out_s`` is by coefficients
    fitted on all other runs, None where there are too few.
    """

    run: str
    quantity: str
    share: float
    measured_s: float
    fitted_s: float
    left_out_s: float | None


@dataclass(frozen=True)
class Fit:
    """Fitted coefficients, each with its error, and every measurement with its prediction.

    ``assumed`` is what no file says of its runs; ``doubts`` are why they cannot be used.
    """

    coefficients: Coefficients
    estimates: Sequence[Estimate]
    compared: Sequence[Compared]
    assumed: Sequence[str]
    doubts: Sequence[str] = ()

    def median_error(self, quantity: str) -> float | None:
        """Median of |predicted / measured − 1| over held-out runs; None without any."""
        errors = [abs(ratio - 1) for ratio in _held_out_ratios(self.compared, quantity)]
        return float(np.median(errors)) if errors else None


def _held_out_ratios(compared: Sequence[Compared], quantity: str) -> list[float]:
    """Predicted over measured, of runs that were left out."""
    rows = [each for each in compared if each.quantity == quantity]
    return [each.left_out_s / each.measured_s for each in rows if each.left_out_s is not None]


def fit_runs(scenes: Sequence[Scene], on_replay: Callable[[int, int], None]) -> Fit:
    """Fit the coefficients of one deployment, or of several of one kind of GPU.

    Every round replays all runs by the coefficients so far, as who waits for whom depends on them
    a little. From round to round that jumps, so they go half way, and the best one is taken.

    Raises:
        ConfigError: A run that the deployment cannot serve.
    """
    before = now = scenes[0].times.coefficients
    best: tuple[float, Coefficients, list[Spent]] | None = None
    for number in range(_ROUNDS):
        spent = []
        for place, scene in enumerate(scenes):
            spent.append(scene.count(scene.times.by(now)))
            on_replay(number * len(scenes) + place + 1, _ROUNDS * len(scenes))
        off = float(np.square(_residuals(scenes, spent, now)).sum())
        if best is None or off < best[0]:
            best = off, now, spent
        then = _fit(scenes, spent, before, now)
        pairs = {name: (getattr(then, name), getattr(now, name)) for name in FITTED}
        if all(abs(new - old) <= _SETTLED * old for new, old in pairs.values()):
            break
        middle = {name: math.sqrt(new * old) for name, (new, old) in pairs.items()}
        now = now.model_copy(update=middle) if number else then
    assert best is not None
    _, now, spent = best
    left_out = _leave_out(scenes, spent, before, now)
    compared = list(_compare(scenes, spent, now, left_out))
    run, others = scenes[0].run, f" and {len(scenes) - 1} more" if len(scenes) > 1 else ""
    rounded = {name: float(f"{getattr(now, name):.4g}") for name in FITTED}
    said = {
        "held_out": _held_out(compared, before.held_out),
        "source": f"dsv4kv calibrate on {run.name}{others} ({run.engine}); what these leave "
        f"open: {before.source}",
        "measured_on": scenes[0].measured_on,
    }
    fitted = now.model_copy(update=rounded | said)
    assumed = dict.fromkeys(scene.run.assumed for scene in scenes if scene.run.assumed)
    estimates = _estimates(scenes, spent, before, fitted)
    doubts = _doubts(compared, list(_compare(scenes, spent, before, [None] * len(scenes))))
    return Fit(fitted, estimates, compared, tuple(assumed), doubts)


def _doubts(fitted: Sequence[Compared], known: Sequence[Compared]) -> tuple[str, ...]:
    """What speaks against measurements: errors by fitted and by known coefficients."""
    found = []
    for rows, most, whose in (
        (known, _ELSEWHERE, "what is known of this GPU"),
        (fitted, _STRAYS, "what fits best"),
    ):
        for quantity in dict.fromkeys(each.quantity for each in rows):
            own = [each for each in rows if each.quantity == quantity]
            logs = [abs(math.log(each.fitted_s / each.measured_s)) for each in own]
            if (off := math.exp(float(np.median(logs)))) > most:
                found.append(
                    f"{quantity} is × {off:.2g} off {whose} in the median: these are times of "
                    "another deployment or in another unit, or of a server that did other things."
                )
    return tuple(found)


def _fit(
    scenes: Sequence[Scene], spent: Sequence[Spent], before: Coefficients, start: Coefficients
) -> Coefficients:
    def residuals(steps: Floats) -> Floats:
        found = _residuals(scenes, spent, _moved(before, steps)) / _NOISE
        soft = np.sign(found) * _HUBER * np.sqrt(2 * (np.sqrt(1 + (found / _HUBER) ** 2) - 1))
        return np.concatenate([soft, steps / _PRIORS])

    begin = np.array([np.log(_known(start, name) / _known(before, name)) for name in FITTED])
    return _moved(before, _least_squares(residuals, begin))


def _moved(before: Coefficients, steps: Floats) -> Coefficients:
    values = {n: _known(before, n) * float(np.exp(x)) for n, x in zip(FITTED, steps, strict=True)}
    return before.model_copy(update=values)


def _known(coefficients: Coefficients, name: str) -> float:
    """A coefficient; one of 0 could not grow."""
    return max(float(getattr(coefficients, name)), _TINY)


def _residuals(
    scenes: Sequence[Scene], spent: Sequence[Spent], coefficients: Coefficients
) -> Floats:
    """Weighted logarithms of predicted over measured; a latency counts once, however often."""
    found = []
    for scene, each in zip(scenes, spent, strict=True):
        names, _, measured = zip(*scene.run.quantities, strict=True)
        predicted = each.predict(scene.run, scene.times.by(coefficients))
        queued = {"ttft": _QUEUED_TTFT} if scene.run.concurrency != 1 else {}
        usual = _QUEUED if queued else 1.0
        weights = [1 / (queued.get(name, usual) * np.sqrt(names.count(name))) for name in names]
        found.append(np.log(predicted / measured) * weights)
    return np.concatenate(found)


def _least_squares(residuals: Callable[[Floats], Floats], steps: Floats) -> Floats:
    """Levenberg and Marquardt, from somewhere near."""
    damping = 1e-2
    now = residuals(steps)
    for _ in range(60):
        slopes = _slopes(residuals, steps, now)
        normal = slopes.T @ slopes
        step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -slopes.T @ now)
        then = residuals(steps + step)
        if then @ then < now @ now:
            steps, now, damping = steps + step, then, damping / 5
            if np.abs(step).max() < 1e-5:
                break
        else:
            damping *= 7
    return steps


def _slopes(residuals: Callable[[Floats], Floats], steps: Floats, now: Floats) -> Floats:
    small = 1e-4
    columns = [(residuals(steps + each) - now) / small for each in small * np.eye(len(steps))]
    return np.stack(columns, 1)


def _estimates(
    scenes: Sequence[Scene], spent: Sequence[Spent], before: Coefficients, fitted: Coefficients
) -> list[Estimate]:
    zero = np.zeros(len(FITTED))

    def residuals(steps: Floats) -> Floats:
        return _residuals(scenes, spent, _moved(fitted, steps))

    now = residuals(zero)
    noise = max(_NOISE, float(np.sqrt(np.mean(now**2))))
    slopes = _slopes(residuals, zero, now) / noise
    errors = np.sqrt(np.diag(np.linalg.inv(slopes.T @ slopes + np.diag(1 / _PRIORS**2))))
    return [
        Estimate(name, getattr(fitted, name), getattr(before, name), float(error))
        for name, error in zip(FITTED, errors, strict=True)
    ]


def _leave_out(
    scenes: Sequence[Scene], spent: Sequence[Spent], before: Coefficients, start: Coefficients
) -> list[Floats | None]:
    """Predictions of every run by what was fitted on all that are no repeats of it."""
    kinds = list[tuple[object, ...]]()
    for run in (scene.run for scene in scenes):
        lengths = sorted((each.input_tokens, each.output_tokens) for each in run.requests)
        kinds.append((run.engine, run.concurrency, *lengths))
    if len(set(kinds)) < FEWEST_TO_LEAVE_OUT:
        return [None] * len(scenes)
    found: list[Floats | None] = []
    for place, scene in enumerate(scenes):
        others = [each for each, kind in enumerate(kinds) if kind != kinds[place]]
        fitted = _fit([scenes[i] for i in others], [spent[i] for i in others], before, start)
        found.append(spent[place].predict(scene.run, scene.times.by(fitted)))
    return found


def _compare(
    scenes: Sequence[Scene],
    spent: Sequence[Spent],
    fitted: Coefficients,
    left_out: Sequence[Floats | None],
) -> list[Compared]:
    rows = []
    for scene, each, without in zip(scenes, spent, left_out, strict=True):
        run = scene.run
        predicted = each.predict(run, scene.times.by(fitted))
        for place, (name, share, measured_s) in enumerate(run.quantities):
            others = None if without is None else float(without[place])
            numbers = measured_s, float(predicted[place]), others
            rows.append(Compared(run.name, name, share, *numbers))
    return rows


def _held_out(compared: Sequence[Compared], before: HeldOut) -> HeldOut:
    """Factors that hold nine of ten errors of held-out runs; as before where none was held out."""
    found = {}
    for name, known in before:
        logs = np.abs(np.log(_held_out_ratios(compared, name)))
        factor = float(np.exp(np.quantile(logs, 0.9))) if len(logs) else known
        found[name] = min(max(1.05, np.ceil(factor * 20) / 20), MOST_FACTOR)
    return HeldOut(**found)


def dumps(fit: Fit) -> str:
    """The fit as JSON."""
    shares = [None if math.isnan(each.share) else each.share for each in fit.compared]
    pairs = zip(fit.compared, shares, strict=True)
    document = {
        "coefficients": fit.coefficients.model_dump(),
        "estimates": [asdict(e) | {"determined": e.determined} for e in fit.estimates],
        "compared": [asdict(each) | {"share": share} for each, share in pairs],
        "doubts": list(fit.doubts),
    }
    return json.dumps(document, indent=1)
