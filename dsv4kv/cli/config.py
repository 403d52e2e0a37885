"""``dsv4kv config``: show, check and explain configurations, and a project's settings."""

from typing import Annotated

import typer

from dsv4kv.cli.complete import offer, offer_settings
from dsv4kv.resources import shipped_names
from dsv4kv.view.console import print_document, say

_EXAMPLES = "[bold]Examples[/bold]\n\n"
app = typer.Typer(
    no_args_is_help=True,
    help="Show, check and explain bench configurations, and a project's settings.",
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
            autocompletion=offer(shipped_names("bench")),
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change one setting; repeatable.",
            autocompletion=offer_settings("bench"),
        ),
    ] = None,
) -> None:
    """Print the resolved configuration: every key with its value, as documented YAML."""
    from dsv4kv.config.load import load_config
    from dsv4kv.config.render import render_yaml

    say(render_yaml(load_config(source, overrides or ()).config), end="")


@app.command(epilog=f"{_EXAMPLES}dsv4kv config validate mine.yaml")
def validate(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="CONFIG",
            help="YAML files or shipped names.",
            autocompletion=offer(shipped_names("bench")),
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


@app.command(epilog=f"{_EXAMPLES}dsv4kv config settings")
def settings(context: typer.Context) -> None:
    """Check the settings of this project, and show where each is written.

    They are in dsv4kv.yaml, or the table tool.dsv4kv of a pyproject.toml, of this folder or the
    nearest above it.
    """
    from dsv4kv.cli.command import project_of
    from dsv4kv.cli.project import TOML, YAML, shown
    from dsv4kv.cli.settings import check, explain
    from dsv4kv.view.config import settings_table
    from dsv4kv.view.terminal import show

    project = project_of(context)
    if project is None:
        show([f"no settings: neither {YAML} nor [tool.dsv4kv] of a {TOML} in this project."])
        return
    check(project)
    say(f"settings: {shown(project.path)}")
    rows = {name: (leaf.value, leaf.place, explain(name)) for name, leaf in project.leaves.items()}
    show([settings_table(rows)])
