"""``dsv4kv bench``: build a cache, serve a workload, measure and verify it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from dsv4kv.report.record import RunRecord

_INTERRUPTED = 130


def bench(
    config: Annotated[
        str | None,
        typer.Argument(
            help="A YAML file or a shipped name: default (the default), smoke, bookkeeping.",
            show_default=False,
        ),
    ] = None,
    trace: Annotated[
        str | None, typer.Option(help="Trace to replay: a file or builtin:chat.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="real moves bytes through every operation, none only keeps the books."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a setting: cache.block_tokens=256."
        ),
    ] = None,
    axis: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B,…", help="Sweep a setting: workload.concurrency=1,8,64."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of inputs and samples.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            help="Operations to run: cpu, cuda, vllm, sglang, flashmla, flaggems, or your own "
            "my_package.my_module:my_gather.",
        ),
    ] = None,
    launches: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Fresh processes to run it in; tables then tell medians over launches.",
        ),
    ] = 1,
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
    from rich.console import Console

    from dsv4kv.cli.console import open_console
    from dsv4kv.report.render import render_record
    from dsv4kv.report.store import dumps, save_record

    overrides = [*(set_ or []), *_shorthands(trace, data, seed, device, backend)]
    silent = quiet or json_ == "-"
    stderr = Console(stderr=True, quiet=silent)
    if launches == 1:
        record = _run_once(config, overrides, axis or [], stderr)
    else:
        record = _run_launches(config, overrides, axis or [], launches, stderr)
    saved = save_record(record, out)
    console = Console(stderr=True, soft_wrap=True) if silent else open_console()
    render_record(record, console, quiet=silent)
    if not silent:
        typer.echo(f"record: {saved.path}")
    if saved.problem:
        typer.echo(f"warning: {saved.problem}", err=True)
    if json_:
        _write_json(json_, dumps(record))
    _end(record)


def _run_once(
    config: str | None,
    overrides: "Sequence[str]",
    axes: "Sequence[str]",
    stderr: "Console",
) -> "RunRecord":
    """Run in this process."""
    import sys

    from dsv4kv.bench.run import Invocation, run_bench
    from dsv4kv.cli.progress import ProgressWatcher
    from dsv4kv.config.axes import expand_axes
    from dsv4kv.config.load import load_config

    loaded = load_config(config, overrides)
    cases = expand_axes(loaded, overrides, axes)
    invocation = Invocation(["dsv4kv", *sys.argv[1:]], loaded, cases, overrides, axes)
    with ProgressWatcher(stderr) as watcher:
        return run_bench(invocation, watcher)


def _run_launches(
    config: str | None,
    overrides: "Sequence[str]",
    axes: "Sequence[str]",
    launches: int,
    stderr: "Console",
) -> "RunRecord":
    """Run in fresh processes; none of them knows of the others."""
    import shlex
    import sys

    from dsv4kv.bench.fresh import Task
    from dsv4kv.bench.launches import Request, bench_arguments, merge, run_launches
    from dsv4kv.cli.launching import LaunchWatcher
    from dsv4kv.config.axes import expand_axes
    from dsv4kv.config.load import load_config

    loaded = load_config(config, overrides)
    expand_axes(loaded, overrides, axes)  # refuses here what every launch would refuse
    arguments = bench_arguments(loaded.source, overrides, axes)
    again = shlex.join(["dsv4kv", "bench", *arguments, "--launches", str(launches)])
    request = Request(["dsv4kv", *sys.argv[1:]], again, loaded, launches)
    with LaunchWatcher(stderr, launches) as watcher:
        outcomes = run_launches([Task(arguments)] * launches, watcher.tell)
    if not outcomes:
        raise KeyboardInterrupt
    return merge(outcomes, request)


def _shorthands(
    trace: str | None, data: str | None, seed: int | None, device: str | None, backend: str | None
) -> list[str]:
    """Options that stand for settings; values are quoted so that YAML takes them as they are."""
    import json

    given = {
        "workload.trace": trace,
        "workload.data": data,
        "measure.seed": seed,
        "device": device,
        "backend": backend,
    }
    return [f"{key}={json.dumps(value)}" for key, value in given.items() if value is not None]


def _write_json(target: str, text: str) -> None:
    from dsv4kv.errors import RecordError
    from dsv4kv.files import replacing

    if target == "-":
        typer.echo(text, nl=False)
        return
    try:
        with replacing(Path(target)) as file:
            file.write(text.encode())
    except OSError as error:
        raise RecordError(
            f"--json {target}: cannot be written ({error.strerror}): name a file in a folder that "
            "exists."
        ) from None


def _end(record: "RunRecord") -> None:
    """Leave with the exit code of the run's status, and its sentences where it failed."""
    from dsv4kv.errors import VerificationError

    problems = [case.error for case in record.cases if case.status == "failed" and case.error]
    problems += [
        f"launch {launch.launch} {launch.status.replace('_', ' ')}: {launch.error}"
        for launch in record.launches
        if launch.status in ("crashed", "timeout", "out_of_memory")
    ]
    if problems:
        raise VerificationError("\n".join(problems))
    if record.status == "incomplete":
        raise typer.Exit(_INTERRUPTED)
