"""Sweeps: one configuration for every combination of the values of some keys."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, overload

from dsv4kv.config.bench import BenchConfig, Section
from dsv4kv.config.document import (
    Document,
    Setting,
    gather,
    parse_overrides,
    read_document,
    read_value,
    split_option,
)
from dsv4kv.config.keys import Root
from dsv4kv.config.load import ConfigT, Loaded, LoadedConfig, find_config, resolve
from dsv4kv.errors import ConfigError


@dataclass(frozen=True)
class Point(Generic[ConfigT]):
    """One point of a sweep.

    Attributes:
        axis: Value of every swept key by dotted path, validated, as JSON knows it.
        config: The whole configuration of this point.
    """

    axis: dict[str, Any]
    config: ConfigT


AxisCase = Point[BenchConfig]


@overload
def expand_axes(
    loaded: LoadedConfig, overrides: Sequence[str], axes: Sequence[str]
) -> list[AxisCase]: ...
@overload
def expand_axes(
    loaded: Loaded[ConfigT], overrides: Sequence[str], axes: Sequence[str], root: type[ConfigT]
) -> list[Point[ConfigT]]: ...
def expand_axes(
    loaded: Loaded[Any],
    overrides: Sequence[str],
    axes: Sequence[str],
    root: Root = BenchConfig,
) -> list[Point[Any]]:
    """Expand ``KEY=VALUE,VALUE`` axes to their product, the last axis changing fastest.

    Without axes there is one case, with an empty ``axis``.

    Raises:
        ConfigError: A key that is swept twice or also set, an axis without values or with one
            value twice, or values that do not validate: all of them, a line each.
    """
    settings = parse_overrides(overrides, root)
    swept = gather(partial(_parse_axis, root), axes)
    _refuse_repeats(settings, swept)
    document = read_document(loaded.text, str(find_config(loaded.source, root)), root)
    cases = gather(partial(_case, root, document, settings), itertools.product(*swept))
    _refuse_equal_cases(cases, axes)
    return cases


def _parse_axis(root: Root, text: str) -> list[Setting]:
    option = f"--axis {text}"
    path, values = split_option(option, text, root)
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


def _case(
    root: type[ConfigT],
    document: Document,
    settings: Sequence[Setting],
    point: Sequence[Setting],
) -> Point[ConfigT]:
    config = resolve(document, [*settings, *point], root)
    values = config.model_dump(mode="json")
    axis = {".".join(each.path): _value_at(values, each.path) for each in point}
    return Point(axis, config)


def _value_at(values: Any, path: Iterable[str]) -> Any:
    for name in path:
        values = values[name]
    return values


def _refuse_equal_cases(cases: Sequence[Point[Section]], axes: Sequence[str]) -> None:
    seen: list[dict[str, Any]] = []
    for case in cases:
        if case.axis in seen:
            point = ", ".join(f"{key}={value}" for key, value in case.axis.items())
            raise ConfigError(f"--axis {' --axis '.join(axes)}: {point} comes twice: keep one.")
        seen.append(case.axis)
