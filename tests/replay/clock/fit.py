"""Fits the coefficients in ``configs/gpus``: ``python -m tests.replay.clock.fit`` prints them with
their errors.

What is fitted is shared: Hopper and Blackwell differ by matrix rates, machines with Grace CPUs by
one factor and by their clients. Fitted next, with Grace again: layers where tensor parallelism
leaves a host. What the points cannot tell apart is taken from step times of SGLang 0.5.14, which
aiconfigurator-core 0.12.0 exports: a draft pass, the context of a decoded token, the prefix of a
prompt's.

Intervals are of points left out of every choice: whole GPUs, layouts and loads are, and the terms
are chosen anew on what is left. A point whose lengths were chosen by its result counts in none.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv4kv.replay.clock.fit import _least_squares
from dsv4kv.replay.clock.steps import Coefficients, HeldOut
from tests.replay.clock.points import FIXED, Floats, Point, Spent, count_point, points

GUESSES = {
    "decode_layer_us": (133.0, 0.5),
    "prompt_layer_us": (2000.0, 0.6),
    "state_passes": (100.0, 0.7),
    "all_to_all_ns": (800.0, 0.7),
    "client_ms": (120.0, 0.4),
    "grace": (1.24, 0.15),
    "grace_client_ms": (250.0, 0.5),
    "hopper_w4a16_tflops": (120.0, 0.5),
    "hopper_fp8_tflops": (700.0, 0.5),
    "blackwell_tflops": (1400.0, 0.5),
}
"""A guess and how far it may be off, as the spread of its logarithm."""
HOST_GPUS = {"gb200": 4, "gb300": 4}
Terms = dict[str, tuple[float, float]]
TERMS: tuple[Terms, ...] = ({}, {"across_hosts": (1.2, 0.3), "grace": GUESSES["grace"]})
"""Guesses of what is fitted next: one of these is chosen."""
CHOSEN = TERMS[-1]

BANDWIDTH_SHARE = 0.9
CONTEXTS = {  # (all heads, split), ns: step tables, 4K to 128K at 64 requests, drafts included
    "h100": (500.0, 1350.0),
    "h200": (500.0, 1150.0),
    "b200": (300.0, 950.0),
    "b300": (300.0, 950.0),
    "gb200": (320.0, 950.0),
    "gb300": (320.0, 850.0),
}
SOURCE = "SGLang 0.5.15's cookbook, 30 points; contexts, drafts of SGLang 0.5.14's step tables"
WEIGHTS = np.array([0.6, 1.0, 1.0])
"""Of TTFT, TPOT and throughput: a TTFT's median is hit by burst and client."""
_HUBER = 0.3
_PRIOR = 0.3
Values = dict[str, float]


def resolve(values: Values, gpu: str, experts: str, held_out: HeldOut) -> Coefficients:
    """The coefficients of one GPU."""
    hopper, grace = gpu.startswith("h"), gpu.startswith("g")
    slower = values["grace"] if grace else 1.0
    rate = "hopper_fp8" if experts == "fp8" else "hopper_w4a16"
    whole, split = CONTEXTS[gpu]
    return Coefficients(
        decode_layer_us=values["decode_layer_us"] * slower,
        draft_us=700 * slower,
        bandwidth_share=BANDWIDTH_SHARE,
        context_ns=whole,
        split_context_ns=split,
        prompt_layer_us=values["prompt_layer_us"] * slower,
        state_passes=values["state_passes"],
        all_to_all_ns=values["all_to_all_ns"],
        tflops=values[f"{rate if hopper else 'blackwell'}_tflops"],
        prefix_ns=90,
        host_gpus=HOST_GPUS.get(gpu, 8),
        across_hosts=values.get("across_hosts", 1.0) if gpu in HOST_GPUS else 1.0,
        client_ms=values["grace_client_ms" if grace else "client_ms"],
        held_out=held_out,
        source=SOURCE,
    )


NO_ERROR = HeldOut(ttft=1, tpot=1, throughput=1)


@dataclass(frozen=True)
class Counted:
    """A point and what took time in it."""

    point: Point
    spent: Spent

    def predict(self, rates: Floats, client_s: float) -> Floats:
        """TTFT and TPOT, medians in ms, and tokens a second of a GPU."""
        row, spent = self.point.row, self.spent
        turns = row["num_prompts"] / min(256, row["concurrency"])
        ttft_s, tpot_s, whole_s = spent.seconds(rates)
        speed = spent.tokens / (whole_s + client_s * turns) / row["gpus"]
        return np.array([(np.median(ttft_s) + client_s) * 1e3, np.median(tpot_s) * 1e3, speed])


Predict = Callable[[Values, Counted], Floats]


def by_model(values: Values, each: Counted) -> Floats:
    """A point by the coefficients of its GPU."""
    gpu, experts = each.point.gpu, each.point.row["quant"]
    return by_coefficients(resolve(values, gpu, experts, NO_ERROR), each)


def by_coefficients(made: Coefficients, each: Counted) -> Floats:
    times = each.spent.times.by(made)
    return each.predict(np.array(times.timer.rates), times.client_s)


def errors(predict: Predict, values: Values, counted: Sequence[Counted]) -> Floats:
    """Logarithms of predicted over measured: float64[points, 3]."""
    return np.array([np.log(predict(values, each) / each.point.measured) for each in counted])


def fit(
    predict: Predict, guesses: Terms, counted: Sequence[Counted], known: Values | None = None
) -> Values:
    """Least squares on logarithms, large errors counting less, guesses held loosely."""
    names = list(guesses)

    def values_of(steps: Floats) -> Values:
        pairs = zip(names, steps, strict=True)
        return (known or {}) | {name: guesses[name][0] * float(np.exp(x)) for name, x in pairs}

    def residuals(steps: Floats) -> Floats:
        found = (errors(predict, values_of(steps), counted) * WEIGHTS).ravel()
        soft = np.sign(found) * _HUBER * np.sqrt(2 * (np.sqrt(1 + (found / _HUBER) ** 2) - 1))
        spreads = np.array([guesses[name][1] for name in names])
        return np.concatenate([soft, _PRIOR * steps / spreads])

    return values_of(_least_squares(residuals, np.zeros(len(names)))) if names else known or {}


WAYS: dict[str, Callable[[Point], Any]] = {
    "GPU": lambda point: point.gpu,
    "layout": lambda point: (point.row["tp"], point.row["dp"], point.row["a2a"]),
    "load": lambda point: point.row["concurrency"],
}
"""What points have in common that are left out together."""


def leave_out(
    predict: Predict,
    counted: Sequence[Counted],
    fit_to: Callable[[Sequence[Counted]], Values],
    way: str = "GPU",
) -> Floats:
    """Errors of every point, fitted on those unlike it alone: float64[points, 3]."""
    found = np.zeros((len(counted), 3))
    for own, others in _parted(counted, way):
        values = fit_to([counted[place] for place in others])
        found[own] = errors(predict, values, [counted[place] for place in own])
    return found


def _parted(counted: Sequence[Counted], way: str) -> Iterator[tuple[list[int], list[int]]]:
    kinds: list[Any] = [WAYS[way](each.point) for each in counted]
    for kind in dict.fromkeys(kinds):
        own = [place for place, each in enumerate(kinds) if each == kind]
        yield own, [place for place, each in enumerate(kinds) if each != kind]


def fit_chosen(counted: Sequence[Counted]) -> Values:
    """By the terms with which loads that are left out are met best."""
    missed = np.zeros(len(TERMS))
    for own, others in _parted(counted, "load"):
        seen, unseen = ([counted[place] for place in places] for places in (others, own))
        shared = fit(by_model, GUESSES, seen)
        for number, terms in enumerate(TERMS):
            values = fit(by_model, terms, seen, shared)
            missed[number] += np.square(errors(by_model, values, unseen) * WEIGHTS).sum()
    return fit_model(counted, TERMS[int(missed.argmin())])


def fit_model(counted: Sequence[Counted], terms: Terms = CHOSEN) -> Values:
    """What is shared, then the terms."""
    return fit(by_model, terms, counted, fit(by_model, GUESSES, counted))


def factors(logs: Floats) -> HeldOut:
    """What nine of ten errors are within, rounded up to a tenth; shipped is a tenth more."""
    within = np.ceil(np.exp(np.quantile(np.abs(logs), 0.9, axis=0)) * 10) / 10 + 0.1
    rounded = (round(each, 1) for each in within.tolist())
    return HeldOut(**dict(zip(("ttft", "tpot", "throughput"), rounded, strict=True)))


def count_model() -> list[Counted]:
    """All points, replayed by source model."""
    return [Counted(point, count_point(point)) for point in points()]


def describe(logs: Floats, counted: Sequence[Counted], way: str) -> str:
    """Median errors by what was left out, in percent."""
    percent = np.abs(np.exp(logs) - 1) * 100
    kinds: list[Any] = [WAYS[way](each.point) for each in counted]
    lines = [f"| {way} left out | points | TTFT | TPOT | throughput |", "|---|---|---|---|---|"]
    for kind in [*dict.fromkeys(kinds), "all"]:
        own = [place for place, each in enumerate(kinds) if kind in ("all", each)]
        medians = " | ".join(f"{median:.0f} %" for median in np.median(percent[own], axis=0))
        lines.append(f"| {kind} | {len(own)} | {medians} |")
    return "\n".join(lines)


def report(
    predict: Predict, counted: Sequence[Counted], fit_to: Callable[[Sequence[Counted]], Values]
) -> tuple[Values, HeldOut]:
    """Fit, leave out in every way, and print; returns what is shipped."""
    values = fit_to(counted)
    logs = errors(predict, values, counted)
    print(describe(logs, counted, "GPU").replace("left out", "fitted"))
    every = []
    for way in WAYS:
        logs = leave_out(predict, counted, fit_to, way)
        print(describe(logs, counted, way))
        every += [
            log for log, each in zip(logs, counted, strict=True) if each.point.name not in FIXED
        ]
    held_out = factors(np.array(every))
    print({name: float(f"{value:.3g}") for name, value in values.items()}, held_out)
    return values, held_out


def main() -> None:
    report(by_model, count_model(), fit_chosen)


if __name__ == "__main__":
    main()
