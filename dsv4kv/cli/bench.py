"""``dsv4kv bench``: build a cache, serve a workload, measure and verify it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsv4kv.choices import BACKENDS, PEERS, listed
from dsv4kv.cli import systems, tiers, transfer
from dsv4kv.cli.records import as_settings, end_run, keep_record
from dsv4kv.cli.sweeps import Request, Resume, close_sweep, keep_points
from dsv4kv.errors import ConfigError
from dsv4kv.files import shipped_names
from dsv4kv.view.console import open_console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from dsv4kv.bench.launches import Outcome
    from dsv4kv.record.points import Sweep
    from dsv4kv.record.schema import RunRecord

EPILOG = """\
[bold]Examples[/bold]

dsv4kv bench                                      the shipped default

dsv4kv bench smoke --set cache.block_tokens=256   one setting changed

dsv4kv bench --axis workload.concurrency=1,8      a sweep

dsv4kv bench --axis workload.context=8K,128K,1M   where a decode step goes

dsv4kv bench --launches 7                         medians over launches

dsv4kv bench systems                              three ways to keep a cache

dsv4kv bench tiers                                prefixes stored and restored

dsv4kv bench transfer                             from a prefill to a decode process
"""

OWN = (systems.NAME, tiers.NAME, transfer.NAME)
"""Benchmarks with settings of their own."""

SHORTHANDS = {
    "trace": "workload.trace",
    "data": "workload.data",
    "seed": "measure.seed",
    "device": "device",
    "backend": "backend",
}
"""Options that stand for settings."""


def bench(
    config: Annotated[
        str | None,
        typer.Argument(
            help=f"A YAML file or a shipped name: {listed(shipped_names('bench'))}; systems: "
            "three ways to keep a cache, side by side; tiers: prefixes in host memory and on "
            "disk; or transfer: a cache moved to another process.",
            show_default=False,
        ),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(help="Trace to replay: a file or builtin:chat."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="real moves bytes through every operation, none only keeps the books.",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a setting: cache.block_tokens=256.",
        ),
    ] = None,
    axis: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A,B,…",
            help="Sweep a setting: workload.concurrency=1,8,64.",
        ),
    ] = None,
    resume: Resume = None,
    seed: Annotated[int | None, typer.Option(help="Seed of inputs and samples.")] = None,
    device: Annotated[
        str | None,
        typer.Option(help="auto, cpu or cuda."),
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            help=f"Operations to run: {listed(BACKENDS | PEERS)}, or your own "
            "my_gather.py:gather_topk.",
        ),
    ] = None,
    launches: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Fresh processes to run it in; tables then show medians over launches.",
        ),
    ] = 1,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="transfer: be the prefill side, here."),
    ] = None,
    connect: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="transfer: the prefill side is there."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the run record.")] = Path("results"),
    json_: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Also write the record here; - prints it."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print problems only.")] = False,
) -> None:
    """Serve a workload over the cache; measure, verify and record every operation.

    Without arguments this replays a short chat trace over three layers of DeepSeek-V4-Flash.
    """
    if config in OWN:
        given = {"--trace": trace, "--data": data, "--resume": resume}
        given["--backend"] = backend
        unused = [name for name, value in given.items() if value]
        unused += ["--launches"] * (launches > 1)
        unused += ["--device"] * (config != tiers.NAME and device not in (None, "cpu"))
        seeded = [] if seed is None else [f"seed={seed}"]
        if config == tiers.NAME and device:
            seeded.append(f"device={device}")
        settings = [*(set_ or []), *seeded]
        if config == transfer.NAME:
            transfer.bench_transfer(
                settings, axis or [], unused, json_, listen=listen, connect=connect, quiet=quiet
            )
            return
        unused += [f"--{end}" for end in _ends(listen, connect)]
        run = systems.bench_systems if config == systems.NAME else tiers.bench_tiers
        run(settings, axis or [], unused, json_, quiet=quiet)
        return
    if ends := _ends(listen, connect):
        raise ConfigError(f"--{ends[0]} is of bench transfer: leave it out, or run that.")
    short = as_settings(
        SHORTHANDS, trace=trace, data=data, seed=seed, device=device, backend=backend
    )
    overrides = [*(set_ or []), *short]
    silent = quiet or json_ == "-"
    stderr = open_console(stderr=True, quiet=silent)
    if launches > 1:
        if resume:
            raise ConfigError(
                f"--resume {resume}: launches are not resumed: leave --launches out."
            )
        record = _run_launches(config, overrides, axis or [], launches, out, stderr)
        keep_record(record, out, json_, silent=silent)
    else:
        request = Request("bench", config, overrides, axis or [], out, resume).restated()
        record, sweep = _run_once(request, stderr)
        keep_record(record, out, json_, silent=silent)
        close_sweep(sweep, "bench")
    end_run(record)


def _ends(listen: str | None, connect: str | None) -> list[str]:
    """Which of the two was given."""
    return [name for name, end in (("listen", listen), ("connect", connect)) if end]


def _run_once(request: Request, stderr: "Console") -> "tuple[RunRecord, Sweep]":
    """Run in this process."""
    import sys

    from dsv4kv.bench.run import Invocation, run_bench
    from dsv4kv.cli.progress import Watcher
    from dsv4kv.config.load import expand_axes, load_config
    from dsv4kv.record.points import Sweep

    loaded = load_config(request.config, request.overrides)
    cases = expand_axes(loaded, request.overrides, request.axes)
    traces = [case.config.workload.source for case in cases]
    sweep = Sweep(keep_points(request, loaded, cases, traces, timed=True))
    argv = ["dsv4kv", *sys.argv[1:]]
    invocation = Invocation(argv, loaded, cases, request.overrides, request.axes, sweep)
    with Watcher(stderr, "bench", "tokens") as watcher:
        return run_bench(invocation, watcher), sweep


def _run_launches(
    config: str | None,
    overrides: "Sequence[str]",
    axes: "Sequence[str]",
    launches: int,
    out: Path,
    stderr: "Console",
) -> "RunRecord":
    """Run in fresh processes that do not know of each other; what there is is kept after each."""
    import shlex
    import sys
    from datetime import UTC, datetime

    from dsv4kv.bench.launches import Request, Task, bench_arguments, merge, run_launches
    from dsv4kv.cli.progress import Watcher
    from dsv4kv.config.load import expand_axes, load_config
    from dsv4kv.record.store import new_run_id, save_record

    loaded = load_config(config, overrides)
    expand_axes(loaded, overrides, axes)  # refuses here what every launch would refuse
    arguments = bench_arguments(loaded.source, overrides, axes)
    again = shlex.join(["dsv4kv", "bench", *arguments, "--launches", str(launches)])
    run_id = new_run_id(loaded.config.name, datetime.now(UTC))
    request = Request(["dsv4kv", *sys.argv[1:]], again, loaded, launches, run_id)

    def on_progress(outcomes: "Sequence[Outcome]", task: Task) -> None:
        watcher.show_launches(outcomes, task)
        if outcomes:
            save_record(merge(outcomes, request), out)

    with Watcher(stderr, "bench", "launches", launches) as watcher:
        outcomes = run_launches([Task(arguments)] * launches, on_progress)
    if not outcomes:
        raise KeyboardInterrupt
    return merge(outcomes, request)
