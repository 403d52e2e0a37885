"""``dsv4kv replay``: serve a trace in virtual time."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsv4kv.choices import POLICIES, RULES, STRATEGIES, listed
from dsv4kv.cli.complete import offer, offer_settings
from dsv4kv.cli.records import as_settings, end_run, keep_record
from dsv4kv.cli.sweeps import (
    How,
    JobFolder,
    Jobs,
    OnRay,
    Resume,
    close_sweep,
    leave_to_others,
    restate,
    sweeping,
)
from dsv4kv.resources import shipped_names
from dsv4kv.view.console import open_console, say

if TYPE_CHECKING:
    from dsv4kv.record.jobs import Sweep
    from dsv4kv.record.schema import RunRecord

EPILOG = """\
[bold]Examples[/bold]

dsv4kv replay builtin:chat --memory 100GiB                what is reused

dsv4kv replay builtin:chat --axis prefix.policy=lru,arc   two policies

dsv4kv replay builtin:chat --rule vllm-v4:semantic        by vLLM's rule

dsv4kv replay builtin:chat --chart replay.svg             memory over time
"""

SHORTHANDS = {
    "trace": "workload.trace",
    "data": "workload.data",
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


def _model(text: str, metavar: str | None = None) -> Any:
    return typer.Option(help=text, metavar=metavar, rich_help_panel="Model of a step")


def replay(
    trace: Annotated[
        str | None,
        typer.Argument(
            help="A trace file, a folder of weka conversations or [bold]builtin:chat[/bold]. "
            "Left out: what the configuration names.",
            autocompletion=offer(["builtin:chat"]),
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help=f"A YAML file or a shipped name: {listed(shipped_names('replay'))} (default is "
            "the default, real moves the bytes of a small model).",
            autocompletion=offer(shipped_names("replay")),
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="A preset or a config.json.",
            autocompletion=offer(shipped_names("models")),
        ),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Memory of the cache: 100GiB.")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help=f"What is evicted first: {listed(POLICIES)}.", autocompletion=offer(POLICIES)
        ),
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            help=f"By whose rule prompts are reused: {listed(RULES)}.",
            autocompletion=offer(RULES),
        ),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            help=f"What is kept of windows and states: {listed(STRATEGIES)}.",
            autocompletion=offer(STRATEGIES),
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            help="A GPU of the catalogue, for its bandwidth.",
            rich_help_panel="Model of a step",
            autocompletion=offer(shipped_names("gpus")),
        ),
    ] = None,
    gpus: Annotated[int | None, _model("GPUs that bear a step together.")] = None,
    bandwidth: Annotated[
        float | None, _model("Memory bandwidth of one GPU instead.", "GB/s")
    ] = None,
    peaks: Annotated[
        str | None, _model("Bandwidth as a run of `dsv4kv bench` measured it.", "RUN.json")
    ] = None,
    tflops: Annotated[float | None, _model("Arithmetic of one GPU.", "TFLOP/s")] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="none|real",
            help="real moves every byte on the CPU, takes the time that needs and compares it "
            "with a run without reuse.",
            autocompletion=offer(["none", "real"]),
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a setting: prefix.defer=false.",
            autocompletion=offer_settings("replay"),
        ),
    ] = None,
    axis: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A,B,…",
            help="Sweep a setting: prefix.policy=lru,arc.",
            autocompletion=offer_settings("replay", several=True),
        ),
    ] = None,
    jobs: Jobs = 1,
    ray: OnRay = None,
    resume: Resume = None,
    job_folder: JobFolder = None,
    chart: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw memory, requests and times: .svg or .html."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the run record.")] = Path("results"),
    json_: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Also write the record here; - prints it."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print problems only.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="List every setting and end.")] = False,
) -> None:
    """Serve a trace in virtual time: what is reused, what is lost and why, what it costs.

    Which blocks are found, evicted and held is exact; times follow a stated model.
    """
    if schema:
        _print_schema()
        return
    short = as_settings(
        SHORTHANDS,
        trace=trace,
        data=data,
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
    if chart is not None:
        _check_chart(chart)
    how = How(jobs, ray, resume, job_folder)
    stated = restate(how, out, config, [*(set_ or []), *short], axis or [])
    record, sweep = _run(*stated, how, out, silent=silent)
    leave_to_others(how, sweep, record)
    keep_record(record, out, json_, silent=silent)
    close_sweep(how, sweep, "replay")
    if chart is not None:
        _draw(record, chart, silent=silent)
    end_run(record)


def _print_schema() -> None:
    from dsv4kv.config.replay import ReplayConfig
    from dsv4kv.view.config import schema_table
    from dsv4kv.view.terminal import show

    show([schema_table(ReplayConfig)])


def _run(
    config: str | None,
    overrides: list[str],
    axes: list[str],
    how: How,
    out: Path,
    *,
    silent: bool,
) -> "tuple[RunRecord, Sweep]":
    import sys

    from dsv4kv.cli.progress import Watcher
    from dsv4kv.config.axes import expand_axes
    from dsv4kv.config.load import load_config
    from dsv4kv.config.replay import ReplayConfig
    from dsv4kv.replay.run import Invocation, run_replay

    loaded = load_config(config, overrides, ReplayConfig)
    points = expand_axes(loaded, overrides, axes, ReplayConfig)
    workloads = [point.config.workload for point in points]
    timed = any(workload.data == "real" for workload in workloads)
    if timed:
        how.refuse_together("workload.data is real, which takes times, and points side by side "
                            "would time each other")  # fmt: skip
    with sweeping(
        how,
        "replay",
        loaded,
        points,
        out,
        said=(overrides, axes),
        traces=[workload.trace for workload in workloads],
        timed=timed,
    ) as sweep:
        unit = "points" if sweep.together else "requests"
        argv = ["dsv4kv", *sys.argv[1:]]
        invocation = Invocation(argv, loaded, points, overrides, axes, sweep)
        with Watcher(open_console(stderr=True, quiet=silent), "replay", unit) as watcher:
            return run_replay(invocation, watcher.reach), sweep


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
