"""``dsv4kv replay``: serve a trace in virtual time."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from dsv4kv.choices import POLICIES, STRATEGIES, listed
from dsv4kv.cli.records import as_settings, end_run, keep_record, write_json
from dsv4kv.cli.sweeps import Jobs, OnRay, Request, Resume, close_sweep, keep_points
from dsv4kv.cli.targets import to_file, to_folder
from dsv4kv.engines.names import RULES
from dsv4kv.files import shipped_names
from dsv4kv.view.console import open_console, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsv4kv.config.replay import ReplayConfig
    from dsv4kv.record.points import Sweep
    from dsv4kv.record.schema import RunRecord
    from dsv4kv.replay.against import Against
    from dsv4kv.replay.settings import Known

EPILOG = """\
[bold]Examples[/bold]

dsv4kv replay builtin:chat --memory 100GiB                what is reused

dsv4kv replay builtin:chat --axis prefix.policy=lru,arc   two policies

dsv4kv replay builtin:chat --rule vllm-v4:semantic        by vLLM's rule

dsv4kv replay builtin:chat --set fleet.replicas=4         servers behind a router

dsv4kv replay builtin:chat --chart replay.svg             memory over time

dsv4kv replay server --against                            a recorded server, and why it differs
"""

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
_OWN = {"memory": SHORTHANDS["memory"]}


def _model(text: str, metavar: str | None = None) -> Any:
    return typer.Option(help=text, metavar=metavar, rich_help_panel="Model of a step")


def replay(
    trace: Annotated[
        str | None,
        typer.Argument(
            help="A trace file, a folder of weka conversations or [bold]builtin:chat[/bold]; with "
            "--against a recording. Left out: what the configuration names.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help=f"A YAML file or a shipped name: {listed(shipped_names('replay'))}.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="A preset or a config.json.",
        ),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Memory of the cache: 100GiB.")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(help=f"What is evicted first: {listed(POLICIES)}."),
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            help=f"By whose rule prompts are reused: {listed(RULES)}.",
        ),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            help=f"What is kept of windows and states: {listed(STRATEGIES)}.",
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            help="A GPU of the catalogue, for its times.",
            rich_help_panel="Model of a step",
        ),
    ] = None,
    gpus: Annotated[int | None, _model("GPUs that share the work of a step.")] = None,
    bandwidth: Annotated[
        float | None, _model("Memory bandwidth of one GPU instead.", "GB/s")
    ] = None,
    peaks: Annotated[
        str | None, _model("Bandwidth as a run of `dsv4kv bench` measured it.", "RUN.json")
    ] = None,
    tflops: Annotated[float | None, _model("Arithmetic of one GPU.", "TFLOP/s")] = None,
    against: Annotated[
        bool,
        typer.Option(
            "--against",
            help="Replay a recording of `dsv4kv record` at the server's own pace and settings: "
            "where the server finds more or fewer tokens, and why.",
            rich_help_panel="A recorded server",
        ),
    ] = False,
    command: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND|FILE",
            help="The server's launch command, or a file with it: what its metrics do not report.",
            rich_help_panel="A recorded server",
        ),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The log of the server's start, for the same purpose.",
            rich_help_panel="A recorded server",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a setting: prefix.defer=false.",
        ),
    ] = None,
    axis: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A,B,…",
            help="Sweep a setting: prefix.policy=lru,arc.",
        ),
    ] = None,
    jobs: Jobs = 1,
    ray: OnRay = None,
    resume: Resume = None,
    chart: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw memory, requests and times: .svg or .html.",
            callback=to_file,
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder for the run record.", callback=to_folder)
    ] = Path("results"),
    json_: Annotated[
        str | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Also write the record here; - prints it.",
            callback=to_file,
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print problems only.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="List every setting and end.")] = False,
) -> None:
    """Serve a trace in virtual time: what is reused, what is lost and why, at what cost.

    Which blocks are found, evicted and held is exact; times come with their error.
    """
    if schema:
        _print_schema()
        return
    short = as_settings(
        SHORTHANDS,
        trace=trace,
        model=model,
        memory=memory,
        policy=policy,
        rule=rule,
        strategy=strategy,
        gpu=gpu,
        gpus=gpus,
        bandwidth=bandwidth,
        peaks=peaks,
        tflops=tflops,
    )
    silent = quiet or json_ == "-"
    if against:
        given = [*(set_ or []), *as_settings(_OWN, memory=memory)]
        asked = _Asked(trace, given, command, log, rule, model)
        found = _compare(asked, silent=silent)
        _show_comparison(str(trace), *found, chart=chart, json_=json_, silent=silent)
        return
    if trace is not None:
        _refuse_recording(trace)
    if command or log:
        raise typer.BadParameter("--command and --log are of a recorded server: add --against.")
    if chart is not None:
        _check_chart(chart)
    request = Request("replay", config, [*(set_ or []), *short], axis or [], out, resume)
    at_once = None if ray and jobs == 1 else jobs
    record, sweep = _run(request.restated(), at_once, ray, silent=silent)
    keep_record(record, out, json_, silent=silent)
    close_sweep(sweep, "replay")
    if chart is not None:
        _draw(record, chart, silent=silent)
    end_run(record)


def _refuse_recording(source: str) -> None:
    """Say what is to be done with a recording; raises ``ConfigError`` if it is one."""
    from dsv4kv.errors import ConfigError
    from dsv4kv.recording.folder import is_recording

    if is_recording(Path(source)):
        raise ConfigError(
            f"{source} is a recording: add --against to compare it with its server, or make a "
            "trace of it with dsv4kv trace convert."
        )


class _Asked(NamedTuple):
    """What is to be compared, and what is said of its server."""

    source: str | None
    given: list[str]
    command: str | None
    log: Path | None
    rule: str | None
    model: str | None


def _compare(asked: _Asked, *, silent: bool) -> "tuple[Against, Sequence[Known]]":
    """Replay a recording at its server's pace, with its settings and what is given."""
    from dsv4kv.cli.progress import Watcher
    from dsv4kv.engines.logs.read import read_log
    from dsv4kv.errors import ConfigError
    from dsv4kv.recording.convert import read_recording
    from dsv4kv.recording.folder import is_recording
    from dsv4kv.recording.server import read_server
    from dsv4kv.replay.against import MOST_PLAYS, check_comparable, compare_with_server
    from dsv4kv.replay.settings import open_pool, settings_of
    from dsv4kv.sizing.launch import read_command

    source, given, command, log, rule, model = asked
    if source is None or not is_recording(Path(source)):
        raise ConfigError(
            f"--against: {source or 'nothing'} is no recording: name a folder of dsv4kv record."
        )
    server, recorded = read_server(Path(source)), read_recording(Path(source))
    check_comparable(recorded, server)
    reading, started = read_command(command) if command else None, read_log(log) if log else None
    known = list(settings_of(server, reading, started, rule, model))
    pool, chosen = open_pool(recorded.requests, known, given)
    console, most = open_console(stderr=True, quiet=silent), MOST_PLAYS * len(recorded.requests)
    with Watcher(console, "replays", "requests", most, after_s=1.0) as watcher:
        return compare_with_server(recorded, server, chosen, pool, watcher.advance), known


def _show_comparison(
    name: str,
    found: "Against",
    settings: "Sequence[Known]",
    *,
    chart: Path | None,
    json_: str | None,
    silent: bool,
) -> None:
    import json

    from dsv4kv.files import write_named
    from dsv4kv.view.against import against_document, against_page, report_against
    from dsv4kv.view.terminal import show

    if not silent:
        show(report_against(found, settings))
    if json_:
        write_json(json.dumps(against_document(name, found, settings), indent=2), json_)
    if chart is not None:
        from dsv4kv.view.page.write import render_page

        _check_page(chart)
        write_named(chart, render_page(against_page(name, found, settings)), "--chart")


def _check_page(chart: Path) -> None:
    from dsv4kv.errors import ConfigError

    if chart.suffix != ".html":
        raise ConfigError(f"--chart {chart}: with --against it is a page: name a file .html.")


def _print_schema() -> None:
    from dsv4kv.config.replay import ReplayConfig
    from dsv4kv.view.config import schema_table
    from dsv4kv.view.terminal import show

    show([schema_table(ReplayConfig)])


def _run(
    request: Request, jobs: int | None, ray: str | None, *, silent: bool
) -> "tuple[RunRecord, Sweep]":
    import sys

    from dsv4kv.cli.progress import Watcher
    from dsv4kv.config.load import expand_axes, load_config
    from dsv4kv.config.replay import ReplayConfig
    from dsv4kv.fleet.case import serve_point
    from dsv4kv.record.points import Sweep
    from dsv4kv.replay.run import Invocation, run_replay

    loaded = load_config(request.config, request.overrides, ReplayConfig)
    points = expand_axes(loaded, request.overrides, request.axes)
    _refuse_unused([point.config for point in points])
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


def _refuse_unused(configs: "Sequence[ReplayConfig]") -> None:
    """Refuse what was asked of a fleet and would change nothing."""
    from dsv4kv.config.fleet import unused_setting
    from dsv4kv.errors import ConfigError

    tiers = {name for config in configs for name in config.tiers.levels}
    if why := unused_setting([config.fleet for config in configs], tiers):
        raise ConfigError(why)


def _check_chart(chart: Path) -> None:
    from dsv4kv.errors import ConfigError

    if chart.suffix not in (".svg", ".html"):
        raise ConfigError(f"--chart {chart}: name a file that ends in .svg or .html.")


def _draw(record: "RunRecord", chart: Path, *, silent: bool) -> None:
    from dsv4kv.files import write_named
    from dsv4kv.view.page.write import draw_replay

    write_named(chart, draw_replay(record, chart.suffix), "--chart")
    if not silent:
        say(f"chart: {chart}")
