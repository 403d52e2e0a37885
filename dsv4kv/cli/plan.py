"""``dsv4kv plan``: the cheapest deployment that keeps latencies on a trace."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dsv4kv.choices import choose
from dsv4kv.cli import command
from dsv4kv.cli import options as opt
from dsv4kv.errors import ConfigError

if TYPE_CHECKING:
    from dsv4kv.replay.plan.question import Slo
    from dsv4kv.traces.request import Request

_MOST = 4096
"""GPUs: a fleet has as many replicas."""
_SHORT_S = 0.1
"""Seconds before there is a bar."""
_TRACE = "A trace, as dsv4kv replay takes it; or give --isl, --osl and --rate."
_SPLIT = "Prefill:decode replica ratios to try; none: no disaggregation."
_ARGS = "Engine flags to try, host memory too; repeatable, '' for none."
_GPUS = "Fix the number of GPUs and maximise the request rate."
_PRICE = "USD per GPU-hour; minimises cost instead of the number of GPUs."
_KINDS = "GPU types to try; budget --help lists all."
_SPEED = "Replay the trace faster by this factor."
_PAGE = "Also write a page with the Pareto front."


@command(
    "plan",
    "dsv4kv plan builtin:chat --slo ttft_p99=2s --slo tpot_p50=50ms   the fewest GPUs",
    "dsv4kv plan builtin:chat --slo ttft_p90=250ms --gpus 4           the highest rate of 4 GPUs",
    "dsv4kv plan --isl 4132 --osl 510 --rate 20 --slo ttft_p99=2s     one length, without a trace",
    "dsv4kv plan builtin:chat --slo ttft_p99=1s --args '--max-running-requests 64'",
)
def plan(
    trace: opt.Text = opt.argument(_TRACE, callback=opt.as_path),
    slo: opt.Texts = opt.option("ttft_p99=2s, tpot_p50=50ms, latency_p90=30s.", "TIME_pN=LIMIT"),
    gpu: str = opt.option(_KINDS, "A,B,…", default="h200,b200"),
    router: str = opt.rare("Routers to try.", "A,B,…", default="round_robin,dynamo"),
    split: str = opt.rare(_SPLIT, "A,B,…", default="none,1:1,1:2,2:1"),
    args: opt.Texts = opt.rare(_ARGS, "FLAGS"),
    gpus: int | None = opt.option(_GPUS, min=1, max=_MOST),
    most_gpus: int | None = opt.rare("Max GPUs.", min=1, max=_MOST, shown="256"),
    price: opt.Texts = opt.rare(_PRICE, "GPU=USD"),
    speed: float = opt.rare(_SPEED, min=1e-3, max=1e6, default=1.0),
    engine: str = opt.option("sglang or vllm, or a version of theirs.", default="sglang"),
    model: str = opt.MODEL,
    isl: int | None = opt.option("Tokens of every prompt.", min=1),
    osl: int | None = opt.option("Tokens of every answer.", min=1),
    rate: float | None = opt.option("Requests a second (Poisson).", min=1e-3, max=1e3),
    set_: opt.Texts = opt.SET_RARE,
    html: Path | None = opt.option(_PAGE, "PAGE.html", callback=opt.to_file),
    json_: opt.Text = opt.JSON,
    verbose: bool = opt.VERBOSE,
    quiet: bool = opt.QUIET,
) -> None:
    """Find the fewest GPUs, or the lowest cost, that meet an SLO on a trace.

    GPU kinds, layouts, routers and replicas are searched; candidates within bounds are replayed.
    """
    from dsv4kv.config.replay import ROUTERS
    from dsv4kv.replay.plan import question as asking
    from dsv4kv.replay.plan import search as searching
    from dsv4kv.replay.plan.trial import name_args, parse_splits
    from dsv4kv.view.html import write_page
    from dsv4kv.view.plan import dumps, plan_page

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
    settings = [*(set_ or []), *opt.as_settings({"model": "model.preset"}, {"model": model})]
    splits = parse_splits(_split("--split", split))
    requests = _requests(trace, settings, isl, osl, rate, slos)
    most = gpus or most_gpus or asking.MOST_GPUS
    question = asking.Question(requests, slos, speed, prices, most, exactly=gpus is not None)
    tally, silent = searching.Tally(), quiet or json_ == "-"
    with opt.watch("plan", "simulations", None, quiet=silent, after_s=_SHORT_S) as watcher:
        found = searching.list_kinds(
            question, settings, engine, kinds, routers, model, tally, splits, name_args(args or [])
        )
        window = asking.busiest(requests, searching.WINDOW) if trace else requests
        watcher.start(None)
        search = searching.Search(
            question, found, window, tally, on_trial=lambda _: watcher.advance()
        )
        answer = searching.plan(search)
    page = plan_page(answer, question, gpus=kinds, trace=trace, settings=settings)
    if not silent:
        opt.show_page(page, verbose=verbose)
    if json_:
        opt.write_json(dumps(answer, question), json_)
    if html:
        write_page(page.made_now(), html)
    if answer.best is None:
        raise typer.Exit(1)


def _split(option: str, text: str) -> list[str]:
    names = list(dict.fromkeys(opt.split(text)))
    if not names:
        raise ConfigError(f"{option} '': name at least one.")
    return names


def _requests(
    trace: str | None,
    settings: Sequence[str],
    isl: int | None,
    osl: int | None,
    rate: float | None,
    slos: "Sequence[Slo]",
) -> "list[Request]":
    from dsv4kv.config import load, replay
    from dsv4kv.replay.build import read_requests
    from dsv4kv.replay.plan.question import poisson

    static = [value is not None for value in (isl, osl, rate)]
    if any(static) == (trace is not None) or (any(static) and not all(static)):
        raise ConfigError("give a trace, or --isl, --osl and --rate for requests of one length.")
    given = opt.as_settings({"trace": "workload.trace"}, {"trace": trace})
    config = load.load_config(None, [*settings, *given], replay.ReplayConfig).config
    if isl is not None and osl is not None and rate is not None:
        return poisson(isl, osl, rate, config.measure.seed, slos)
    return read_requests(config)
