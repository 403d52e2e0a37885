"""A calibration in tables: the coefficients, and every measurement with its prediction."""

import math
from collections.abc import Iterator

from dsv4kv.clock.coefficients import CONSTANTS
from dsv4kv.fitting.fit import FEWEST_TO_LEAVE_OUT, Compared, Estimate, Fit
from dsv4kv.measure.statistics import Estimate as Interval
from dsv4kv.view.quantity import format_number, measured
from dsv4kv.view.table import ABSENT, Mark, Number, Part, Table, Text, names, numbers

_CLIENT = ("client, HTTP and tokenizer", "ms")


def report_fit(fit: Fit) -> Iterator[Part]:
    """Both tables, and the answer."""
    yield coefficients_table(fit)
    yield ""
    yield compared_table(fit)
    yield ""
    for line in answers(fit):
        yield Text(line, "strong")


def coefficients_table(fit: Fit) -> Table:
    """One row for every coefficient."""
    return Table(
        "Coefficients of the clock",
        [*names("of"), *numbers("fitted"), *names("unit"), *numbers("before"), *names("known")],
        [_coefficient_cells(each) for each in fit.estimates],
        note="± is the 95 % interval that these runs leave; – these runs do not determine it",
        keys=1,
    )


def _coefficient_cells(each: Estimate) -> tuple[str | Number | Mark, ...]:
    words, unit = CONSTANTS.get(each.name, _CLIENT)
    before = Number(format_number(each.before))
    if not each.determined:
        value = Number(format_number(each.value), "± ?")
        return words, value, unit, before, Mark("missing")
    value = measured(Interval(each.value, 1.96 * each.value * each.error))
    return words, value, unit, before, Mark("good")


_QUANTITIES = {"ttft": "TTFT", "tpot": "TPOT", "throughput": "whole run"}


def compared_table(fit: Fit) -> Table:
    """One row for every measurement: medians, means and whole runs."""
    rows = [each for each in fit.compared if math.isnan(each.share) or each.share == 50.0]
    return Table(
        "Predicted and measured",
        [
            *names("run", "of"),
            *numbers("measured", "fitted", "run left out"),
        ],
        [_compared_cells(each) for each in rows],
        note="; ".join(["seconds for whole runs, ms else; medians where there are", *fit.assumed]),
        keys=2,
    )


def _compared_cells(each: Compared) -> tuple[str | Number, ...]:
    scale = 1.0 if each.quantity == "throughput" else 1e3
    mean = math.isnan(each.share) and each.quantity != "throughput"
    others = ABSENT
    if each.left_out_s is not None:
        others = f"{(each.left_out_s / each.measured_s - 1) * 100:+.0f} %"
    return (
        each.run,
        _QUANTITIES[each.quantity] + (" mean" if mean else ""),
        Number(format_number(each.measured_s * scale)),
        Number(format_number(each.fitted_s * scale)),
        Number(others),
    )


def answers(fit: Fit) -> Iterator[str]:
    """What is known now, and what would determine the rest."""
    errors = {name: fit.median_error(name) for name in _QUANTITIES}
    known = [f"{_QUANTITIES[n]} {_percent(off)}" for n, off in errors.items() if off is not None]
    runs = len({each.run for each in fit.compared})
    if known:
        yield f"Runs that were left out are off by (median): {', '.join(known)}."
    else:
        yield (
            f"How far it is off elsewhere is not known from {runs} "
            f"run{'s' if runs > 1 else ''}: {FEWEST_TO_LEAVE_OUT} or more can be left out in "
            "turn; the error of before stays."
        )
    yield from fit.doubts
    unknown = [each.name for each in fit.estimates if not each.determined]
    if unknown:
        yield (
            f"Not determined by these runs: {', '.join(unknown)}. Runs at concurrency 1, at a "
            "high one, and with long prompts determine them."
        )


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else "under 1 %"
