"""Sweeps: one answer for every combination of the values of some inputs."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dsv4kv.budget.answer import Answer, answer, published_bytes
from dsv4kv.budget.inputs import READERS, Inputs, read_flag, read_inputs
from dsv4kv.budget.scenario import find_formats, find_model
from dsv4kv.engines.names import find_flag
from dsv4kv.errors import ConfigError, DoesNotFit, find_name
from dsv4kv.units import check_points

COLUMNS: dict[str, Callable[[Answer], Any]] = {
    "gpus": lambda found: found.scenario.layout.gpus,
    "layout": lambda found: found.scenario.layout.label,
    "fits": lambda found: found.fits,
    "context_tokens": lambda found: found.context,
    "concurrency": lambda found: found.concurrency,
    "max_concurrency": lambda found: found.max_concurrency,
    "max_context_tokens": lambda found: found.max_context,
    "max_tokens": lambda found: found.max_tokens,
    "cached_bytes_per_request": lambda found: found.cached_bytes,
    "bytes_per_token": lambda found: float(found.token_bytes),
    "fixed_bytes_per_request": lambda found: sum(cost.fixed_bytes for cost in found.costs),
    "weight_bytes_per_gpu": lambda found: found.use.weights,
    "transient_bytes_per_gpu": lambda found: found.use.transient,
    "cache_bytes_per_gpu": lambda found: found.use.cache,
    "free_bytes_per_gpu": lambda found: found.use.free,
}
"""What a row says of its answer."""


class Axis(NamedTuple):
    """One input and the values it takes, as written."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """One point of a sweep, with the value of every axis as written."""

    point: dict[str, str]
    inputs: Inputs
    cached_bytes: int  # one request's cache at its context, without padding, state and copies
    token_bytes: float  # marginal bytes of one token of context, without padding and copies
    found: Answer | None
    problem: str | None = None
    too_much: bool = False  # there is no answer because no number of GPUs is enough

    @property
    def fits(self) -> bool:
        """False where what was asked does not fit; a point that cannot be asked is no verdict."""
        return not self.too_much and (self.found is None or self.found.fits)


def parse_axis(text: str, engine: str = "") -> Axis:
    """Parse ``context=4K,32K``, or a flag of ``engine``; raises ``ConfigError``."""
    name, equals, rest = text.partition("=")
    if not equals:
        raise ConfigError(f"--axis {text}: write NAME=A,B, for example context=32K,128K.")
    name, values = name.replace("_", "-"), [value.strip() for value in rest.split(",")]
    if not all(values) or len(set(values)) < len(values):
        raise ConfigError(f"--axis {text}: a value is missing or comes twice.")
    family, spelling = engine.partition(":")[0], f"--{name}"
    flag = None if name in READERS else find_flag(family, spelling)
    if flag and flag.means and flag.means.input in READERS:
        name = flag.means.input
        values = [read_flag(family, spelling, value).texts[name] for value in values]
    return Axis(find_name(name, sorted(READERS), "input to sweep"), tuple(values))


def run_sweep(texts: Mapping[str, str], axes: Sequence[Axis]) -> list[Row]:
    """Answer every combination, the last axis changing fastest.

    A combination without an answer keeps its sentence; if none has one, the first is raised.
    """
    names = [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1 or name in texts:
            raise ConfigError(f"--axis {name}: it is given twice: keep one.")
    check_points(len(axis.values) for axis in axes)
    points = itertools.product(*(axis.values for axis in axes))
    rows = [_run(texts, dict(zip(names, point, strict=True))) for point in points]
    if all(row.problem for row in rows):
        raise (DoesNotFit if rows[0].too_much else ConfigError)(rows[0].problem or "")
    return rows


def _run(texts: Mapping[str, str], point: dict[str, str]) -> Row:
    inputs = read_inputs({**texts, **point})
    config = find_model(inputs.model)
    too_much = False
    try:
        found, problem = answer(inputs), None
        context = found.context
    except ConfigError as error:  # what one request takes is known even so
        found, problem, too_much = None, str(error), isinstance(error, DoesNotFit)
        context = inputs.context or config.max_context_tokens
    cached, per_token = published_bytes(config, find_formats(inputs, config), context)
    return Row(point, inputs, cached, float(per_token), found, problem, too_much)


def to_values(row: Row) -> dict[str, Any]:
    found = row.found
    answers = {name: read(found) if found else None for name, read in COLUMNS.items()}
    answers |= {"cached_bytes_per_request": row.cached_bytes, "bytes_per_token": row.token_bytes}
    return {**row.point, **answers, "problem": row.problem}
