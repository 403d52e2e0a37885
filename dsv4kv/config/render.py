"""A configuration as documented YAML."""

from collections.abc import Iterator
from typing import Any

import yaml

from dsv4kv.config.bench import Section
from dsv4kv.config.keys import Key, keys


def render_yaml(config: Section) -> str:
    """Every key with its description as a comment; loading the text gives an equal config."""
    values = config.model_dump(mode="json")
    return "\n".join(_section("", values, "", keys(type(config)))) + "\n"


def _section(
    prefix: str, values: dict[str, Any], indent: str, known: dict[str, Key]
) -> Iterator[str]:
    for name, value in values.items():
        key = known[f"{prefix}{name}"]
        yield f"{indent}# {key.description}"
        if key.is_section:
            yield f"{indent}{name}:"
            yield from _section(f"{key.path}.", value, f"{indent}  ", known)
        else:
            yield f"{indent}{name}: {on_one_line(value)}"


def on_one_line(value: Any) -> str:
    """A value as YAML on one line."""
    # double quotes escape line breaks, which other styles write as such
    style = '"' if isinstance(value, str) and not value.isprintable() else None
    text = yaml.safe_dump(
        value, default_flow_style=True, default_style=style, allow_unicode=True, width=10**9
    )
    return text.removesuffix("...\n").rstrip("\n")
