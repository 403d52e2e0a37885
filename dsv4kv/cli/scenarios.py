"""``dsv4kv bench systems``, ``tiers`` and ``transfer``: own settings, no record."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dsv4kv import __version__
from dsv4kv.cli import COMMANDS, examples, group
from dsv4kv.cli import options as opt
from dsv4kv.errors import VerificationError

if TYPE_CHECKING:
    from dsv4kv.cli.progress import Watcher
    from dsv4kv.view.table import Page

_Ran = tuple["Page", dict[str, Any], Sequence[str]]
"""For people, for JSON, and what is wrong."""
_OnStep = Callable[[str, int, int], None]
_Loaded = tuple[str, type[Any], Callable[[Any, _OnStep], _Ran], Callable[[Any], object]]
"""What is counted, settings, run, and what refuses settings before anything is run."""

app = group(COMMANDS["bench systems"], "dsv4kv bench systems")


def _scenario(name: str, text: str, example: str, load: Callable[[], _Loaded]) -> None:
    @app.command(f"bench {name}", help=text, epilog=examples(f"dsv4kv bench {name} {example}"))
    def command(
        set_: opt.Texts = opt.SET,
        axis: opt.Texts = opt.option(
            "Sweep a setting; repeatable.", "KEY=A,B,…", "--axis", rare=True
        ),
        seed: int | None = opt.option("Seed of the data.", rare=True),
        json_: opt.Text = opt.option(
            "Print one JSON document.", "", "--json", callback=opt.to_file, rare=True
        ),
        verbose: bool = opt.flag("--verbose -v", "Print every row.", rare=True),
        quiet: bool = opt.QUIET,
    ) -> None:
        sets = [*(set_ or []), *opt.as_settings({"seed": "seed"}, {"seed": seed})]
        _run_points(name, *load(), sets, axis or [], json_, verbose=verbose, quiet=quiet)


def _systems() -> _Loaded:
    from dsv4kv.bench.systems.workload import run_systems
    from dsv4kv.config.experiments import SystemsConfig
    from dsv4kv.view.systems import report_systems
    from dsv4kv.view.table import Page

    def run(config: SystemsConfig, on_system: _OnStep) -> _Ran:
        outcomes = run_systems(config, on_system)
        wrong = [failure for outcome in outcomes for failure in outcome.failures]
        page = Page("Systems", [*report_systems(outcomes)])
        return page, {"systems": [*map(asdict, outcomes)]}, wrong

    return "systems", SystemsConfig, run, id


def _tiers() -> _Loaded:
    from dsv4kv.bench.tiers.run import check_tiers, document_of, run_tiers
    from dsv4kv.config.experiments import TiersConfig
    from dsv4kv.view.tiers import tiers_page

    def run(config: TiersConfig, on_step: _OnStep) -> _Ran:
        outcome = run_tiers(config, on_step)
        return tiers_page(outcome), document_of(outcome), outcome.failures

    return "prefixes", TiersConfig, run, check_tiers


def _transfer() -> _Loaded:
    from dsv4kv.bench.transfer.run import document_of, run_transfer
    from dsv4kv.config.experiments import TransferConfig
    from dsv4kv.view.table import Page
    from dsv4kv.view.transfer import report_transfer

    def run(config: TransferConfig, on_step: _OnStep) -> _Ran:
        outcome = run_transfer(config, on_step)
        page = Page("Transfer", [*report_transfer(config, outcome)])
        return page, document_of(outcome), outcome.failures

    return "steps", TransferConfig, run, id


_scenario(
    "systems",
    "Run three designs of the cache on the same data, and compare every output.",
    "--set run=blocks   one of the three",
    _systems,
)
_scenario(
    "tiers",
    "Store prefixes in host memory and on disk, restore them, and check every bit.",
    "--axis threads=1,4,16   one after the other",
    _tiers,
)
_scenario(
    "transfer",
    "Move a cache from a prefill to a decode process, check every bit, and time reads.",
    "--axis decode.block_tokens=256,1024   one after the other",
    _transfer,
)


def _run_points(
    scenario: str,
    what: str,
    root: type[Any],
    run: Callable[[Any, _OnStep], _Ran],
    check: Callable[[Any], object],
    overrides: Sequence[str],
    axes: Sequence[str],
    json_: str | None,
    *,
    verbose: bool,
    quiet: bool,
) -> None:
    """Run every point, counting ``what``, print each report, and write the documents.

    With axes the JSON is a list of documents, each with its values in ``axis``.
    """
    from dsv4kv.config.load import expand_axes, load_config
    from dsv4kv.view.render import show
    from dsv4kv.view.table import Text

    silent, documents, wrong = quiet or json_ == "-", list[dict[str, Any]](), list[str]()
    points = expand_axes(load_config(None, overrides, root), overrides, axes)
    for point in points:
        check(point.config)
    for point in points:
        with opt.watch("bench", what, quiet=silent) as watcher:

            def on_step(name: str, done: int, total: int, watcher: "Watcher" = watcher) -> None:
                watcher.name(f"bench {scenario}, {name}")
                watcher.reach(done, total)

            page, found, failures = run(point.config, on_step)
        at = ", ".join(f"{key}={value}" for key, value in point.axis.items())
        if not silent:
            more = ", ".join(section.heading for section in page.sections if not verbose)
            show([Text(at, "strong"), ""] if at else [])
            opt.show_page(page, verbose=verbose)
            show([Text(f"{more}: --verbose", "dim")] if more else [])
            show([""] if at else [])
        config = point.config.model_dump(mode="json")
        document = {"dsv4kv": __version__, "config": config, **found}
        documents.append({"axis": point.axis, **document} if at else document)
        wrong += [f"{at}: {each}" if at else each for each in failures]
    if json_:
        opt.write_json(json.dumps(documents if axes else documents[0], indent=2), json_)
    if wrong:
        raise VerificationError("\n".join(wrong))
