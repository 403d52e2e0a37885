"""``dsv4kv replay`` and ``replay calibrate``: a trace in virtual time, and its clock."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
import yaml

from dsv4kv.choices import STRATEGIES, listed
from dsv4kv.cli import command
from dsv4kv.cli import options as opt
from dsv4kv.cli.runs import Request, close_sweep, end_run, keep_points, keep_record
from dsv4kv.core.policies import POLICIES
from dsv4kv.engines.names import RULES, replayed_engines
from dsv4kv.errors import ConfigError
from dsv4kv.files import make_folder, shipped_names, user_calibrations, write_named
from dsv4kv.view.console import say

if TYPE_CHECKING:
    from dsv4kv.runs.points import Sweep
    from dsv4kv.runs.schema import RunRecord

_step = partial(opt.Row, panel="Model of a step")
SHORTHANDS = {
    "model": opt.Row(
        opt.MODELS, "NAME|FILE", "v4-flash", key="model.preset", values=opt.MODEL_NAMES
    ),
    "memory": opt.Row("Memory of the cache: 40GiB.", "BYTES", key="cache.memory_bytes"),
    "policy": opt.Row(
        f"What is evicted first: {listed(POLICIES)}.", key="prefix.policy", rare=True
    ),
    "limit": opt.Row("Only the first requests of the trace.", "N", kind=int, key="workload.limit"),
    "rule": opt.Row(f"Prefix cache to model: {listed(RULES)}.", key="prefix.rule", values=RULES),
    "engine": opt.Row(
        f"Server whose rule, pools and chunks to model: {listed(replayed_engines())}; vllm:0.22.",
        "NAME",
        key="server.engine",
        values=replayed_engines(),
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
_CHART = "Draw memory and requests: .svg or .html."


@command(
    "replay",
    "dsv4kv replay builtin:chat --memory 40GiB                 what is reused",
    "dsv4kv replay builtin:chat --limit 20                     its first 20 requests",
    "dsv4kv replay builtin:chat --axis prefix.policy=lru,lfu   two policies",
    "dsv4kv replay builtin:chat --rule vllm-v4:semantic        by vLLM's rule",
    "dsv4kv replay builtin:chat --set fleet.replicas=4         servers behind a router",
    "dsv4kv replay builtin:chat --chart replay.svg             memory over time",
    "dsv4kv replay server --against                            a recorded server",
)
@opt.takes(SHORTHANDS)
def replay(
    given: dict[str, Any],
    trace: opt.Text = opt.argument(_TRACE, shown="the configuration's", callback=opt.as_path),
    config: opt.Text = opt.rare(_CONFIG, "FILE"),
    against: bool = opt.flag("--against", _AGAINST, **_SERVER),
    command: opt.Text = opt.rare(_COMMAND, "COMMAND|FILE", **_SERVER),
    log: Path | None = opt.rare("The log of the server's start, for the same.", "FILE", **_SERVER),
    set_: opt.Texts = opt.SET,
    axis: opt.Texts = opt.AXIS,
    jobs: int = opt.rare("Parallel points of a sweep.", "N", "--jobs", "-j", min=1, default=1),
    ray: opt.Text = opt.rare(_RAY, "HOST:PORT"),
    resume: opt.Text = opt.RESUME,
    chart: Path | None = opt.option(_CHART, "FILE", callback=opt.to_chart),
    out: Path = opt.OUT,
    json_: opt.Text = opt.JSON,
    verbose: bool = opt.VERBOSE,
    quiet: bool = opt.QUIET,
    schema: bool = opt.flag("--schema", "List all settings and exit.", rare=True),
) -> None:
    """Replay a trace in virtual time: hit rate, lost hits by cause, latency.

    Which blocks are found, evicted and held is exact; times come with their error.
    """
    from dsv4kv.config.replay import ReplayConfig
    from dsv4kv.record.folder import is_recording
    from dsv4kv.view.html import write_chart
    from dsv4kv.view.render import show
    from dsv4kv.view.replay import replay_page

    if schema:
        from dsv4kv.view.config import schema_table

        show([schema_table(ReplayConfig)])
        return
    silent = quiet or json_ == "-"
    if against:
        asked = (trace, set_ or [], command, log, given, chart, json_)
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
    record, sweep = _run(request, None if ray and jobs == 1 else jobs, ray, quiet=silent)
    keep_record(record, out, json_, silent=silent, verbose=verbose)
    close_sweep(sweep)
    if chart is not None:
        write_chart(chart, replay_page(record))
        if not silent:
            say(f"chart: {chart}")
    end_run(record)


def _run(
    request: Request, jobs: int | None, ray: str | None, *, quiet: bool
) -> "tuple[RunRecord, Sweep]":
    from dsv4kv.config import load, replay
    from dsv4kv.replay.fleet.case import serve_point
    from dsv4kv.replay.run import run_replay
    from dsv4kv.runs.points import Invocation, Sweep

    loaded = load.load_config(request.config, request.overrides, replay.ReplayConfig)
    points = load.expand_axes(loaded, request.overrides, request.axes)
    tiers = {name for point in points for name in point.config.tiers.levels}
    if why := replay.unused_setting([point.config.fleet for point in points], tiers):
        raise ConfigError(why)
    traces = [point.config.workload.trace for point in points]
    kept = keep_points(request, loaded, points, traces, timed=False)
    sweep = Sweep(kept, jobs if len(points) > 1 else 1, ray)
    argv = ["dsv4kv", *sys.argv[1:]]
    invocation = Invocation(argv, loaded, points, request.overrides, request.axes, sweep)
    unit = "points" if sweep.parallel else "requests"
    with opt.watch("replay", unit, quiet=quiet) as watcher:
        return run_replay(invocation, watcher.reach, serve_point), sweep


def _compare(
    source: str | None,
    overrides: list[str],
    command: str | None,
    log: Path | None,
    given: dict[str, Any],
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
    from dsv4kv.replay import against, server
    from dsv4kv.view.html import write_page
    from dsv4kv.view.recorded import against_document, against_page

    if source is None or not is_recording(Path(source)):
        raise ConfigError(
            f"--against: {source or 'nothing'} is no recording: name a folder of dsv4kv record."
        )
    if chart is not None and chart.suffix != ".html":
        raise ConfigError(f"--chart {chart}: with --against it is a page: name a file .html.")
    observed, recorded = read_server(Path(source)), read_recording(Path(source))
    against.check_comparable(recorded, observed)
    reading = read_command(command, whole=True) if command else None
    started = read_log(log) if log else None
    rule, model, memory = (given.get(name) for name in ("rule", "model", "memory"))
    known = list(server.settings_of(observed, reading, started, rule, model))
    sets = [*overrides, *opt.as_settings(SHORTHANDS, {"memory": memory})]
    pool, chosen = server.open_pool(recorded.requests, known, sets)
    most = against.MOST_PLAYS * len(recorded.requests)
    with opt.watch("replays", "requests", most, quiet=silent, after_s=1.0) as watcher:
        found = against.Comparison(recorded, observed, chosen, pool, watcher.advance).explain()
    page = against_page(source, found, known)
    if not silent:
        opt.show_page(page, verbose=verbose)
    if json_:
        opt.write_json(json.dumps(against_document(source, found, known), indent=2), json_)
    if chart is not None:
        write_page(page, chart)


_RESULTS = (
    "What sglang.bench_serving --output-file, vllm bench serve --save-result, AIPerf or guidellm "
    "wrote, several concurrencies if you can, one for 1."
)
_FITTED = {
    "model": SHORTHANDS["model"],
    **{name: SHORTHANDS[name]._replace(panel=None) for name in ("gpu", "gpus")},
}


@command(
    "replay calibrate",
    "dsv4kv replay calibrate runs.jsonl --gpu h200 --gpus 8 --name mine   for cost.calibration",
    "dsv4kv replay calibrate c1.json c64.json --gpus 8 --set cost.dp=8    a server with DP",
)
@opt.takes(_FITTED)
def calibrate(
    given: dict[str, Any],
    results: list[Path] = opt.required(_RESULTS),
    set_: opt.Texts = opt.SET_RARE,
    config: opt.Text = opt.rare("Replay config with these settings.", "FILE"),
    name: opt.Text = opt.option("Store the calibration: as a name, or a .yaml.", "NAME|FILE"),
    json_: opt.Text = opt.JSON,
    quiet: bool = opt.QUIET,
) -> None:
    """Fit the step times of replay to measured runs of your own server.

    Prints which coefficients the runs determine, and the error on held-out runs.
    """
    from dsv4kv.replay.clock import fit, measured
    from dsv4kv.view import explain, render

    silent, target = quiet or json_ == "-", Path(name) if name is not None else None
    if name is not None and not name.endswith((".yaml", ".yml")):
        folder = user_calibrations()
        if folder is None or Path(name).name != name or Path(name).suffix:
            raise ConfigError(f"--name {name}: give a plain name, or a file that ends in .yaml.")
        target = folder / f"{name}.yaml"
    settings = [*(set_ or []), *opt.as_settings(SHORTHANDS, given)]
    scenes = fit.open_scenes(config, settings, measured.read_results(results))
    with opt.watch("calibrate", "replays", quiet=silent) as watcher:
        found = fit.fit_runs(scenes, watcher.reach)
    if not silent:
        render.show(explain.report_fit(found))
    if json_:
        opt.write_json(fit.dumps(found), json_)
    if target is None:
        return
    if found.doubts:
        raise ConfigError(f"--name {name}: not stored: {found.doubts[0]}")
    try:
        make_folder(target.parent)
    except OSError as error:
        raise ConfigError(f"--name: {target.parent} cannot be made: {error.strerror}.") from error
    text = yaml.safe_dump(found.coefficients.model_dump(), sort_keys=False, width=99)
    write_named(target, text, "--name")
    if not silent:
        say(f"stored: {target}, for --set cost.calibration={name}")
