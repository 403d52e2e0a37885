"""A calibration: its error, the coefficients, and every measurement with its prediction."""

import math
from collections.abc import Iterator

from dsv4kv.replay.clock.fit import FEWEST_TO_LEAVE_OUT, Compared, Estimate, Fit
from dsv4kv.replay.clock.steps import CONSTANTS
from dsv4kv.runs.statistics import Estimate as Interval
from dsv4kv.units import counted
from dsv4kv.view.quantity import format_number, quantity
from dsv4kv.view.table import ABSENT, Columns, Number, Part, Table, Text, mark

_CLIENT = ("client, HTTP and tokenizer", "ms")
_QUANTITIES = {"ttft": "TTFT", "tpot": "TPOT", "throughput": "whole run"}


def _named(estimate: Estimate) -> str:
    return CONSTANTS.get(estimate.name, _CLIENT)[0]


def report_fit(fit: Fit) -> Iterator[Part]:
    """How far predictions are off, then coefficients, then every measurement."""

    def fitted(each: Estimate) -> Number:
        if not each.determined:
            return Number(format_number(each.value), "± ?")
        return quantity(Interval(each.value, 1.96 * each.value * each.error))

    def name(each: Compared) -> str:
        mean = math.isnan(each.share) and each.quantity != "throughput"
        return _QUANTITIES[each.quantity] + (" mean" if mean else "")

    def number(each: Compared, value_s: float) -> Number:
        return Number(format_number(value_s * (1.0 if each.quantity == "throughput" else 1e3)))

    def others(each: Compared) -> Number:
        if each.left_out_s is None:
            return Number(ABSENT)
        return Number(f"{(each.left_out_s / each.measured_s - 1) * 100:+.0f} %")

    yield from (Text(line, "strong") for line in _answers(fit))
    coefficients: Columns = [
        ("of", _named),
        ("fitted", fitted),
        ("unit", lambda each: CONSTANTS.get(each.name, _CLIENT)[1]),
        ("before", lambda each: Number(format_number(each.before))),
        ("known", lambda each: mark("good" if each.determined else "missing")),
    ]
    note = "± is the 95 % interval of these runs; – these runs do not determine it"
    yield from ("", Table("Coefficients of the clock", coefficients, fit.estimates, note=note))
    compared: Columns = [
        ("run", lambda each: each.run),
        ("of", name),
        ("measured", lambda each: number(each, each.measured_s)),
        ("fitted", lambda each: number(each, each.fitted_s)),
        ("cross-validated", others),
    ]
    rows = [each for each in fit.compared if math.isnan(each.share) or each.share == 50.0]
    note = "; ".join(["s for whole runs, else ms; medians where there are any", *fit.assumed])
    yield from ("", Table("Predicted and measured", compared, rows, note=note, keys=2))


def _answers(fit: Fit) -> Iterator[str]:
    errors = {name: fit.median_error(name) for name in _QUANTITIES}
    known = [
        f"{_QUANTITIES[name]} {f'{off:.0%}' if off >= 0.01 else 'under 1 %'}"
        for name, off in errors.items()
        if off is not None
    ]
    if known:
        yield f"Median error on held-out runs: {', '.join(known)}."
    else:
        runs = counted(len({each.run for each in fit.compared}), "run")
        yield (
            f"{runs} cannot be cross-validated ({FEWEST_TO_LEAVE_OUT} or more are needed): the "
            "clock keeps its previous error."
        )
    yield from fit.doubts
    if unknown := [_named(each) for each in fit.estimates if not each.determined]:
        yield (
            f"Not determined by these runs: {', '.join(unknown)}. Runs at concurrency 1, at a "
            "high concurrency, and with long prompts determine them."
        )
