"""Settings given on the command line: ``cache.block_tokens=256``."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.document import read_value
from dsv4kv.config.keys import Root, keys, keys_of, unknown_key
from dsv4kv.config.problems import gather
from dsv4kv.errors import ConfigError


@dataclass(frozen=True)
class Setting:
    """A value for one key.

    Attributes:
        path: Names from the top of the configuration to the key.
        value: The value, not yet validated.
        option: The option as given, for messages.
    """

    path: tuple[str, ...]
    value: Any
    option: str


def parse_overrides(texts: Sequence[str], root: Root = BenchConfig) -> list[Setting]:
    """Parse ``--set`` options; the value is YAML, and of two for one key the last one counts.

    Raises:
        ConfigError: Not ``KEY=VALUE``, no such key, or a value that is not YAML; all of them,
            a line each.
    """
    return gather(partial(_parse_override, root), texts)


def _parse_override(root: Root, text: str) -> Setting:
    option = f"--set {text}"
    path, value = split_option(option, text, root)
    return Setting(path, read_value(value, option), option)


def split_option(option: str, text: str, root: Root = BenchConfig) -> tuple[tuple[str, ...], str]:
    """Split ``KEY=VALUE`` and check that the key exists and takes a value.

    Raises:
        ConfigError: It does not; ``option`` is named.
    """
    path, equals, value = (part.strip() for part in text.partition("="))
    if not path or not equals:
        raise ConfigError(f"{option}: write KEY=VALUE, for example cache.block_tokens=256.")
    if path not in keys(root):
        raise ConfigError(f"{option}: {unknown_key(path, root)}")
    if keys(root)[path].is_section:
        names = ", ".join(keys_of(path, root))
        raise ConfigError(f"{option}: {path} is a section: set one of its keys ({names}).")
    if not value:
        null = f"; write {path}=null for none" if keys(root)[path].nullable else ""
        raise ConfigError(f"{option}: the value is missing{null}.")
    return tuple(path.split(".")), value
