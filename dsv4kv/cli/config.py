"""``dsv4kv config``: show, check and explain configurations."""

import typer

from dsv4kv.cli import examples, group
from dsv4kv.cli import options as opt
from dsv4kv.errors import ConfigError
from dsv4kv.view.console import say

app = group("Show and check configurations; list their keys.", "dsv4kv config show smoke > mine.yaml")


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


@app.command(epilog=examples("dsv4kv config validate mine.yaml"))
def validate(sources: list[str] = opt.required("YAML files or shipped names.", "CONFIG")) -> None:
    """Check configurations: a line for each that is right, one for each thing that is wrong."""
    from dsv4kv.config.load import load_config

    failed = False
    for source in sources:
        try:
            load_config(source)
        except ConfigError as error:
            failed = True
            say("\n".join(f"error: {line}" for line in str(error).splitlines()))
        else:
            say(f"OK: {source}")
    if failed:
        raise typer.Exit(ConfigError.exit_code)


@app.command(epilog=examples("dsv4kv config schema --json"))
def schema(as_json: bool = opt.flag("--json", "Print the JSON schema.")) -> None:
    """Explain every key: type, what is allowed, default, meaning."""
    from dsv4kv.config.bench import BenchConfig
    from dsv4kv.view.config import schema_table

    opt.tell([schema_table()], BenchConfig.model_json_schema(), as_json=as_json)
