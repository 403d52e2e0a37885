"""``dsv4kv compare``: two sides compared, with a verdict and its exit code."""

import math
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import typer

from dsv4kv.choices import choose
from dsv4kv.cli import command
from dsv4kv.cli import options as opt
from dsv4kv.errors import INTERRUPTED, ConfigError
from dsv4kv.view.console import say

if TYPE_CHECKING:
    from dsv4kv.bench.compare.comparison import Comparison, Side

_AB: dict[str, Any] = {"panel": "With --ab"}
_SIDES = "Records of bench: a file, several with commas between them, or a folder."
_AB_HELP = (
    "Measure both now, interleaved: git revisions (. is the source tree as it is), YAML files, or "
    "backend:NAME."
)
_TURNS = (
    "What alternates. step: two concurrent processes, step by step, which a noisy machine hardly "
    "disturbs; needs the memory of two caches. launch: one process at a time."
)
_ONLY = "Operations to compare; all: everything measured."
_EXIT_CODES = {"SAME": 0, "FASTER": 0, "SLOWER": 1, "UNCLEAR": 3}
_LAUNCHES = 7  # of each side
_ACTIONS = dict.fromkeys(
    ("admit", "decode_step", "resume", "release", "step")
)  # next to operations


@command(
    "compare",
    "dsv4kv compare results/A.json results/B.json             two runs of bench --launches 7",
    "dsv4kv compare --ab main HEAD --config smoke             two revisions, steps interleaved",
    "dsv4kv compare --ab backend:cpu backend:mine.py:gather_topk   two backends: gather_topk",
    "dsv4kv compare results/A.json results/B.json --html p.html   and a page to show",
    "[bold]Exit code[/bold]: 0 SAME or FASTER, 1 SLOWER, 3 UNCLEAR, 2 not comparable",
)
def compare(
    sides: opt.Texts = opt.argument(_SIDES, "BEFORE AFTER"),
    ab: tuple[str, str] | None = opt.option(_AB_HELP, "A B"),
    config: opt.Text = opt.option("What both run.", shown="default", **_AB),
    set_: opt.Texts = opt.SET_RARE,
    axis: opt.Texts = opt.rare("Sweep a setting of both.", "KEY=A,B,…", **_AB),
    launches: int | None = opt.option("Fresh processes of each side.", min=1, shown="7", **_AB),
    turns: opt.Text = opt.rare(_TURNS, "step|launch", shown="step, on a GPU launch", **_AB),
    only: opt.Text = opt.option(_ONLY, "OP,…", shown="all; of two backends what they bring"),
    floor: str = opt.rare("Smallest change that counts.", "SHARE", default="1%"),
    force: bool = opt.flag("--force", "Compare unlike machines or configurations.", rare=True),
    as_json: bool = opt.AS_JSON,
    verbose: bool = opt.VERBOSE,
    html: Path | None = opt.HTML,
    out: Path = opt.OUT,
) -> None:
    """Compare two runs, revisions or backends: SAME, FASTER, SLOWER or UNCLEAR.

    A launch is the unit: each gives one median per quantity, and the verdict is made over them.
    SLOWER if any quantity is; UNCLEAR if the geometric mean is, or if data is missing.
    """
    from dsv4kv.bench.compare.comparison import load_side
    from dsv4kv.view import compare as view
    from dsv4kv.view.table import Command

    names = only and tuple(opt.split(only))
    smallest, interrupted = _parse_floor(floor), False
    if ab:
        _refuse(sides, "--ab measures both sides now: leave records out.")
        from dsv4kv.ops.spec import OPERATIONS

        short = {name.removeprefix("indexer_"): None for name in OPERATIONS}
        for name in names or ():  # before minutes of measuring what no run measures
            choose({"all": None, **OPERATIONS, **short, **_ACTIONS}, name, "what bench measures")
        asked = (ab, config, set_ or [], axis or [], launches or _LAUNCHES)
        before, after, interrupted = _measure(*asked, turns, out)
    else:
        given = config or set_ or axis or launches or turns
        _refuse(given, "--config, --set, --axis, --launches and --turns need --ab.")
        if len(sides := sides or []) != 2:
            few = f"two sides are needed, {len(sides)} given: two files, or --ab A B."
            raise ConfigError(few)
        before, after = map(load_side, sides)
    found = _judge(before, after, smallest, names, force=force, intended=bool(ab))
    verdict = found.conclude()
    page = view.comparison_page(found, verdict)
    if as_json:
        opt.print_json(view.to_document(found, verdict))
    else:
        words = ["dsv4kv", "compare", *(sides or []), *["--force"] * force, "--verbose"]
        opt.show_page(page, Command.of(*words) if sides else "", verbose=verbose)
    if html:
        opt.write_page(page.made_now(), html)
    raise typer.Exit(INTERRUPTED if interrupted else _EXIT_CODES[verdict])


def _judge(
    before: "Side",
    after: "Side",
    floor: float,
    only: tuple[str, ...] | str | None,
    *,
    force: bool,
    intended: bool,
) -> "Comparison":
    from dsv4kv.bench.compare.comparison import brought_by, list_differences
    from dsv4kv.bench.compare.comparison import compare as judge

    replayed = {case.replay is not None for side in (before, after) for case in side.cases}
    _refuse(len(replayed) > 1, "records of bench and of replay: compare records of one command.")
    differences = list_differences(before, after)
    if replayed == {True}:
        # times of a model: the machine is none of it, and what differs is the question
        differences, intended = [each for each in differences if each.kind == "config"], True
    unlike = "\n".join(str(each) for each in differences if each.kind != "unknown")
    end = f"{before.name} and {after.name} are not alike: --force compares them anyway."
    _refuse(unlike and not (force or intended), f"{unlike}\n{end}")
    names = () if only == ("all",) else only or brought_by(before, after)
    return judge(before, after, floor, differences, intended=intended, only=tuple(names))


def _refuse(given: object, sentence: str) -> None:
    if given:
        raise ConfigError(sentence)


def _parse_floor(text: str) -> float:
    """``1%``, ``1 %`` or ``0.01``, as a fraction."""
    number = text.strip().removesuffix("%")
    try:
        value = float(number) / (100 if number != text.strip() else 1)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        raise ConfigError(f"--floor {text}: give a share of the time, as 1% or 0.01.")
    return value


def _measure(
    ab: tuple[str, str],
    config: str | None,
    overrides: list[str],
    axes: list[str],
    launches: int,
    turns: str | None,
    out: Path,
) -> "tuple[Side, Side, bool]":
    from dsv4kv.bench.compare.ab import Duel, Unit, run_duel
    from dsv4kv.cli.runs import say_saved
    from dsv4kv.runs.store import save_record

    unit = next((each for each in get_args(Unit) if each == turns), None)
    _refuse(turns and not unit, f"--turns {turns}: choose step or launch.")
    argv = ["dsv4kv", *sys.argv[1:]]
    seed = secrets.randbelow(1 << 32)
    duel = Duel(ab, config, overrides, axes, launches, argv, seed, unit)
    with opt.watch("bench", "launches", 2 * launches) as watcher:
        sides, interrupted = run_duel(duel, watcher.show_launches)
    for side in sides:
        saved = save_record(side.records[0], out)
        say(f"record of {side.name}: {saved.path}", err=True)
        say_saved(saved, silent=True)
    return *sides, interrupted
