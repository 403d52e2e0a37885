"""``dsv4kv compare``: two sides compared, with a verdict and its exit code."""

import secrets
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from dsv4kv.cli import examples
from dsv4kv.cli.options import (
    RESULTS,
    AsJson,
    Html,
    Out,
    Text,
    Verbose,
    argument,
    flag,
    option,
    print_json,
)
from dsv4kv.errors import INTERRUPTED, ConfigError
from dsv4kv.view.console import open_console, say

if TYPE_CHECKING:
    from dsv4kv.bench.compare.ab import Duel
    from dsv4kv.bench.compare.comparison import Comparison
    from dsv4kv.bench.compare.side import Side
    from dsv4kv.measure.verdict import Verdict

_AB = {"panel": "With --ab"}
_SIDES = "Records of bench: a file, several with commas between them, or a folder."
_AB_HELP = (
    "Measure both now, interleaved: git revisions (. is the source tree as it is), YAML files, or "
    "backend:NAME."
)
_TURNS = (
    "What alternates. step: two processes at once, step by step, which a noisy machine hardly "
    "disturbs; needs the memory of two caches. launch: one process at a time. Left out: step, on "
    "a GPU launch."
)
_ORDER = (
    "Seed of the order in which launches of A and B run; the record's reproduce command has it. "
    "Left out: a new one."
)
_FAIL_ON = "unclear: end with 3 as soon as one row is UNCLEAR."
_EXIT_CODES = {"SAME": 0, "FASTER": 0, "SLOWER": 1, "UNCLEAR": 3}
_LAUNCHES = 7  # of each side

EPILOG = examples(
    "dsv4kv compare results/A.json results/B.json             two runs of bench --launches 7",
    "dsv4kv compare --ab main HEAD --config smoke             two revisions, steps interleaved",
    "dsv4kv compare --ab backend:cpu backend:mine.py:gather   two backends",
    "dsv4kv compare results/A.json results/B.json --html p.html   and a page to show",
    "dsv4kv compare results/A.json --save-baseline main       keep a run under a name",
    "dsv4kv compare results/B.json --baseline main            and compare with it",
    "[bold]Exit code[/bold]: 0 SAME or FASTER, 1 SLOWER, 3 UNCLEAR, 2 not comparable",
)


def compare(
    sides: Annotated[list[str] | None, argument(_SIDES, "[BEFORE] AFTER")] = None,
    ab: Annotated[tuple[str, str] | None, option(_AB_HELP, "A B")] = None,
    config: Annotated[Text, option("What both run.", show_default="default", **_AB)] = None,
    set_: Annotated[
        list[str] | None, option("Change a setting of both.", "KEY=VALUE", "--set", **_AB)
    ] = None,
    axis: Annotated[
        list[str] | None, option("Sweep a setting of both.", "KEY=A,B,…", **_AB)
    ] = None,
    launches: Annotated[
        int | None, option("Fresh processes of each side.", min=1, show_default="7", **_AB)
    ] = None,
    turns: Annotated[
        Text, option(_TURNS, "step|launch", rare=True, show_default=False, **_AB)
    ] = None,
    order_seed: Annotated[
        int | None, option(_ORDER, rare=True, min=0, show_default=False, **_AB)
    ] = None,
    baseline: Annotated[Text, option("The side before: a saved baseline.", "NAME")] = None,
    save_baseline: Annotated[Text, option("Keep the side after as a baseline.", "NAME")] = None,
    floor: Annotated[str, option("Smallest change that counts.", "SHARE")] = "1%",
    fail_on: Annotated[str, option(_FAIL_ON, "slower|unclear")] = "slower",
    force: Annotated[bool, flag("--force", "Compare unlike machines or configurations.")] = False,
    as_json: AsJson = False,
    as_markdown: Annotated[
        bool, flag("--markdown", "Print Markdown, for a pull request.")
    ] = False,
    verbose: Verbose = False,
    html: Html = None,
    out: Out = RESULTS,
) -> None:
    """Say whether one side is slower than another: SAME, FASTER, SLOWER or UNCLEAR.

    A launch is the unit: each gives one median per quantity, and the verdict is made over them.
    SLOWER as soon as one quantity is; UNCLEAR where the mean of all is, or something is missing.
    """
    from dsv4kv.bench.compare.floor import parse_floor
    from dsv4kv.bench.compare.side import check_name
    from dsv4kv.bench.compare.side import save_baseline as save

    if fail_on not in ("slower", "unclear"):
        raise ConfigError(f"--fail-on {fail_on}: choose slower or unclear.")
    _refuse(as_json and as_markdown, "--json and --markdown were given: choose one of them.")
    if save_baseline:
        check_name(save_baseline)  # now, not when all has been measured
    smallest, interrupted = parse_floor(floor), False
    before: Side | None
    if ab:
        _refuse(sides or baseline, "--ab measures both sides now: leave records out.")
        duel = _plan(ab, config, set_, axis, launches or _LAUNCHES, turns, order_seed)
        before, after, interrupted = _measure(duel, out)
    else:
        given = config or set_ or axis or launches or turns or order_seed is not None
        _refuse(given, "--config, --set, --axis, --launches, --turns and --order-seed need --ab.")
        before, after = _stored(sides or [], baseline, save_baseline, out)
        _refuse(html and before is None, "--html shows a comparison: name a second side.")
    if before is not None:
        found = _judge(before, after, smallest, force=force, intended=bool(ab))
        verdict = found.conclude(fail_on_unclear=fail_on == "unclear")
        words = [*(sides or []), *(["--baseline", baseline] if baseline else [])]
        again = "" if ab else f"dsv4kv compare {shlex.join(words)} --verbose"
        _show(found, verdict, html, again, verbose, as_json=as_json, as_markdown=as_markdown)
    if save_baseline:
        say(f"baseline: {save(after, save_baseline, out)}", err=True)
    if before is not None:
        raise typer.Exit(INTERRUPTED if interrupted else _EXIT_CODES[verdict])


def _refuse(given: object, sentence: str) -> None:
    if given:
        raise ConfigError(sentence)


def _show(
    found: "Comparison",
    verdict: "Verdict",
    html: Path | None,
    again: str,
    verbose: bool,
    *,
    as_json: bool,
    as_markdown: bool,
) -> None:
    from dsv4kv.view import compare as view
    from dsv4kv.view.html import write_page
    from dsv4kv.view.render import show
    from dsv4kv.view.table import Command

    if as_json:
        print_json(view.to_document(found, verdict))
    elif as_markdown:
        say(view.to_markdown(found, verdict), end="")
    else:
        page = view.comparison_page(found, verdict)
        more = ["", Command(again)] if again else []
        show(page.in_full() if verbose else [*page.answer, *more])
    if html:
        write_page(view.comparison_page(found, verdict, records=True), html)
        say(f"page: {html}", err=True)


def _stored(
    sides: list[str], baseline: str | None, save_baseline: str | None, out: Path
) -> "tuple[Side | None, Side]":
    """The side before (None if one is only to be saved) and the side after."""
    from dsv4kv.bench.compare.side import load_baseline, load_side

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
    overrides: list[str] | None,
    axes: list[str] | None,
    launches: int,
    turns: str | None,
    order_seed: int | None,
) -> "Duel":
    from dsv4kv.bench.compare.ab import Duel, Unit

    unit = next((each for each in get_args(Unit) if each == turns), None)
    if turns and not unit:
        raise ConfigError(f"--turns {turns}: choose step or launch.")
    seed = secrets.randbelow(1 << 32) if order_seed is None else order_seed
    argv = ["dsv4kv", *sys.argv[1:]]
    return Duel(ab, config, overrides or [], axes or [], launches, argv, seed, unit)


def _measure(duel: "Duel", out: Path) -> "tuple[Side, Side, bool]":
    """Run both sides, keep their records, and say whether Ctrl-C ended it."""
    from dsv4kv.bench.compare.ab import run_duel
    from dsv4kv.cli.progress import Watcher
    from dsv4kv.runs.store import save_record

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
    from dsv4kv.bench.compare.comparison import compare as judge_sides
    from dsv4kv.bench.compare.comparison import list_differences
    from dsv4kv.bench.compare.floor import find_floor

    differences = list_differences(before, after)
    unlike = [each for each in differences if each.kind != "unknown"]
    if unlike and not force and not intended:
        alike = f"{before.name} and {after.name} are not alike"
        end = f"{alike}: --force compares them all the same."
        raise ConfigError("\n".join([*map(str, unlike), end]))
    smallest = find_floor(floor, (before, after))
    return judge_sides(before, after, smallest, differences, intended=intended)
