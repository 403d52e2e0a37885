"""``dsv4kv replay``: serve a trace in virtual time."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsv4kv.choices import POLICIES, STRATEGIES, listed
from dsv4kv.cli import examples
from dsv4kv.cli.options import (
    RESULTS,
    Axes,
    Jobs,
    JsonFile,
    Model,
    OnRay,
    Out,
    Quiet,
    Resume,
    Settings,
    Text,
    Verbose,
    argument,
    as_settings,
    flag,
    option,
    to_file,
    write_json,
)
from dsv4kv.cli.runs import Request, close_sweep, end_run, keep_points, keep_record
from dsv4kv.engines.names import RULES
from dsv4kv.errors import ConfigError
from dsv4kv.files import shipped_names, write_named
from dsv4kv.view.console import open_console, say

if TYPE_CHECKING:
    from dsv4kv.runs.points import Sweep
    from dsv4kv.runs.schema import RunRecord

EPILOG = examples(
    "dsv4kv replay builtin:chat --memory 100GiB                what is reused",
    "dsv4kv replay builtin:chat --axis prefix.policy=lru,arc   two policies",
    "dsv4kv replay builtin:chat --rule vllm-v4:semantic        by vLLM's rule",
    "dsv4kv replay builtin:chat --set fleet.replicas=4         servers behind a router",
    "dsv4kv replay builtin:chat --chart replay.svg             memory over time",
    "dsv4kv replay server --against                            a recorded server",
)

SHORTHANDS = {
    "trace": "workload.trace",
    "model": "model.preset",
    "memory": "cache.memory_bytes",
    "policy": "prefix.policy",
    "rule": "prefix.rule",
    "strategy": "prefix.strategy",
    "gpu": "cost.gpu",
    "gpus": "cost.gpus",
    "bandwidth": "cost.bandwidth_gbps",
    "peaks": "cost.peaks",
    "tflops": "cost.tflops",
}
"""Options that stand for settings."""
_STEP = {"panel": "Model of a step"}
_SERVER = {"panel": "A recorded server"}
_TRACE = (
    "A trace file, a folder of weka conversations or [bold]builtin:chat[/bold]; with --against a "
    "recording. Left out: what the configuration names."
)
_CONFIG = f"A YAML file or a shipped name: {listed(shipped_names('replay'))}."
_AGAINST = (
    "Replay a recording of `dsv4kv record` at the server's own pace and settings: where the "
    "server finds more or fewer tokens, and why."
)
_COMMAND = "The server's launch command, or a file with it: what its metrics do not report."


def replay(
    trace: Annotated[Text, argument(_TRACE)] = None,
    config: Annotated[Text, option(_CONFIG, "FILE", show_default=False)] = None,
    model: Model = None,
    memory: Annotated[Text, option("Memory of the cache: 100GiB.", "BYTES")] = None,
    policy: Annotated[Text, option(f"What is evicted first: {listed(POLICIES)}.")] = None,
    rule: Annotated[Text, option(f"By whose rule prompts are reused: {listed(RULES)}.")] = None,
    strategy: Annotated[
        Text, option(f"What is kept of windows and states: {listed(STRATEGIES)}.")
    ] = None,
    gpu: Annotated[Text, option("A GPU of the catalogue, for its times.", **_STEP)] = None,
    gpus: Annotated[int | None, option("GPUs that share the work of a step.", **_STEP)] = None,
    bandwidth: Annotated[
        float | None, option("Memory bandwidth of one GPU instead.", "GB/s", rare=True, **_STEP)
    ] = None,
    peaks: Annotated[
        Text,
        option(
            "Bandwidth as a run of `dsv4kv bench` measured it.", "RUN.json", rare=True, **_STEP
        ),
    ] = None,
    tflops: Annotated[
        float | None, option("Arithmetic of one GPU.", "TFLOP/s", rare=True, **_STEP)
    ] = None,
    against: Annotated[bool, flag("--against", _AGAINST, **_SERVER)] = False,
    command: Annotated[Text, option(_COMMAND, "COMMAND|FILE", **_SERVER)] = None,
    log: Annotated[
        Path | None,
        option("The log of the server's start, for the same.", "FILE", **_SERVER),
    ] = None,
    set_: Settings = None,
    axis: Axes = None,
    jobs: Jobs = 1,
    ray: OnRay = None,
    resume: Resume = None,
    chart: Annotated[
        Path | None,
        option("Draw memory, requests and times: .svg or .html.", "FILE", callback=to_file),
    ] = None,
    out: Out = RESULTS,
    json_: JsonFile = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
    schema: Annotated[bool, flag("--schema", "List every setting and end.")] = False,
) -> None:
    """Serve a trace in virtual time: what is reused, what is lost and why, at what cost.

    Which blocks are found, evicted and held is exact; times come with their error.
    """
    from dsv4kv.config.replay import ReplayConfig
    from dsv4kv.record.folder import is_recording
    from dsv4kv.view.config import schema_table
    from dsv4kv.view.render import show

    if schema:
        show([schema_table(ReplayConfig)])
        return
    silent = quiet or json_ == "-"
    if against:
        given = [*(set_ or []), *as_settings(SHORTHANDS, memory=memory)]
        asked = (trace, given, command, log, rule, model, chart, json_)
        _compare(*asked, silent=silent, verbose=verbose)
        return
    if trace is not None and is_recording(Path(trace)):
        raise ConfigError(
            f"{trace} is a recording: add --against to compare it with its server, or make a "
            "trace of it with dsv4kv trace convert."
        )
    if command or log:
        raise typer.BadParameter("--command and --log are of a recorded server: add --against.")
    if chart is not None and chart.suffix not in (".svg", ".html"):
        raise ConfigError(f"--chart {chart}: name a file that ends in .svg or .html.")
    short = as_settings(
        SHORTHANDS, trace=trace, model=model, memory=memory, policy=policy, rule=rule,
        strategy=strategy, gpu=gpu, gpus=gpus, bandwidth=bandwidth, peaks=peaks, tflops=tflops,
    )  # fmt: skip
    request = Request("replay", config, [*(set_ or []), *short], axis or [], out, resume)
    at_once = None if ray and jobs == 1 else jobs
    record, sweep = _run(request.restated(), at_once, ray, silent=silent)
    keep_record(record, out, json_, silent=silent, verbose=verbose)
    close_sweep(sweep, "replay")
    if chart is not None:
        from dsv4kv.view.html import render_page
        from dsv4kv.view.plots import to_svg_file
        from dsv4kv.view.replay import replay_page

        page = replay_page(record)
        text = render_page(page) if chart.suffix == ".html" else to_svg_file(page.charts()[0])
        write_named(chart, text, "--chart")
        if not silent:
            say(f"chart: {chart}")
    end_run(record)


def _run(
    request: Request, jobs: int | None, ray: str | None, *, silent: bool
) -> "tuple[RunRecord, Sweep]":
    from dsv4kv.cli.progress import Watcher
    from dsv4kv.config.fleet import unused_setting
    from dsv4kv.config.load import expand_axes, load_config
    from dsv4kv.config.replay import ReplayConfig
    from dsv4kv.replay.fleet.case import serve_point
    from dsv4kv.replay.run import Invocation, run_replay
    from dsv4kv.runs.points import Sweep

    loaded = load_config(request.config, request.overrides, ReplayConfig)
    points = expand_axes(loaded, request.overrides, request.axes)
    tiers = {name for point in points for name in point.config.tiers.levels}
    if why := unused_setting([point.config.fleet for point in points], tiers):
        raise ConfigError(why)
    traces = [point.config.workload.trace for point in points]
    kept = keep_points(request, loaded, points, traces, timed=False)
    sweep = Sweep(kept, jobs if len(points) > 1 else 1, ray)
    argv = ["dsv4kv", *sys.argv[1:]]
    invocation = Invocation(
        argv, loaded, points, request.overrides, request.axes, sweep, serve_point
    )
    unit = "points" if sweep.parallel else "requests"
    with Watcher(open_console(stderr=True, quiet=silent), "replay", unit) as watcher:
        return run_replay(invocation, watcher.reach), sweep


def _compare(
    source: str | None,
    given: list[str],
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
    """Replay a recording at its server's pace, with its settings and what is given."""
    from dsv4kv.budget.launch import read_command
    from dsv4kv.cli.progress import Watcher
    from dsv4kv.engines.logs.read import read_log
    from dsv4kv.record.convert import read_recording
    from dsv4kv.record.folder import is_recording
    from dsv4kv.record.server import read_server
    from dsv4kv.replay.against import MOST_PLAYS, check_comparable, compare_with_server
    from dsv4kv.replay.settings import open_pool, settings_of
    from dsv4kv.view.against import against_document, against_page
    from dsv4kv.view.html import write_page
    from dsv4kv.view.render import show

    if source is None or not is_recording(Path(source)):
        raise ConfigError(
            f"--against: {source or 'nothing'} is no recording: name a folder of dsv4kv record."
        )
    if chart is not None and chart.suffix != ".html":
        raise ConfigError(f"--chart {chart}: with --against it is a page: name a file .html.")
    server, recorded = read_server(Path(source)), read_recording(Path(source))
    check_comparable(recorded, server)
    reading, started = read_command(command) if command else None, read_log(log) if log else None
    known = list(settings_of(server, reading, started, rule, model))
    pool, chosen = open_pool(recorded.requests, known, given)
    console, most = open_console(stderr=True, quiet=silent), MOST_PLAYS * len(recorded.requests)
    with Watcher(console, "replays", "requests", most, after_s=1.0) as watcher:
        found = compare_with_server(recorded, server, chosen, pool, watcher.advance)
    page = against_page(source, found, known)
    if not silent:
        show(page.in_full() if verbose else page.answer)
    if json_:
        write_json(json.dumps(against_document(source, found, known), indent=2), json_)
    if chart is not None:
        write_page(page, chart)
