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


def _systems() -> _Loaded:
    from dsv4kv.bench.systems import run_systems
    from dsv4kv.config.experiments import SystemsConfig
    from dsv4kv.view.scenarios import systems_page

    def run(config: SystemsConfig, on_system: _OnStep) -> _Ran:
        outcomes = run_systems(config, on_system)
        wrong = [failure for outcome in outcomes for failure in outcome.failures]
        return systems_page(outcomes), {"systems": [*map(asdict, outcomes)]}, wrong

    return "systems", SystemsConfig, run, id


def _tiers() -> _Loaded:
    from dsv4kv.bench.tiers import check_tiers, document_of, run_tiers
    from dsv4kv.config.experiments import TiersConfig
    from dsv4kv.view.scenarios import tiers_page

    def run(config: TiersConfig, on_step: _OnStep) -> _Ran:
        outcome = run_tiers(config, on_step)
        return tiers_page(outcome), document_of(outcome), outcome.failures

    return "prefixes", TiersConfig, run, check_tiers


def _transfer() -> _Loaded:
    from dsv4kv.bench.transfer import document_of, run_transfer
    from dsv4kv.config.experiments import TransferConfig
    from dsv4kv.view.scenarios import transfer_page

    def run(config: TransferConfig, on_step: _OnStep) -> _Ran:
        outcome = run_transfer(config, on_step)
        return transfer_page(config, outcome), document_of(outcome), outcome.failures

    return "steps", TransferConfig, run, id


def _scenario(name: str, load: Callable[[], _Loaded], example: str) -> None:
    line = examples(f"dsv4kv bench {name} {example}")

    @app.command(f"bench {name}", help=COMMANDS[f"bench {name}"], epilog=line)
    def command(
        set_: opt.Texts = opt.SET,
        axis: opt.Texts = opt.option(
            "Sweep a setting; repeatable.", "KEY=A,B,…", "--axis", rare=True
        ),
        json_: opt.Text = opt.option(
            "Print one JSON document.", "", "--json", callback=opt.to_file, rare=True
        ),
        verbose: bool = opt.flag("--verbose -v", "Print every row.", rare=True),
        quiet: bool = opt.QUIET,
    ) -> None:
        # with axes the JSON is a list of documents, each with its values in ``axis``
        from dsv4kv.config.load import expand_axes, load_config
        from dsv4kv.view.render import show
        from dsv4kv.view.table import Text

        what, root, run, check = load()
        overrides = set_ or []
        silent, documents, wrong = quiet or json_ == "-", list[dict[str, Any]](), list[str]()
        points = expand_axes(load_config(None, overrides, root), overrides, axis or [])
        for point in points:
            check(point.config)
        for point in points:
            with opt.watch("bench", what, quiet=silent) as watcher:
                page, found, failures = run(point.config, _reports_to(watcher, name))
            at = ", ".join(f"{key}={value}" for key, value in point.axis.items())
            if not silent:
                show([Text(at, "strong"), ""] if at else [])
                opt.show_page(page, verbose=verbose)
                show([""] if at else [])
            config = point.config.model_dump(mode="json")
            document = {"dsv4kv": __version__, "config": config, **found}
            documents.append({"axis": point.axis, **document} if at else document)
            wrong += [f"{at}: {each}" if at else each for each in failures]
        if json_:
            opt.write_json(json.dumps(documents if axis else documents[0], indent=2), json_)
        if wrong:
            raise VerificationError("\n".join(wrong))


def _reports_to(watcher: "Watcher", scenario: str) -> _OnStep:
    def on_step(name: str, done: int, total: int) -> None:
        watcher.name(f"bench {scenario}, {name}")
        watcher.reach(done, total)

    return on_step


_scenario("systems", _systems, "--set run=blocks   one of the three")
_scenario("tiers", _tiers, "--axis threads=1,4,16   one after the other")
_scenario("transfer", _transfer, "--axis decode.block_tokens=256,1024   one after the other")
