"""``dsv4kv plan``: the cheapest deployment that keeps latencies on a trace."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsv4kv.choices import ROUTERS
from dsv4kv.cli.records import Verbose, as_settings, write_json
from dsv4kv.cli.targets import to_file
from dsv4kv.view.console import open_console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsv4kv.planning.question import Slo
    from dsv4kv.traces.request import Request

EPILOG = """\
[bold]Examples[/bold]

dsv4kv plan builtin:chat --slo ttft_p99=2s --slo tpot_p50=50ms   the fewest GPUs

dsv4kv plan builtin:chat --slo ttft_p90=250ms --gpus 4           the highest rate of 4 GPUs

dsv4kv plan --isl 4132 --osl 510 --rate 20 --slo ttft_p99=2s     one length, without a trace

dsv4kv plan builtin:chat --slo ttft_p99=1s --args '' --args '--chunked-prefill-size 2048'
"""


_MOST = 4096
"""GPUs: a fleet has as many replicas."""

_SHORT_S = 0.1
"""Seconds before there is a bar."""


def plan(
    trace: Annotated[
        str | None,
        typer.Argument(
            help="A trace, as dsv4kv replay takes it; left out, --isl, --osl and --rate say.",
            show_default=False,
        ),
    ] = None,
    slo: Annotated[
        list[str] | None,
        typer.Option(metavar="TIME_pN=LIMIT", help="ttft_p99=2s, tpot_p50=50ms, latency_p90=30s."),
    ] = None,
    gpu: Annotated[
        str,
        typer.Option(
            metavar="A,B,…",
            help="Kinds of GPU.",
        ),
    ] = "h200,b200",
    router: Annotated[
        str,
        typer.Option(
            metavar="A,B,…",
            help="Routers, the preferred first.",
        ),
    ] = "round_robin,dynamo",
    split: Annotated[
        str,
        typer.Option(
            metavar="A,B,…",
            help="Prefill and decode replicas of a unit, 1:2 for one and two; none: alike.",
        ),
    ] = "none,1:1,1:2,2:1",
    args: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FLAGS",
            help="Engine flags to try, host memory too; '' for none. args 2 is the second.",
        ),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(min=1, max=_MOST, help="Instead: the highest rate of so many GPUs."),
    ] = None,
    most_gpus: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=_MOST,
            show_default=False,
            help="GPUs that a deployment may have at most, 256 if left out.",
        ),
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(metavar="GPU=USD", help="What an hour of a GPU costs: least money, then."),
    ] = None,
    speed: Annotated[
        float, typer.Option(min=1e-3, max=1e6, help="Play the trace so much faster.")
    ] = 1.0,
    engine: Annotated[
        str, typer.Option(help="Whose servers: sglang or vllm, or a version of theirs.")
    ] = "sglang",
    model: Annotated[
        str,
        typer.Option(metavar="NAME|FILE", help="The model."),
    ] = "v4-flash",
    isl: Annotated[int | None, typer.Option(min=1, help="Tokens of every prompt.")] = None,
    osl: Annotated[int | None, typer.Option(min=1, help="Tokens of every answer.")] = None,
    rate: Annotated[
        float | None,
        typer.Option(min=1e-3, max=1e3, help="Such requests a second, at random (Poisson)."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any setting of dsv4kv replay: tiers.host.ratio=2.",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="PAGE.html",
            help="Also write a page with a picture of the front.",
            callback=to_file,
        ),
    ] = None,
    json_: Annotated[
        str | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Also write what was found; - prints it.",
            callback=to_file,
        ),
    ] = None,
    verbose: Verbose = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print problems only.")] = False,
) -> None:
    """Find the fewest GPUs, or least money, that keep latencies at a trace's rate.

    GPU kinds, layouts, routers and replicas are searched; what bounds leave is replayed.
    """
    from itertools import count

    from dsv4kv.choices import choose
    from dsv4kv.cli.progress import Watcher
    from dsv4kv.errors import ConfigError
    from dsv4kv.planning.question import (
        MOST_GPUS,
        Question,
        busiest,
        check_settings,
        parse_prices,
        parse_slos,
    )
    from dsv4kv.planning.search import WINDOW, Search, Tally, list_kinds
    from dsv4kv.planning.search import plan as find
    from dsv4kv.planning.servers import name_args
    from dsv4kv.planning.trial import parse_splits
    from dsv4kv.view.plan import dumps, plan_page
    from dsv4kv.view.render import show

    slos = parse_slos(slo or [])
    check_settings(set_ or [])
    if gpus is not None and most_gpus is not None:
        raise ConfigError(
            "--gpus is how many there are, --most-gpus how many there may be: keep one."
        )
    kinds, routers = _split("--gpu", gpu), _split("--router", router)
    prices = parse_prices(price or [], kinds)
    for each in routers:
        choose(ROUTERS, each, "a router")
    settings = [*(set_ or []), *as_settings({"model": "model.preset"}, model=model)]
    splits = parse_splits(_split("--split", split))
    requests = _requests(trace, settings, isl, osl, rate, slos)
    most = gpus or most_gpus or MOST_GPUS
    question = Question(requests, slos, speed, prices, most, exactly=gpus is not None)
    tally, silent, done = Tally(), quiet or json_ == "-", count(1)
    console = open_console(stderr=True, quiet=silent)
    with Watcher(console, "plan", "simulations", total=None, after_s=_SHORT_S) as watcher:
        found = list_kinds(
            question, settings, engine, kinds, routers, model, tally, splits, name_args(args or [])
        )
        window = busiest(requests, WINDOW) if trace else requests
        search = Search(
            question, found, window, tally, on_trial=lambda: watcher.reach(next(done), None)
        )
        answer = find(search)
    page = plan_page(answer, question, gpus=kinds, trace=trace, settings=settings)
    if not silent:
        show(page.in_full() if verbose else page.answer)
    if json_:
        write_json(dumps(answer, question), json_)
    if html:
        from dsv4kv.view.html import write_page

        write_page(page, html)
    if answer.best is None:
        raise typer.Exit(1)


def _split(option: str, text: str) -> list[str]:
    """Names between commas, each once."""
    from dsv4kv.errors import ConfigError

    names = list(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
    if not names:
        raise ConfigError(f"{option} '': name at least one.")
    return names


def _requests(
    trace: str | None,
    settings: "Sequence[str]",
    isl: int | None,
    osl: int | None,
    rate: float | None,
    slos: "Sequence[Slo]",
) -> "list[Request]":
    """Those of the trace, or those of one length."""
    from dsv4kv.config.load import load_config
    from dsv4kv.config.replay import ReplayConfig
    from dsv4kv.errors import ConfigError
    from dsv4kv.planning.question import poisson
    from dsv4kv.replay.build import read_requests

    static = [value is not None for value in (isl, osl, rate)]
    if any(static) == (trace is not None) or (any(static) and not all(static)):
        raise ConfigError("give a trace, or --isl, --osl and --rate for requests of one length.")
    given = as_settings({"trace": "workload.trace"}, trace=trace)
    config = load_config(None, [*settings, *given], ReplayConfig).config
    if isl is not None and osl is not None and rate is not None:
        return poisson(isl, osl, rate, config.measure.seed, slos)
    return read_requests(config)
