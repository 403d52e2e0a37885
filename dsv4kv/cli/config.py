"""``dsv4kv config``: show, check and explain configurations."""

from typing import Annotated

import typer

from dsv4kv.cli import Group
from dsv4kv.view.console import print_document, say

_EXAMPLES = "[bold]Examples[/bold]\n\n"
app = typer.Typer(
    cls=Group,
    add_completion=False,
    no_args_is_help=True,
    help="Show, check and explain bench configurations.",
    epilog=f"{_EXAMPLES}dsv4kv config show smoke > mine.yaml",
    rich_markup_mode="rich",
)


@app.command(epilog=f"{_EXAMPLES}dsv4kv config show smoke > mine.yaml")
def show(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="CONFIG",
            help="A YAML file or a shipped name.",
            show_default="default",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change one setting; repeatable.",
        ),
    ] = None,
) -> None:
    """Print the resolved configuration: every key with its value, as documented YAML."""
    from dsv4kv.config.keys import render_yaml
    from dsv4kv.config.load import load_config

    say(render_yaml(load_config(source, overrides or ()).config), end="")


@app.command(epilog=f"{_EXAMPLES}dsv4kv config validate mine.yaml")
def validate(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="CONFIG",
            help="YAML files or shipped names.",
        ),
    ],
) -> None:
    """Check configurations: a line for each that is right, one for each thing that is wrong."""
    from dsv4kv.config.load import load_config
    from dsv4kv.errors import ConfigError

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


@app.command(epilog=f"{_EXAMPLES}dsv4kv config schema --json")
def schema(
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON schema.")] = False,
) -> None:
    """Explain every key: type, what is allowed, default, meaning."""
    if as_json:
        import json

        from dsv4kv.config.bench import BenchConfig

        print_document(json.dumps(BenchConfig.model_json_schema(), indent=2))
    else:
        from dsv4kv.view.config import schema_table
        from dsv4kv.view.terminal import show

        show([schema_table()])
