"""Options that several commands have, and files that options name to be written.

A file or folder that cannot be written, or that the command reads, is refused before the work.
What cannot be known before, a disk that fills up, is said when it happens.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from dsv4kv.errors import ConfigError
from dsv4kv.files import check_file, check_folder, refused_by, write_named
from dsv4kv.view.console import print_document

OUTPUTS = "dsv4kv.outputs"
"""In the context of a command line: options and the files that they name to be written."""


def option(text: str, metavar: str | None = None, *names: str, **more: Any) -> Any:
    """An option with its help; ``panel`` groups it, ``rare`` leaves it to ``--help-all``."""
    panel, rare = more.pop("panel", None), more.pop("rare", False)
    more = {"hidden": rare} | more
    return typer.Option(*names, help=text, metavar=metavar, rich_help_panel=panel, **more)


def flag(name: str, text: str, **more: Any) -> Any:
    """An option without a value, and without an opposite; names have blanks between."""
    return option(text, None, *name.split(), **more)


def argument(text: str, metavar: str | None = None, **more: Any) -> Any:
    """An argument with its help."""
    return typer.Argument(help=text, metavar=metavar, **{"show_default": False} | more)


def to_file(context: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    """Of an option that names files, refuse those that cannot be written; ``-`` is no file.

    Raises:
        ConfigError: With the option, as it would be after the work.
    """
    for each in value if isinstance(value, list) else [value]:
        if each not in (None, "-"):
            context.meta.setdefault(OUTPUTS, []).append((param, Path(each)))
            with refused_by(param.opts[0], Path(each)):
                check_file(Path(each))
    return value


def to_page(context: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    """As ``to_file`` for a file whose folder is made with it."""
    if value is not None:
        path = Path(value)
        context.meta.setdefault(OUTPUTS, []).append((param, path))
        with refused_by(param.opts[0], path, "name another place"):
            (check_folder if not path.parent.exists() else check_file)(path)
    return value


def to_folder(context: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    """Refuse a folder that was named and cannot be made or written.

    One that was not named is left to whoever writes there, who may have another place.

    Raises:
        ConfigError: With the option.
    """
    named = context.get_parameter_source(str(param.name))
    if value is not None and named is not None and named.name == "COMMANDLINE":
        with refused_by(param.opts[0], Path(value), "name another folder"):
            check_folder(Path(value))
    return value


def keep_inputs(context: Any) -> None:
    """Refuse an output that another argument names as an input; raises ``ConfigError``."""
    for param, path in context.meta.get(OUTPUTS, ()):
        if not path.is_file():
            continue
        for name, value in context.params.items():
            given = value if isinstance(value, list | tuple) else [value]
            paths = [Path(each) for each in given if isinstance(each, str | Path)]
            if name != param.name and any(_is_same(path, each) for each in paths):
                raise ConfigError(
                    f"{param.opts[0]} {path} would overwrite what the command reads: name "
                    "another file."
                )


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return False


Text = str | None
Settings = Annotated[
    list[str] | None, option("Change a setting; repeatable.", "KEY=VALUE", "--set")
]
Axes = Annotated[list[str] | None, option("Sweep a setting; repeatable.", "KEY=A,B,…", "--axis")]
Model = Annotated[Text, option("A preset or a config.json.", "NAME|FILE")]
Out = Annotated[Path, option("Folder for the run record.", callback=to_folder)]
RESULTS = Path("results")
Html = Annotated[Path | None, option("Also write a page to show.", "PAGE.html", callback=to_page)]
AsJson = Annotated[bool, flag("--json", "Print one JSON document.")]
JsonFile = Annotated[
    Text, option("Also write it as JSON here; - prints it.", "FILE", "--json", callback=to_file)
]
Verbose = Annotated[bool, flag("--verbose -v", "Print every table, not the answer only.")]
Quiet = Annotated[bool, flag("--quiet -q", "Print problems only.")]
_SWEEP = {"panel": "Sweep"}
Jobs = Annotated[int, option("Points done at once.", "N", "--jobs", "-j", min=1, **_SWEEP)]
OnRay = Annotated[
    Text, option("Do the points on a Ray cluster; auto finds one.", "HOST:PORT", "--ray", **_SWEEP)
]
Resume = Annotated[
    Text, option("Go on with an interrupted sweep, by its name or file.", "RUN", **_SWEEP)
]


def as_settings(keys: Mapping[str, str], **given: str | float | None) -> list[str]:
    """Options as ``KEY=VALUE``, by their keys; quoted so that YAML takes values as they are."""
    return [
        f"{keys[name]}={json.dumps(value)}" for name, value in given.items() if value is not None
    ]


def print_json(document: Any) -> None:
    """Print values for programs."""
    print_document(json.dumps(document, ensure_ascii=False, indent=2))


def write_json(text: str, target: str) -> None:
    """Write a document to the file that ``--json`` named; ``-`` is standard output."""
    if target == "-":
        print_document(text)
    else:
        write_named(Path(target), text, "--json")
