"""Options of the commands that read traces: what a file does not say itself."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from dsv4kv.workload.traces import ReadOptions

Format = Annotated[
    Literal[
        "auto",
        "bailian",
        "mooncake",
        "mooncake-delta",
        "weka",
        "azure",
        "burstgpt",
        "sharegpt",
        "timed",
        "dsv4kv",
    ],
    typer.Option("--format", help="Format of SOURCE; auto looks at its first line."),
]


def _reading(metavar: str, text: str) -> Any:
    return typer.Option(help=text, metavar=metavar, rich_help_panel="Reading SOURCE")


_FIELDS = (
    "Names of a timed trace's fields: time, prompt length, output length and, if it has them, "
    "block ids. Left out: timestamp,input_length,output_length,hash_ids."
)
Fields = Annotated[str | None, _reading("T,IN,OUT[,IDS]", _FIELDS)]
TimeUnit = Annotated[
    Literal["s", "ms", "us", "ns"],
    _reading("UNIT", "Unit of a timed trace's times: s, ms, us, ns."),
]
IdTokens = Annotated[
    int | None, _reading("TOKENS", "Tokens that one id of a timed trace stands for.")
]
Stagger = Annotated[
    float, _reading("SECONDS", "Seconds between the starts of a weka folder's conversations.")
]


def read_options(
    fields: str | None,
    time_unit: str,
    id_tokens: int | None,
    stagger: float,
    *,
    any_order: bool = False,
) -> "ReadOptions":
    """What was given, checked."""
    from dsv4kv.workload.traces.options import ReadOptions, TimedFields

    names = fields.split(",") if fields else []
    if fields and (len(names) not in {3, 4} or not all(names)):
        raise typer.BadParameter(f"--fields {fields}: give three or four names, commas between")
    if not 0 <= stagger < float("inf"):
        raise typer.BadParameter(f"--stagger {stagger}: give seconds, 0 or more")
    if id_tokens is not None and id_tokens < 1:
        raise typer.BadParameter(f"--id-tokens {id_tokens}: an id stands for 1 token or more")
    return ReadOptions(
        TimedFields(*names),
        time_unit,  # type: ignore[arg-type]
        id_tokens,
        stagger,
        any_order,
    )
