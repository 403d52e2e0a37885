"""From a document and settings to a validated configuration."""

from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from dsv4kv.config.bench import Section
from dsv4kv.config.document import Document
from dsv4kv.config.keys import Key, Root, keys
from dsv4kv.config.overrides import Setting
from dsv4kv.config.problems import Location, Problem, explain, mentioned_keys, refuse
from dsv4kv.errors import ConfigError
from dsv4kv.units import parse_bytes, parse_count

ConfigT = TypeVar("ConfigT", bound=Section)


def resolve(document: Document, settings: Sequence[Setting], root: type[ConfigT]) -> ConfigT:
    """Lay the file over the defaults and the settings over both, and validate the whole.

    Raises:
        ConfigError: Every problem of the file and of the settings, a line each.
    """
    # a section given in part keeps its place's own defaults (output.mean is not input.mean)
    values = _merge(root().model_dump(), document.values)
    for setting in settings:
        _put(values, setting)
    problems = list(document.problems)
    try:
        config = root.model_validate(_with_units(values, keys(root)))
    except ValidationError as error:
        problems += [_locate(detail, document, settings, root) for detail in error.errors()]
    if problems:
        raise refuse(problems)
    return config


def _merge(defaults: Any, given: Any) -> Any:
    if not isinstance(defaults, dict):
        return given
    if given is None:  # a section whose keys are all commented out
        return defaults
    if not isinstance(given, dict):
        return given
    return defaults | {name: _merge(defaults.get(name), value) for name, value in given.items()}


def _put(values: dict[str, Any], setting: Setting) -> None:
    *sections, name = setting.path
    for section in sections:
        values = values[section]
        if not isinstance(values, dict):
            return  # the file gives no section here, which is refused with its line
    values[name] = setting.value


def _with_units(
    values: dict[str, Any], all_keys: dict[str, Key], section: str = ""
) -> dict[str, Any]:
    """Counts and sizes written as text become integers; a boolean is no number."""
    known = {name: all_keys.get(f"{section}{name}") for name in values}
    return values | {
        name: _with_units(values[name], all_keys, f"{key.path}.")
        if key.is_section and isinstance(values[name], dict)
        else _number(values[name], key)
        for name, key in known.items()
        if key is not None
    }


def _number(value: Any, key: Key) -> Any:
    if isinstance(value, list):
        return [item if isinstance(item, list) else _number(item, key) for item in value]
    if isinstance(value, bool) and key.is_numeric:
        return str(value).lower()  # pydantic would take true for 1
    if isinstance(value, str) and key.is_integer:
        return _parse_units(value, key.path)
    return value


def _parse_units(text: str, path: str) -> int | str:
    try:
        return parse_bytes(text) if path.endswith("_bytes") else parse_count(text)
    except ConfigError:
        return text  # validation refuses it and names the place


def _locate(
    detail: ErrorDetails, document: Document, settings: Sequence[Setting], root: Root
) -> Problem:
    """The problem with its place: the option that gave the value, or the line of the file."""
    sentence, location = explain(detail, root), detail["loc"]
    cross_field = detail["type"] == "value_error"
    concerned: Sequence[Location] = (
        mentioned_keys(location, sentence, root) if cross_field else [location]
    )
    for setting in reversed(settings):
        if any(key[: len(setting.path)] == setting.path for key in concerned):
            return Problem(0, setting.option, sentence)
    given = next(filter(document.has, concerned), location)
    return Problem(document.line(given), document.source, sentence)
