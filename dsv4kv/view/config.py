"""Every key of a configuration, as ``--schema`` shows it."""

from dsv4kv.config.bench import BenchConfig
from dsv4kv.config.keys import Key, Root, keys, on_one_line
from dsv4kv.view import table as tb


def schema_table(root: Root = BenchConfig) -> tb.Table:
    """Every key, indented under its section: what it takes, its default and its meaning."""

    def name(key: Key) -> tb.Text:
        *parents, last = key.path.split(".")
        return tb.Text("  " * len(parents) + last, "strong" if key.is_section else "plain")

    columns: tb.Columns = [
        ("key", name),
        ("takes", lambda key: "" if key.is_section else key.expected),
        ("default", lambda key: "" if key.is_section else on_one_line(key.default)),
        ("meaning", lambda key: tb.Text(key.description, "strong" if key.is_section else "plain")),
    ]
    return tb.Table("", columns, list(keys(root).values()))
