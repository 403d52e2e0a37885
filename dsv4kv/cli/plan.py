"""``dsv4kv plan``: the cheapest deployment that keeps latencies on a trace."""

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsv4kv.choices import ROUTERS, choose
from dsv4kv.cli import examples
from dsv4kv.cli.options import (
    JsonFile,
    Quiet,
    Settings,
    Text,
    Verbose,
    argument,
    as_settings,
    option,
    to_file,
    write_json,
)
from dsv4kv.errors import ConfigError
from dsv4kv.view.console import open_console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsv4kv.replay.plan.question import Slo
    from dsv4kv.traces.request import Request

EPILOG = examples(
    "dsv4kv plan builtin:chat --slo ttft_p99=2s --slo tpot_p50=50ms   the fewest GPUs",
    "dsv4kv plan builtin:chat --slo ttft_p90=250ms --gpus 4           the highest rate of 4 GPUs",
    "dsv4kv plan --isl 4132 --osl 510 --rate 20 --slo ttft_p99=2s     one length, without a trace",
    "dsv4kv plan builtin:chat --slo ttft_p99=1s --args '' --args '--chunked-prefill-size 2048'",
)

_MOST = 4096
"""GPUs: a fleet has as many replicas."""
_SHORT_S = 0.1
"""Seconds before there is a bar."""
_TRACE = "A trace, as dsv4kv replay takes it; left out, --isl, --osl and --rate say."
_SPLIT = "Prefill and decode replicas of a unit, 1:2 for one and two; none: alike."
_ARGS = "Engine flags to try, host memory too; '' for none. args 2 is the second."
_MOST_GPUS = "GPUs that a deployment may have at most, 256 if left out."


def plan(
    trace: Annotated[Text, argument(_TRACE)] = None,
    slo: Annotated[
        list[str] | None, option("ttft_p99=2s, tpot_p50=50ms, latency_p90=30s.", "TIME_pN=LIMIT")
    ] = None,
    gpu: Annotated[str, option("Kinds of GPU.", "A,B,…")] = "h200,b200",
    router: Annotated[str, option("Routers, the best first.", "A,B,…")] = "round_robin,dynamo",
    split: Annotated[str, option(_SPLIT, "A,B,…", rare=True)] = "none,1:1,1:2,2:1",
    args: Annotated[list[str] | None, option(_ARGS, "FLAGS")] = None,
    gpus: Annotated[
        int | None, option("Instead: the highest rate of so many GPUs.", min=1, max=_MOST)
    ] = None,
    most_gpus: Annotated[
        int | None, option(_MOST_GPUS, rare=True, min=1, max=_MOST, show_default=False)
    ] = None,
    price: Annotated[
        list[str] | None, option("What an hour of a GPU costs: least money, then.", "GPU=USD")
    ] = None,
    speed: Annotated[
        float, option("Play the trace so much faster.", rare=True, min=1e-3, max=1e6)
    ] = 1.0,
    engine: Annotated[
        str, option("Whose servers: sglang or vllm, or a version of theirs.")
    ] = "sglang",
    model: Annotated[str, option("The model.", "NAME|FILE")] = "v4-flash",
    isl: Annotated[int | None, option("Tokens of every prompt.", min=1)] = None,
    osl: Annotated[int | None, option("Tokens of every answer.", min=1)] = None,
    rate: Annotated[
        float | None, option("Such requests a second, at random (Poisson).", min=1e-3, max=1e3)
    ] = None,
    set_: Settings = None,
    html: Annotated[
        Path | None,
        option("Also write a page with a picture of the front.", "PAGE.html", callback=to_file),
    ] = None,
    json_: JsonFile = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Find the fewest GPUs, or least money, that keep latencies at a trace's rate.

    GPU kinds, layouts, routers and replicas are searched; what bounds leave is replayed.
    """
    from dsv4kv.cli.progress import Watcher
    from dsv4kv.replay.plan import question as asking
    from dsv4kv.replay.plan import search as searching
    from dsv4kv.replay.plan.servers import name_args
    from dsv4kv.replay.plan.trial import parse_splits
    from dsv4kv.view.html import write_page
    from dsv4kv.view.plan import dumps, plan_page
    from dsv4kv.view.render import show

    slos = asking.parse_slos(slo or [])
    asking.check_settings(set_ or [])
    if gpus is not None and most_gpus is not None:
        raise ConfigError(
            "--gpus is how many there are, --most-gpus how many there may be: keep one."
        )
    kinds, routers = _split("--gpu", gpu), _split("--router", router)
    prices = asking.parse_prices(price or [], kinds)
    for each in routers:
        choose(ROUTERS, each, "a router")
    settings = [*(set_ or []), *as_settings({"model": "model.preset"}, model=model)]
    splits = parse_splits(_split("--split", split))
    requests = _requests(trace, settings, isl, osl, rate, slos)
    most = gpus or most_gpus or asking.MOST_GPUS
    question = asking.Question(requests, slos, speed, prices, most, exactly=gpus is not None)
    tally, silent, done = searching.Tally(), quiet or json_ == "-", count(1)
    console = open_console(stderr=True, quiet=silent)
    with Watcher(console, "plan", "simulations", total=None, after_s=_SHORT_S) as watcher:
        found = searching.list_kinds(
            question, settings, engine, kinds, routers, model, tally, splits, name_args(args or [])
        )
        window = asking.busiest(requests, searching.WINDOW) if trace else requests
        search = searching.Search(
            question, found, window, tally, on_trial=lambda: watcher.reach(next(done), None)
        )
        answer = searching.plan(search)
    page = plan_page(answer, question, gpus=kinds, trace=trace, settings=settings)
    if not silent:
        show(page.in_full() if verbose else page.answer)
    if json_:
        write_json(dumps(answer, question), json_)
    if html:
        write_page(page, html)
    if answer.best is None:
        raise typer.Exit(1)


def _split(option: str, text: str) -> list[str]:
    """Names between commas, each once."""
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
    from dsv4kv.replay.build import read_requests
    from dsv4kv.replay.plan.question import poisson

    static = [value is not None for value in (isl, osl, rate)]
    if any(static) == (trace is not None) or (any(static) and not all(static)):
        raise ConfigError("give a trace, or --isl, --osl and --rate for requests of one length.")
    given = as_settings({"trace": "workload.trace"}, trace=trace)
    config = load_config(None, [*settings, *given], ReplayConfig).config
    if isl is not None and osl is not None and rate is not None:
        return poisson(isl, osl, rate, config.measure.seed, slos)
    return read_requests(config)
