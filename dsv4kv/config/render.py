"""What people read about configurations: one as documented YAML, all keys as a table."""

from collections.abc import Iterator
from typing import Any

import yaml
from rich.table import Table
from rich.text import Text

from dsv4kv.config.bench import BenchConfig, Section
from dsv4kv.config.keys import Key, Root, keys


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
            yield f"{indent}{name}: {_on_one_line(value)}"


def _on_one_line(value: Any) -> str:
    # double quotes escape line breaks, which other styles write as such
    style = '"' if isinstance(value, str) and not value.isprintable() else None
    text = yaml.safe_dump(
        value, default_flow_style=True, default_style=style, allow_unicode=True, width=10**9
    )
    return text.removesuffix("...\n").rstrip("\n")


def schema_table(root: Root = BenchConfig) -> Table:
    """Every key, indented under its section: what it takes, its default and its meaning."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("Key", no_wrap=True)
    for column in ("Takes", "Default", "Meaning"):
        table.add_column(column, overflow="fold")
    for key in keys(root).values():
        table.add_row(*_cells(key), style="bold" if key.is_section else "")
    return table


def _cells(key: Key) -> Iterator[Text]:
    *parents, name = key.path.split(".")
    default = "" if key.is_section else _on_one_line(key.default)
    takes = "" if key.is_section else key.expected
    for cell in ("  " * len(parents) + name, takes, default, key.description):
        yield Text(cell)
