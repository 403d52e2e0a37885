"""Coefficients that a user's own measurements say most about, and what they leave open.

Least squares on logarithms of times, predicted over measured, with large errors counting less. The
coefficients' own logarithms are fitted, so none is below 0; each starts at what is known of the
GPU and is held there loosely, so what the data says nothing about stays.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from dsv4kv.clock.coefficients import Coefficients, HeldOut
from dsv4kv.fitting.features import Scene, Spent, quantities_of
from dsv4kv.fitting.results import Floats, Measured

HELD = ("state_passes", "all_to_all_ns")
"""Coefficients of every prompt token, as ``tflops`` is: on one deployment they cannot be separated
from it, so they stay what is known of the GPU."""
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
known, that are those of something else: on public servers they are off by less than 2."""


@dataclass(frozen=True)
class Estimate:
    """A coefficient.

    Attributes:
        name: Of ``Coefficients``.
        value: As fitted.
        before: As it was known of the GPU.
        error: Standard error of its logarithm.
    """

    name: str
    value: float
    before: float
    error: float

    @property
    def determined(self) -> bool:
        """Whether the data says what it is."""
        return self.error <= DETERMINED


@dataclass(frozen=True)
class Compared:
    """A time that was measured.

    Attributes:
        run: Of which run.
        quantity: ``ttft``, ``tpot`` or ``throughput``.
        share: Its percentile; NaN for means and whole runs.
        measured_s: Seconds, as measured.
        fitted_s: By the fitted coefficients.
        left_out_s: By those fitted on all other runs; None where there are too few.
    """

    run: str
    quantity: str
    share: float
    measured_s: float
    fitted_s: float
    left_out_s: float | None


@dataclass(frozen=True)
class Fit:
    """What came of it.

    Attributes:
        coefficients: To be used from now on.
        estimates: Each of them, with its error.
        compared: Every measurement with its prediction.
        assumed: What no file says of its runs, in words.
        doubts: Why these are no coefficients to be used, in sentences; empty where they are.
    """

    coefficients: Coefficients
    estimates: Sequence[Estimate]
    compared: Sequence[Compared]
    assumed: Sequence[str]
    doubts: Sequence[str] = ()

    def median_error(self, quantity: str) -> float | None:
        """Of runs left out: median of |predicted / measured − 1|; None where none was."""
        errors = [
            abs(each.left_out_s / each.measured_s - 1)
            for each in self.compared
            if each.quantity == quantity and each.left_out_s is not None
        ]
        return float(np.median(errors)) if errors else None


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
        if _near(then, now):
            break
        now = _between(now, then) if number else then
    assert best is not None
    _, now, spent = best
    left_out = _leave_out(scenes, spent, before, now)
    compared = list(_compare(scenes, spent, now, left_out))
    held_out = _held_out(compared, before.held_out)
    rounded = {name: float(f"{getattr(now, name):.4g}") for name in FITTED}
    said = {"source": _source(scenes), "measured_on": scenes[0].measured_on}
    fitted = now.model_copy(update=rounded | {"held_out": held_out} | said)
    assumed = dict.fromkeys(scene.run.assumed for scene in scenes if scene.run.assumed)
    estimates = _estimates(scenes, spent, before, fitted)
    doubts = _doubts(compared, list(_compare(scenes, spent, before, [None] * len(scenes))))
    return Fit(fitted, estimates, compared, tuple(assumed), doubts)


def _doubts(fitted: Sequence[Compared], known: Sequence[Compared]) -> tuple[str, ...]:
    """What speaks against measurements: by fitted coefficients, and by those of before."""
    found = []
    for rows, most, whose in (
        (known, _ELSEWHERE, "what is known of this GPU"),
        (fitted, _STRAYS, "what fits best"),
    ):
        for quantity in dict.fromkeys(each.quantity for each in rows):
            logs = [
                abs(math.log(each.fitted_s / each.measured_s))
                for each in rows
                if each.quantity == quantity
            ]
            if (off := math.exp(float(np.median(logs)))) > most:
                found.append(
                    f"{quantity} is × {off:.2g} off {whose} in the median: these are times of "
                    "another deployment or in another unit, or of a server that did other things."
                )
    return tuple(found)


def _near(one: Coefficients, other: Coefficients) -> bool:
    """Whether two differ by less than repeats of a run do."""
    pairs = [(getattr(one, name), getattr(other, name)) for name in FITTED]
    return all(abs(a - b) <= _SETTLED * b for a, b in pairs)


def _between(one: Coefficients, other: Coefficients) -> Coefficients:
    """Half way from one to the other."""
    means = {name: math.sqrt(getattr(one, name) * getattr(other, name)) for name in FITTED}
    return one.model_copy(update=means)


def _source(scenes: Sequence[Scene]) -> str:
    """What the coefficients go by, for whoever reads them in a replay."""
    first, count = scenes[0], len(scenes)
    others = f" and {count - 1} more" if count > 1 else ""
    return (
        f"dsv4kv calibrate on {first.run.name}{others} ({first.run.engine}); what these leave "
        f"open: {first.times.coefficients.source}"
    )


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
    """Coefficients whose logarithms are so much larger."""
    values = {n: _known(before, n) * float(np.exp(x)) for n, x in zip(FITTED, steps, strict=True)}
    return before.model_copy(update=values)


def _error(scene: Scene, quantity: str) -> float:
    """How far replay and run may differ, times what repeats of a run do."""
    if scene.run.concurrency == 1:
        return 1.0
    return _QUEUED_TTFT if quantity == "ttft" else _QUEUED


def _known(coefficients: Coefficients, name: str) -> float:
    """A coefficient; one of 0 could not grow."""
    return max(float(getattr(coefficients, name)), _TINY)


def _residuals(
    scenes: Sequence[Scene], spent: Sequence[Spent], coefficients: Coefficients
) -> Floats:
    """Weighted logarithms of predicted over measured; a latency counts once, however often."""
    found = []
    for scene, each in zip(scenes, spent, strict=True):
        names, measured = quantities_of(scene.run)
        predicted = each.predict(scene.run, scene.times.by(coefficients))
        weights = [1 / (_error(scene, name) * np.sqrt(names.count(name))) for name in names]
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
    """Every coefficient with the error that the data leaves it."""
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
    kinds = [_repeated(scene.run) for scene in scenes]
    if len(set(kinds)) < FEWEST_TO_LEAVE_OUT:
        return [None] * len(scenes)
    found: list[Floats | None] = []
    for place, scene in enumerate(scenes):
        others = [each for each, kind in enumerate(kinds) if kind != kinds[place]]
        fitted = _fit([scenes[i] for i in others], [spent[i] for i in others], before, start)
        found.append(spent[place].predict(scene.run, scene.times.by(fitted)))
    return found


def _repeated(run: Measured) -> tuple[object, ...]:
    """What repeats of a run have in common: how many at once, and how long they are."""
    lengths = sorted((each.input_tokens, each.output_tokens) for each in run.requests)
    return run.engine, run.concurrency, *lengths


def _compare(
    scenes: Sequence[Scene],
    spent: Sequence[Spent],
    fitted: Coefficients,
    left_out: Sequence[Floats | None],
) -> list[Compared]:
    rows = []
    for scene, each, without in zip(scenes, spent, left_out, strict=True):
        run, times = scene.run, scene.times.by(fitted)
        names, measured = quantities_of(run)
        shares = [share for _, share, _ in run.latencies] + [float("nan")]
        predicted = each.predict(run, times)
        for place, name in enumerate(names):
            others = None if without is None else float(without[place])
            numbers = float(measured[place]), float(predicted[place]), others
            rows.append(Compared(run.name, name, shares[place], *numbers))
    return rows


def _held_out(compared: Sequence[Compared], before: HeldOut) -> HeldOut:
    """What nine of ten errors of runs left out are within; as before where none was."""
    found = {}
    for name, known in before:
        logs = [
            abs(np.log(each.left_out_s / each.measured_s))
            for each in compared
            if each.quantity == name and each.left_out_s is not None
        ]
        factor = float(np.exp(np.quantile(logs, 0.9))) if logs else known
        found[name] = max(1.05, np.ceil(factor * 20) / 20)
    return HeldOut(**found)


def dumps(fit: Fit) -> str:
    """The fit as JSON."""
    compared = [
        asdict(each) | {"share": None if math.isnan(each.share) else each.share}
        for each in fit.compared
    ]
    document = {
        "coefficients": fit.coefficients.model_dump(),
        "estimates": [asdict(e) | {"determined": e.determined} for e in fit.estimates],
        "compared": compared,
        "doubts": list(fit.doubts),
    }
    return json.dumps(document, indent=1)
