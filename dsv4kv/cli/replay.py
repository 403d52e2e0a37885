"""``dsv4kv replay``: serve a trace in virtual time."""

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import typer

from dsv4kv.choices import STRATEGIES, listed
from dsv4kv.cli import examples
from dsv4kv.cli import options as opt
from dsv4kv.cli.runs import Request, close_sweep, end_run, keep_points, keep_record
from dsv4kv.core.policies import POLICIES
from dsv4kv.engines.names import RULES
from dsv4kv.errors import ConfigError
from dsv4kv.files import shipped_names
from dsv4kv.view.console import say

EPILOG = examples(
    "dsv4kv replay builtin:chat --memory 40GiB                 what is reused",
    "dsv4kv replay builtin:chat --limit 20                     its first 20 requests",
    "dsv4kv replay builtin:chat --axis prefix.policy=lru,lfu   two policies",
    "dsv4kv replay builtin:chat --rule vllm-v4:semantic        by vLLM's rule",
    "dsv4kv replay builtin:chat --set fleet.replicas=4         servers behind a router",
    "dsv4kv replay builtin:chat --chart replay.svg             memory over time",
    "dsv4kv replay server --against                            a recorded server",
)

_step = partial(opt.Row, panel="Model of a step")
SHORTHANDS = {
    "model": opt.Row(opt.MODELS, "NAME|FILE", "v4-flash", key="model.preset"),
    "memory": opt.Row("Memory of the cache: 40GiB.", "BYTES", key="cache.memory_bytes"),
    "policy": opt.Row(
        f"What is evicted first: {listed(POLICIES)}.", key="prefix.policy", rare=True
    ),
    "limit": opt.Row("Only the first requests of the trace.", "N", kind=int, key="workload.limit"),
    "rule": opt.Row(
        f"Engine whose prefix cache to model: {listed(RULES)}. Its version, with its pools: "
        "--set server.engine=vllm:0.22.",
        key="prefix.rule",
    ),
    "strategy": opt.Row(
        f"Where windows and states are kept: {listed(STRATEGIES)}.",
        key="prefix.strategy",
        rare=True,
    ),
    "gpu": _step(opt.GPU, "NAME", "h200", key="cost.gpu"),
    "gpus": _step("Number of GPUs.", "N", "2", kind=int, key="cost.gpus"),
}
"""Options that stand for settings."""
_SERVER: dict[str, Any] = {"panel": "A recorded server"}
_TRACE = (
    "A trace file, a folder of weka conversations or [bold]builtin:chat[/bold]; with --against a "
    "recording."
)
_CONFIG = f"A YAML file or a shipped name: {listed(shipped_names('replay'))}."
_AGAINST = (
    "Replay a recording of `dsv4kv record` at the server's own pace and settings: where the "
    "server finds more or fewer tokens, and why."
)
_COMMAND = "The server's launch command, or a file with it: what its metrics do not report."
_RAY = "Run the points of a sweep on a Ray cluster; auto finds one."


@opt.takes(SHORTHANDS)
def replay(
    given: dict[str, Any],
    trace: opt.Text = opt.argument(
        _TRACE, show_default="the configuration's", callback=opt.as_path
    ),
    config: opt.Text = opt.option(_CONFIG, "FILE", rare=True),
    against: bool = opt.flag("--against", _AGAINST, **_SERVER),
    command: opt.Text = opt.option(_COMMAND, "COMMAND|FILE", rare=True, **_SERVER),
    log: Path | None = opt.option(
        "The log of the server's start, for the same.", "FILE", rare=True, **_SERVER
    ),
    set_: opt.Texts = opt.SET,
    axis: opt.Texts = opt.AXIS,
    jobs: int = opt.option(
        "Parallel points of a sweep.", "N", "--jobs", "-j", min=1, rare=True, default=1
    ),
    ray: opt.Text = opt.option(_RAY, "HOST:PORT", rare=True),
    resume: opt.Text = opt.RESUME,
    chart: Path | None = opt.option(
        "Draw memory and requests: .svg or .html.", "FILE", callback=opt.to_chart
    ),
    out: Path = opt.OUT,
    json_: opt.Text = opt.JSON,
    verbose: bool = opt.VERBOSE,
    quiet: bool = opt.QUIET,
    schema: bool = opt.flag("--schema", "List all settings and exit.", rare=True),
) -> None:
    """Replay a trace in virtual time: hit rate, lost hits by cause, latency.

    Which blocks are found, evicted and held is exact; times come with their error.
    """
    from dsv4kv.config.load import expand_axes, load_config
    from dsv4kv.config.replay import ReplayConfig, unused_setting
    from dsv4kv.record.folder import is_recording
    from dsv4kv.replay.fleet.case import serve_point
    from dsv4kv.replay.run import run_replay
    from dsv4kv.runs.points import Invocation, Sweep
    from dsv4kv.view.config import schema_table
    from dsv4kv.view.html import write_chart
    from dsv4kv.view.render import show
    from dsv4kv.view.replay import replay_page

    if schema:
        show([schema_table(ReplayConfig)])
        return
    silent = quiet or json_ == "-"
    if against:
        sets = [*(set_ or []), *opt.as_settings(SHORTHANDS, {"memory": given.get("memory")})]
        asked = (trace, sets, command, log, given.get("rule"), given.get("model"), chart, json_)
        _compare(*asked, silent=silent, verbose=verbose)
        return
    if trace is not None and is_recording(Path(trace)):
        raise ConfigError(
            f"{trace} is a recording: add --against to compare it with its server, or make a "
            "trace of it with dsv4kv trace convert."
        )
    if command or log:
        raise typer.BadParameter("--command and --log are of a recorded server: add --against.")
    sets = [*(set_ or []), *opt.as_settings({"trace": "workload.trace"}, {"trace": trace})]
    sets += opt.as_settings(SHORTHANDS, given)
    request = Request("replay", config, sets, axis or [], out, resume).restated()
    loaded = load_config(request.config, request.overrides, ReplayConfig)
    points = expand_axes(loaded, request.overrides, request.axes)
    tiers = {name for point in points for name in point.config.tiers.levels}
    if why := unused_setting([point.config.fleet for point in points], tiers):
        raise ConfigError(why)
    traces = [point.config.workload.trace for point in points]
    kept = keep_points(request, loaded, points, traces, timed=False)
    parallel = None if ray and jobs == 1 else jobs
    sweep = Sweep(kept, parallel if len(points) > 1 else 1, ray)
    argv = ["dsv4kv", *sys.argv[1:]]
    invocation = Invocation(argv, loaded, points, request.overrides, request.axes, sweep)
    unit = "points" if sweep.parallel else "requests"
    with opt.watch("replay", unit, quiet=silent) as watcher:
        record = run_replay(invocation, watcher.reach, serve_point)
    keep_record(record, out, json_, silent=silent, verbose=verbose)
    close_sweep(sweep)
    if chart is not None:
        page = replay_page(record)
        write_chart(chart, page)
        if not silent:
            say(f"chart: {chart}")
    end_run(record)


def _compare(
    source: str | None,
    given: Sequence[str],
    command: str | None,
    log: Path | None,
    rule: str | None,
    model: str | None,
    chart: Path | None,
    json_: str | None,
    *,
    silent: bool,
    verbose: bool,
) -> None:
    from dsv4kv.budget.launch import read_command
    from dsv4kv.engines.logs import read_log
    from dsv4kv.record.convert import read_recording
    from dsv4kv.record.folder import is_recording
    from dsv4kv.record.server import read_server
    from dsv4kv.replay.against import MOST_PLAYS, Comparison, check_comparable
    from dsv4kv.replay.server import open_pool, settings_of
    from dsv4kv.view.against import against_document, against_page
    from dsv4kv.view.html import write_page

    if source is None or not is_recording(Path(source)):
        raise ConfigError(
            f"--against: {source or 'nothing'} is no recording: name a folder of dsv4kv record."
        )
    if chart is not None and chart.suffix != ".html":
        raise ConfigError(f"--chart {chart}: with --against it is a page: name a file .html.")
    server, recorded = read_server(Path(source)), read_recording(Path(source))
    check_comparable(recorded, server)
    reading = read_command(command, whole=True) if command else None
    started = read_log(log) if log else None
    known = list(settings_of(server, reading, started, rule, model))
    pool, chosen = open_pool(recorded.requests, known, given)
    most = MOST_PLAYS * len(recorded.requests)
    with opt.watch("replays", "requests", most, quiet=silent, after_s=1.0) as watcher:
        found = Comparison(recorded, server, chosen, pool, watcher.advance).explain()
    page = against_page(source, found, known)
    if not silent:
        opt.show_page(page, verbose=verbose)
    if json_:
        opt.write_json(json.dumps(against_document(source, found, known), indent=2), json_)
    if chart is not None:
        write_page(page, chart)
