"""The options of ``dsv4kv compare``, in the words of its help."""

from pathlib import Path
from typing import Annotated, Any

import typer

_AB = "With --ab"
_SIDES = "Records of bench: a file, several with commas between them, or a folder."
_AB_HELP = (
    "Measure both now, in turns: git revisions (. is the source tree as it is), YAML files, or "
    "backend:NAME."
)


def _ab(metavar: str, text: str) -> Any:
    return typer.Option(metavar=metavar, help=text, rich_help_panel=_AB)


Sides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[BEFORE] AFTER", help=_SIDES, show_default=False),
]
Ab = Annotated[tuple[str, str] | None, typer.Option(metavar="A B", help=_AB_HELP)]
Config = Annotated[
    str | None, typer.Option(help="What both run.", show_default="default", rich_help_panel=_AB)
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a setting of both.", rich_help_panel=_AB
    ),
]
Axes = Annotated[list[str] | None, _ab("KEY=A,B,…", "Sweep a setting of both.")]
Launches = Annotated[
    int | None,
    typer.Option(
        min=1, help="Fresh processes of each side.", show_default="7", rich_help_panel=_AB
    ),
]
Turns = Annotated[
    str | None,
    typer.Option(
        metavar="step|launch",
        help="What alternates. step: two processes at once, step by step, which a noisy machine "
        "hardly disturbs; needs the memory of two caches. launch: one process at a time. "
        "Left out: step, on a GPU launch.",
        rich_help_panel=_AB,
        show_default=False,
    ),
]
OrderSeed = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Seed of the order in which launches of A and B run; the record's reproduce command "
        "has it. Left out: a new one.",
        rich_help_panel=_AB,
        show_default=False,
    ),
]
Baseline = Annotated[
    str | None, typer.Option(metavar="NAME", help="The side before: a saved baseline.")
]
SaveBaseline = Annotated[
    str | None, typer.Option(metavar="NAME", help="Keep the side after as a baseline.")
]
Floor = Annotated[str, typer.Option(metavar="SHARE", help="Smallest change that counts.")]
FailOn = Annotated[
    str,
    typer.Option(
        metavar="slower|unclear", help="unclear: end with 3 as soon as one row is UNCLEAR."
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Compare unlike machines or configurations.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
AsMarkdown = Annotated[
    bool, typer.Option("--markdown", help="Print Markdown, for a pull request.")
]
Html = Annotated[
    Path | None,
    typer.Option(metavar="PAGE.html", help="Also write a page to show: one file for a browser."),
]
Out = Annotated[Path, typer.Option(help="Folder of records and baselines.")]
