"""Every key of a configuration, as ``--schema`` shows it."""

from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.keys import Key, Root, keys, on_one_line
from dsv4kv.view.table import Row, Table, Text, names, prose


def schema_table(root: Root = BenchConfig) -> Table:
    """Every key, indented under its section: what it takes, its default and its meaning."""
    columns = [*names("key"), *prose("takes", "default", "meaning")]
    return Table("", columns, [_row(key) for key in keys(root).values()])


def _row(key: Key) -> Row:
    *parents, name = key.path.split(".")
    label = "  " * len(parents) + name
    if key.is_section:
        return [Text(label, "strong"), "", "", Text(key.description, "strong")]
    return [label, key.expected, on_one_line(key.default), key.description]
