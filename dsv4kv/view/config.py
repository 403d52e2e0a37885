"""Every key of a configuration, as ``--schema`` shows it."""

from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.keys import Key, Root, keys, on_one_line
from dsv4kv.view.table import Columns, Table, Text


def schema_table(root: Root = BenchConfig) -> Table:
    """Every key, indented under its section: what it takes, its default and its meaning."""

    def name(key: Key) -> Text:
        *parents, last = key.path.split(".")
        return Text("  " * len(parents) + last, "strong" if key.is_section else "plain")

    columns: Columns = [
        ("key", name),
        ("takes", lambda key: "" if key.is_section else key.expected),
        ("default", lambda key: "" if key.is_section else on_one_line(key.default)),
        ("meaning", lambda key: Text(key.description, "strong" if key.is_section else "plain")),
    ]
    return Table("", columns, list(keys(root).values()))
