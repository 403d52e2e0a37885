"""Sweeps: one configuration for every combination of the values of some keys."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.document import Document, read_document, read_value
from dsv4kv.config.load import LoadedConfig, find_config
from dsv4kv.config.overrides import Setting, parse_overrides, split_option
from dsv4kv.config.problems import gather
from dsv4kv.config.resolve import resolve
from dsv4kv.errors import ConfigError


@dataclass(frozen=True)
class AxisCase:
    """One point of a sweep.

    Attributes:
        axis: Value of every swept key by dotted path, validated, as JSON knows it.
        config: The whole configuration of this point.
    """

    axis: dict[str, Any]
    config: BenchConfig


def expand_axes(
    loaded: LoadedConfig, overrides: Sequence[str], axes: Sequence[str]
) -> list[AxisCase]:
    """Expand ``KEY=VALUE,VALUE`` axes to their product, the last axis changing fastest.

    Without axes there is one case, with an empty ``axis``.

    Raises:
        ConfigError: A key that is swept twice or also set, an axis without values or with one
            value twice, or values that do not validate: all of them, a line each.
    """
    settings = parse_overrides(overrides)
    swept = gather(_parse_axis, axes)
    _refuse_repeats(settings, swept)
    document = read_document(loaded.text, str(find_config(loaded.source)))
    cases = gather(partial(_case, document, settings), itertools.product(*swept))
    _refuse_equal_cases(cases, axes)
    return cases


def _parse_axis(text: str) -> list[Setting]:
    option = f"--axis {text}"
    path, values = split_option(option, text)
    if values.endswith(","):
        raise ConfigError(f"{option}: a value is missing after the last comma.")
    # the items of a YAML flow list: commas inside [0, 2] or "a, b" do not split
    items = read_value(f"[{values}]", option)
    return [Setting(path, item, option) for item in items]


def _refuse_repeats(settings: Iterable[Setting], swept: Iterable[Sequence[Setting]]) -> None:
    given = {setting.path: setting.option for setting in settings}
    for axis in swept:
        path, option = axis[0].path, axis[0].option
        if path in given:
            raise ConfigError(
                f"{option}: {'.'.join(path)} is also given by {given[path]}: keep one."
            )
        given[path] = option


def _case(document: Document, settings: Sequence[Setting], point: Sequence[Setting]) -> AxisCase:
    config = resolve(document, [*settings, *point])
    values = config.model_dump(mode="json")
    axis = {".".join(each.path): _value_at(values, each.path) for each in point}
    return AxisCase(axis, config)


def _value_at(values: Any, path: Iterable[str]) -> Any:
    for name in path:
        values = values[name]
    return values


def _refuse_equal_cases(cases: Sequence[AxisCase], axes: Sequence[str]) -> None:
    seen: list[dict[str, Any]] = []
    for case in cases:
        if case.axis in seen:
            point = ", ".join(f"{key}={value}" for key, value in case.axis.items())
            raise ConfigError(f"--axis {' --axis '.join(axes)}: {point} comes twice: keep one.")
        seen.append(case.axis)
