"""``dsv4kv config``: show configurations and list their keys."""

from dsv4kv.cli import examples, group
from dsv4kv.cli import options as opt
from dsv4kv.view.console import say

app = group("Show configurations and list their keys.", "dsv4kv config show smoke > mine.yaml")


@app.command(epilog=examples("dsv4kv config show smoke > mine.yaml"))
def show(
    source: opt.Text = opt.argument(
        "A YAML file or a shipped name.", "CONFIG", show_default="default"
    ),
    overrides: opt.Texts = opt.SET,
) -> None:
    """Print the resolved configuration: every key with its value, as documented YAML."""
    from dsv4kv.config.keys import render_yaml
    from dsv4kv.config.load import load_config

    say(render_yaml(load_config(source, overrides or ()).config), end="")


@app.command(epilog=examples("dsv4kv config schema --json"))
def schema(as_json: bool = opt.flag("--json", "Print the JSON schema.")) -> None:
    """Explain every key: type, what is allowed, default, meaning."""
    from dsv4kv.config.bench import BenchConfig
    from dsv4kv.view.config import schema_table

    opt.tell([schema_table()], BenchConfig.model_json_schema(), as_json=as_json)
