"""``dsv4kv compare``: two sides compared, with a verdict and its exit code."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsv4kv.cli.records import Verbose
from dsv4kv.cli.targets import to_folder, to_page
from dsv4kv.errors import INTERRUPTED
from dsv4kv.view.console import open_console, print_document, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsv4kv.compare.ab import Duel
    from dsv4kv.compare.comparison import Comparison
    from dsv4kv.compare.side import Side
    from dsv4kv.measure.verdict import Verdict


_AB = "With --ab"
_SIDES = "Records of bench: a file, several with commas between them, or a folder."
_AB_HELP = (
    "Measure both now, interleaved: git revisions (. is the source tree as it is), YAML files, or "
    "backend:NAME."
)


Sides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[BEFORE] AFTER", help=_SIDES, show_default=False),
]
Ab = Annotated[tuple[str, str] | None, typer.Option(metavar="A B", help=_AB_HELP)]
Config = Annotated[
    str | None,
    typer.Option(
        help="What both run.",
        show_default="default",
        rich_help_panel=_AB,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting of both.",
        rich_help_panel=_AB,
    ),
]
Axes = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=A,B,…",
        help="Sweep a setting of both.",
        rich_help_panel=_AB,
    ),
]
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
    typer.Option(
        metavar="PAGE.html",
        help="Also write a page to show: one file for a browser.",
        callback=to_page,
    ),
]
Out = Annotated[Path, typer.Option(help="Folder of records and baselines.", callback=to_folder)]


_EXIT_CODES = {"SAME": 0, "FASTER": 0, "SLOWER": 1, "UNCLEAR": 3}
_LAUNCHES = 7  # of each side

EPILOG = """\
[bold]Examples[/bold]

dsv4kv compare results/A.json results/B.json             two runs of bench --launches 7

dsv4kv compare --ab main HEAD --config smoke             two revisions, steps interleaved

dsv4kv compare --ab backend:cpu backend:mine.py:gather   two backends

dsv4kv compare results/A.json results/B.json --html p.html   and a page to show

dsv4kv compare results/A.json --save-baseline main       keep a run under a name

dsv4kv compare results/B.json --baseline main            and compare with it

[bold]Exit code[/bold]: 0 SAME or FASTER, 1 SLOWER, 3 UNCLEAR, 2 not comparable
"""


def compare(
    sides: Sides = None,
    ab: Ab = None,
    config: Config = None,
    set_: Settings = None,
    axis: Axes = None,
    launches: Launches = None,
    turns: Turns = None,
    order_seed: OrderSeed = None,
    baseline: Baseline = None,
    save_baseline: SaveBaseline = None,
    floor: Floor = "1%",
    fail_on: FailOn = "slower",
    force: Force = False,
    as_json: AsJson = False,
    as_markdown: AsMarkdown = False,
    verbose: Verbose = False,
    html: Html = None,
    out: Out = Path("results"),
) -> None:
    """Say whether one side is slower than another: SAME, FASTER, SLOWER or UNCLEAR.

    A launch is the unit: each gives one median per quantity, and the verdict is made over them.
    SLOWER as soon as one quantity is; UNCLEAR where the mean of all is, or something is missing.
    """
    from dsv4kv.compare.floor import parse_floor
    from dsv4kv.compare.side import check_name
    from dsv4kv.errors import ConfigError

    if fail_on not in ("slower", "unclear"):
        raise ConfigError(f"--fail-on {fail_on}: choose slower or unclear.")
    _refuse(as_json and as_markdown, "--json and --markdown were given: choose one of them.")
    if save_baseline:
        check_name(save_baseline)  # now, not when all has been measured
    smallest = parse_floor(floor)
    before: Side | None
    if ab:
        _refuse(sides or baseline, "--ab measures both sides now: leave records out.")
        asked = launches or _LAUNCHES
        duel = _plan(ab, config, set_ or [], axis or [], asked, turns, order_seed)
        before, after, interrupted = _measure(duel, out)
    else:
        given = config or set_ or axis or launches or turns or order_seed is not None
        _refuse(given, "--config, --set, --axis, --launches, --turns and --order-seed need --ab.")
        before, after = _stored(sides or [], baseline, save_baseline, out)
        interrupted = False
        _refuse(html and before is None, "--html shows a comparison: name a second side.")
    if before is not None:
        found = _judge(before, after, smallest, force=force, intended=bool(ab))
        verdict = found.conclude(fail_on_unclear=fail_on == "unclear")
        _print_comparison(
            found,
            verdict,
            again="" if ab else _again(sides or [], baseline),
            as_json=as_json,
            as_markdown=as_markdown,
            verbose=verbose,
        )
        if html:
            _draw(found, verdict, html)
    if save_baseline:
        _save(after, save_baseline, out)
    if before is not None:
        raise typer.Exit(INTERRUPTED if interrupted else _EXIT_CODES[verdict])


def _again(sides: "Sequence[str]", baseline: str | None) -> str:
    """The command that prints every row."""
    import shlex

    words = [*sides, *(["--baseline", baseline] if baseline else [])]
    return f"dsv4kv compare {shlex.join(words)} --verbose"


def _refuse(given: object, sentence: str) -> None:
    from dsv4kv.errors import ConfigError

    if given:
        raise ConfigError(sentence)


def _stored(
    sides: list[str], baseline: str | None, save_baseline: str | None, out: Path
) -> "tuple[Side | None, Side]":
    """The side before (None if one is only to be saved) and the side after."""
    from dsv4kv.compare.side import load_baseline, load_side
    from dsv4kv.errors import ConfigError

    if baseline and len(sides) == 1:
        return load_baseline(baseline, out), load_side(sides[0])
    if not baseline and len(sides) == 2:
        return load_side(sides[0]), load_side(sides[1])
    if not baseline and len(sides) == 1 and save_baseline:
        return None, load_side(sides[0])
    raise ConfigError(
        f"{len(sides)} sides were given{' with --baseline' if baseline else ''}: name two, or "
        "one and --baseline NAME, or one and --save-baseline NAME, or --ab A B."
    )


def _plan(
    ab: tuple[str, str],
    config: str | None,
    overrides: list[str],
    axes: list[str],
    launches: int,
    turns: str | None,
    order_seed: int | None,
) -> "Duel":
    import secrets
    import sys
    from typing import get_args

    from dsv4kv.compare.ab import Duel, Unit
    from dsv4kv.errors import ConfigError

    unit = next((each for each in get_args(Unit) if each == turns), None)
    if turns and not unit:
        raise ConfigError(f"--turns {turns}: choose step or launch.")
    seed = secrets.randbelow(1 << 32) if order_seed is None else order_seed
    return Duel(ab, config, overrides, axes, launches, ["dsv4kv", *sys.argv[1:]], seed, unit)


def _measure(duel: "Duel", out: Path) -> "tuple[Side, Side, bool]":
    """Run both sides, keep their records, and say whether Ctrl-C ended it."""
    from dsv4kv.cli.progress import Watcher
    from dsv4kv.compare.ab import run_duel
    from dsv4kv.record.store import save_record

    stderr = open_console(stderr=True)
    with Watcher(stderr, "bench", "launches", 2 * duel.launches) as watcher:
        sides, interrupted = run_duel(duel, watcher.show_launches)
    for side in sides:
        saved = save_record(side.records[0], out)
        say(f"record of {side.name}: {saved.path}", err=True)
        if saved.problem:
            say(f"warning: {saved.problem}", err=True)
    return *sides, interrupted


def _judge(
    before: "Side", after: "Side", floor: float, *, force: bool, intended: bool
) -> "Comparison":
    from dsv4kv.compare.comparison import compare as judge_sides
    from dsv4kv.compare.differences import list_differences
    from dsv4kv.compare.floor import find_floor
    from dsv4kv.errors import ConfigError

    differences = list_differences(before, after)
    unlike = [each for each in differences if each.kind != "unknown"]
    if unlike and not force and not intended:
        alike = f"{before.name} and {after.name} are not alike"
        end = f"{alike}: --force compares them all the same."
        raise ConfigError("\n".join([*map(str, unlike), end]))
    smallest = find_floor(floor, (before, after))
    return judge_sides(before, after, smallest, differences, intended=intended)


def _print_comparison(
    found: "Comparison",
    verdict: "Verdict",
    *,
    again: str,
    as_json: bool,
    as_markdown: bool,
    verbose: bool,
) -> None:
    if as_json:
        import json

        from dsv4kv.view.compare import to_document

        print_document(json.dumps(to_document(found, verdict), ensure_ascii=False, indent=2))
    elif as_markdown:
        from dsv4kv.view.compare import to_markdown

        say(to_markdown(found, verdict), end="")
    else:
        from dsv4kv.view.compare import comparison_page
        from dsv4kv.view.render import show
        from dsv4kv.view.table import Command

        page = comparison_page(found, verdict)
        more = ["", Command(again)] if again else []
        show(page.in_full() if verbose else [*page.answer, *more])


def _draw(found: "Comparison", verdict: "Verdict", html: Path) -> None:
    from dsv4kv.view.compare import comparison_page
    from dsv4kv.view.html import write_page

    write_page(comparison_page(found, verdict, records=True), html)
    say(f"page: {html}", err=True)


def _save(side: "Side", name: str, out: Path) -> None:
    from dsv4kv.compare.side import save_baseline

    say(f"baseline: {save_baseline(side, name, out)}", err=True)
