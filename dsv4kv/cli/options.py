"""Options that several commands have, and files that options name to be written.

A file or folder that cannot be written, or that the command reads, is refused before the work.
"""

import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from dsv4kv.choices import listed
from dsv4kv.errors import ConfigError
from dsv4kv.files import (
    check_file,
    check_folder,
    load_yaml,
    read_document,
    refused_by,
    shipped_names,
    write_named,
)
from dsv4kv.view.console import open_console, print_document, say

if TYPE_CHECKING:
    from dsv4kv.cli.progress import Watcher
    from dsv4kv.view.table import Page, Part

OUTPUTS = "dsv4kv.outputs"
"""In the context of a command line: options and the files that they name to be written."""


def option(
    text: str,
    metavar: str | None = None,
    *names: str,
    default: Any = None,
    shown: str | bool = True,
    panel: str | None = None,
    values: Iterable[str] = (),
    **more: Any,
) -> Any:
    """An option with its help; ``panel`` groups it, ``shown`` is what its default means.

    ``values`` are what a shell completes, the last of several between commas.
    """

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [before + comma + value for value in values if value.startswith(last)]

    more["autocompletion"] = complete if values else None
    more |= {"help": text, "metavar": metavar, "show_default": shown, "rich_help_panel": panel}
    return typer.Option(default, *names, **more)


rare = partial(option, hidden=True)
"""An option that ``--help-all`` shows."""


def flag(name: str, text: str, *, rare: bool = False, **more: Any) -> Any:
    """An option without a value, and without an opposite; names have blanks between."""
    return option(text, None, *name.split(), default=False, hidden=rare, **more)


def argument(
    text: str, metavar: str | None = None, *, shown: str | bool = False, **more: Any
) -> Any:
    return typer.Argument(None, help=text, metavar=metavar, show_default=shown, **more)


def required(text: str, metavar: str | None = None, **more: Any) -> Any:
    return typer.Argument(..., help=text, metavar=metavar, **more)


def as_path(name: str | None) -> str | None:
    """A file's name that is no option in the commands that are printed with it."""
    return f"./{name}" if name and name.startswith("-") else name


class Row(NamedTuple):
    """An option as a row of a command's table; ``default`` is shown, ``key`` is its setting."""

    text: str
    metavar: str | None = None
    default: str | None = None
    kind: Any = str
    key: str = ""
    panel: str | None = None
    rare: bool = False
    bounds: tuple[float | None, float | None] = (None, None)
    values: Collection[str] = ()  # what a shell completes


def takes(table: Mapping[str, Row]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a table; its parameter ``given`` has those that were used."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**values: Any) -> None:
            given = {name: values.pop(name) for name in table}
            command(given={n: v for n, v in given.items() if v is not None}, **values)

        parameters: list[Parameter] = []
        for name, own in signature(command).parameters.items():
            parameters += map(_parameter, table, table.values()) if name == "given" else [own]
        run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        return run

    return decorate


def _parameter(name: str, row: Row) -> Parameter:
    low, high = row.bounds
    more: dict[str, Any] = {"shown": row.default or False, "panel": row.panel}
    more |= {"hidden": row.rare, "values": row.values, "min": low, "max": high}
    value = option(row.text, row.metavar, **more)
    kind = Parameter.POSITIONAL_OR_KEYWORD
    return Parameter(name, kind, default=value, annotation=row.kind | None)


def to_file(context: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    """Refuse files that cannot be written; ``-`` is no file."""
    if value not in (None, "-"):
        context.meta.setdefault(OUTPUTS, []).append((param, Path(value)))
        with refused_by(param.opts[0], Path(value)):
            check_file(Path(value))
    return value


def to_chart(context: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    """Refuse as ``to_file``, and a file that is neither a picture nor a page."""
    kinds = (".svg", ".html")
    if to_file(context, param, value) is not None and value.suffix.lower() not in kinds:
        raise ConfigError(f"{param.opts[0]} {value}: name a file that ends in .svg or .html.")
    return value


def to_folder(context: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    """Refuse a folder that was named and cannot be written; the default one has a substitute."""
    named = context.get_parameter_source(str(param.name))
    if value is not None and named is not None and named.name == "COMMANDLINE":
        with refused_by(param.opts[0], Path(value), "name another folder"):
            check_folder(Path(value))
    return value


def to_other(context: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    """Refuse a file that the command reads; whether it can be written, the command says."""
    context.meta.setdefault(OUTPUTS, []).append((param, Path(value)))
    return value


def keep_inputs(context: Any) -> None:
    """Refuse an output that another argument names, too; raises ``ConfigError``."""
    outputs = context.meta.get(OUTPUTS, ())
    for (one, path), (other, same) in combinations(outputs, 2):
        is_special = path.exists() and not path.is_file()
        if not is_special and os.path.realpath(path) == os.path.realpath(same):
            raise ConfigError(
                f"{one.opts[0]} and {other.opts[0]} are both {path}: name two files."
            )
    written, texts = {"folder", "out", *(param.name for param, _ in outputs)}, list[str]()
    for name, value in context.params.items():
        given = value if isinstance(value, list | tuple) else [value]
        if name not in written:
            texts += [str(each) for each in given if isinstance(each, str | Path)]
    texts += [each for text in texts for each in text.partition("=")[2].split(",")]
    inputs = [*filter(None, texts)]
    for param, path in outputs:
        named = param.opts[0] if param.opts[0].startswith("-") else param.metavar
        keep_input(named, path, inputs)


def keep_input(named: str, output: Path, inputs: Iterable[str | Path]) -> None:
    """Refuse an output that is an input, is in one, or that a configuration among them names."""
    if not output.is_file():
        return
    for path in map(Path, inputs):
        found = [path, *_files_of(path)]
        if any(_is_same(each, other) for each in found for other in (output, output.parent)):
            raise ConfigError(
                f"{named} {output} would overwrite what the command reads: name another file."
            )


def _files_of(path: Path) -> Iterator[Path]:
    """Files that the settings of a YAML file name."""
    values: list[Any] = []
    if path.suffix in (".yaml", ".yml"):
        with suppress(OSError, ValueError):
            values = load_yaml(read_document(path).decode())
    while values:
        value = values.pop()
        values += value.values() if isinstance(value, dict) else []
        values += value if isinstance(value, list) else []
        if isinstance(value, str) and value:
            yield Path(value)


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return False


Text = str | None
Texts = list[str] | None
RESULTS = Path("results")
MODEL_NAMES = shipped_names("models")
MODELS = f"{listed(MODEL_NAMES)}, or a Hugging Face config.json."
MODEL = option(MODELS, "NAME|FILE", default="v4-flash", values=MODEL_NAMES)
MODEL_RARE = rare(MODELS, "NAME|FILE", default="v4-flash", values=MODEL_NAMES)
GPU = "GPU type: h200, b200, mi300x, …; budget --help lists all."
SET = option("Change a setting; repeatable.", "KEY=VALUE", "--set")
SET_RARE = rare("Change a setting; repeatable.", "KEY=VALUE", "--set")
AXIS = option("Sweep a setting; repeatable.", "KEY=A,B,…", "--axis")
RESUME = rare("Resume an interrupted sweep, by its name or file.", "RUN")
OUT = rare("Folder for the run record.", default=RESULTS, callback=to_folder)
HTML = option("Also write a page to show.", "PAGE.html", callback=to_file)
AS_JSON = flag("--json", "Print one JSON document.")
JSON = option("Print one JSON document.", "", "--json", callback=to_file)
"""As ``AS_JSON``; also takes a file to write next to the tables."""
VERBOSE = flag("--verbose -v", "Print every table, not the answer only.")
QUIET = flag("--quiet -q", "Print problems only.", rare=True)


def as_settings(keys: Mapping[str, str | Row], given: Mapping[str, Any]) -> list[str]:
    """Values as ``KEY=VALUE``, by their keys; quoted so that YAML takes them as they are."""
    names = {name: row if isinstance(row, str) else row.key for name, row in keys.items()}
    return [
        f"{names[name]}={json.dumps(value)}" for name, value in given.items() if value is not None
    ]


def print_json(document: Any) -> None:
    print_document(json.dumps(document, ensure_ascii=False, indent=2))


def show_page(page: "Page", again: str = "", *, verbose: bool, quiet: bool = False) -> None:
    """Print a page, with ``verbose`` all of it; else its answer and the command that shows all."""
    from dsv4kv.view.render import show

    more = ["", again] if again and not verbose else []
    show([*page.parts(verbose=verbose), *more], open_console(quiet=quiet))


def write_page(page: "Page", target: Path) -> None:
    from dsv4kv.view import html

    html.write_page(page, target)
    say(f"page: {target}", err=True)


def watch(
    name: str, unit: str, total: int | None = 0, *, quiet: bool = False, after_s: float = 0.0
) -> "Watcher":
    """A bar or lines on standard error; no bar for what takes less than ``after_s``."""
    from dsv4kv.cli.progress import Watcher

    return Watcher(open_console(stderr=True, quiet=quiet), name, unit, total, after_s=after_s)


def split(text: str | None) -> list[str]:
    return [each.strip() for each in (text or "").split(",") if each.strip()]


def tell(parts: "Iterable[Part]", document: Any, *, as_json: bool) -> None:
    """Print an answer for people, or its document for programs."""
    from dsv4kv.view.render import show

    if as_json:
        print_json(document)
    else:
        show(parts)


@contextmanager
def alone(*, wanted: bool) -> Iterator[None]:
    """Standard output is for the document alone: what else is printed goes to standard error."""
    if not wanted:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def write_json(text: str, target: str) -> None:
    """Write a document to the file that ``--json`` named; ``-`` is standard output."""
    if target == "-":
        print_document(text)
    else:
        write_named(Path(target), text, "--json")
