"""``dsv4kv bench``: build a cache, serve a workload, measure and verify it."""

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4kv.choices import BACKENDS, PEERS, listed
from dsv4kv.cli import examples
from dsv4kv.cli import options as opt
from dsv4kv.cli.runs import Request, close_sweep, end_run, keep_points, keep_record
from dsv4kv.errors import ConfigError, VerificationError
from dsv4kv.files import shipped_names
from dsv4kv.view.console import open_console, say

if TYPE_CHECKING:
    from rich.console import Console

    from dsv4kv.bench.launches import Outcome, Task
    from dsv4kv.config.load import Point
    from dsv4kv.runs.points import Sweep
    from dsv4kv.runs.schema import RunRecord
    from dsv4kv.view.table import Part

EPILOG = examples(
    "dsv4kv bench                                      the shipped default",
    "dsv4kv bench smoke --set cache.block_tokens=256   one setting changed",
    "dsv4kv bench --axis workload.concurrency=1,8      a sweep",
    "dsv4kv bench --axis workload.context=8K,128K,1M   where a decode step goes",
    "dsv4kv bench --launches 7                         medians over launches",
    "dsv4kv bench systems                              three ways to keep a cache",
    "dsv4kv bench tiers                                prefixes stored and restored",
    "dsv4kv bench transfer                             from a prefill to a decode process",
)

OWN = {"systems": (), "tiers": ("device",), "transfer": ("listen", "connect")}
"""Benchmarks with settings of their own, which keep no record, and options of each."""
_BACKEND = f"Operations to run: {listed(BACKENDS | PEERS)}, or your own my_gather.py:gather_topk."
_DATA = "real: run the kernels on real tensors; none: block accounting only."
SHORTHANDS = {
    "trace": opt.Row("Trace to replay: a file or builtin:chat.", key="workload.trace"),
    "data": opt.Row(_DATA, key="workload.data", rare=True),
    "seed": opt.Row("Seed of inputs and samples.", kind=int, key="measure.seed", rare=True),
    "device": opt.Row("auto, cpu or cuda.", key="device"),
    "backend": opt.Row(_BACKEND, key="backend"),
}
"""Options that stand for settings."""

_CONFIG = (
    f"A YAML file or a shipped name: {listed(shipped_names('bench'))}; systems: three ways to "
    "keep a cache, side by side; tiers: prefixes in host memory and on disk; or transfer: a cache "
    "moved to another process."
)
_LAUNCHES = "Fresh processes to run it in; tables then show medians over launches."


@opt.takes(SHORTHANDS)
def bench(
    given: dict[str, Any],
    config: opt.Text = opt.argument(_CONFIG),
    set_: opt.Texts = opt.SET,
    axis: opt.Texts = opt.AXIS,
    resume: opt.Text = opt.RESUME,
    launches: int = opt.option(_LAUNCHES, "N", min=1, default=1),
    listen: opt.Text = opt.option(
        "Run as the prefill side of bench transfer.", "HOST:PORT", rare=True
    ),
    connect: opt.Text = opt.option("Prefill side of bench transfer.", "HOST:PORT", rare=True),
    out: Path = opt.OUT,
    json_: opt.Text = opt.JSON,
    verbose: bool = opt.VERBOSE,
    quiet: bool = opt.QUIET,
) -> None:
    """Serve a workload over a real cache; measure and verify every operation.

    Without arguments this replays a short chat trace over three layers of DeepSeek-V4-Flash.
    """
    overrides, axes, silent = set_ or [], axis or [], quiet or json_ == "-"
    ends = {"listen": listen, "connect": connect}
    if config in OWN:
        used = {**given, "resume": resume, "launches": launches > 1, **ends}
        used["device"] = given.get("device") != "cpu" and given.get("device")
        used.pop("seed", None)
        if names := [f"--{n}" for n, value in used.items() if value and n not in OWN[config]]:
            raise ConfigError(
                f"{', '.join(names)} means nothing to bench {config}: leave it out; what it runs "
                f"is set by --set (keys: docs/{config}.md)."
            )
        kept = {name: given.get(name) for name in ("seed", "device")}
        keys = {"seed": "seed", "device": "device"} if config == "tiers" else {"seed": "seed"}
        overrides = [*overrides, *opt.as_settings(keys, {name: kept[name] for name in keys})]
        if listen and connect:
            raise ConfigError("--listen and --connect: one machine listens, the other connects.")
        if axes and (listen or connect):
            text = "--axis sweeps runs on this machine: leave out --listen and --connect."
            raise ConfigError(text)
        if listen:
            _serve(listen, overrides)
        else:
            root, run = _own(config, overrides, connect, silent=silent)
            _run_points(root, overrides, axes, run, json_, silent=silent)
        return
    for name in (name for name, end in ends.items() if end):
        raise ConfigError(f"--{name} is of bench transfer: leave it out, or run that.")
    overrides = [*overrides, *opt.as_settings(SHORTHANDS, given)]
    stderr = open_console(stderr=True, quiet=silent)
    request = Request("bench", config, overrides, axes, out, resume)
    if launches == 1:
        record, sweep = _run_once(request.restated(), stderr)
        keep_record(record, out, json_, silent=silent, verbose=verbose)
        close_sweep(sweep)
    else:
        if resume is not None:
            raise ConfigError(
                f"--resume {resume}: launches are not resumed: leave --launches out."
            )
        record = _run_launches(request, launches, stderr)
        keep_record(record, out, json_, silent=silent, verbose=verbose)
    end_run(record)


def _run_once(request: Request, stderr: "Console") -> "tuple[RunRecord, Sweep]":
    from dsv4kv.bench.run import run_bench
    from dsv4kv.cli.progress import Watcher
    from dsv4kv.config.load import expand_axes, load_config
    from dsv4kv.runs.assemble import Invocation
    from dsv4kv.runs.points import Sweep

    loaded = load_config(request.config, request.overrides)
    cases = expand_axes(loaded, request.overrides, request.axes)
    traces = [case.config.workload.source for case in cases]
    sweep = Sweep(keep_points(request, loaded, cases, traces, timed=True))
    argv = ["dsv4kv", *sys.argv[1:]]
    invocation = Invocation(argv, loaded, cases, request.overrides, request.axes, sweep)
    with Watcher(stderr, "bench", "tokens") as watcher:
        return run_bench(invocation, watcher), sweep


def _run_launches(asked: Request, launches: int, stderr: "Console") -> "RunRecord":
    """Run in fresh processes; the record is saved after each of them."""
    from dsv4kv.bench.launches import Task, bench_arguments, merge, run_launches
    from dsv4kv.cli.progress import Watcher
    from dsv4kv.config.load import expand_axes, load_config
    from dsv4kv.runs.store import new_run_id, save_record

    loaded = load_config(asked.config, asked.overrides)
    expand_axes(loaded, asked.overrides, asked.axes)  # refuses what every launch would refuse
    arguments = bench_arguments(loaded.source, asked.overrides, asked.axes)
    again = shlex.join(["dsv4kv", "bench", *arguments, "--launches", str(launches)])
    run_id = new_run_id(loaded.config.name, datetime.now(UTC))
    known = {"run_id": run_id, "argv": ["dsv4kv", *sys.argv[1:]], "reproduce": again}

    def on_progress(outcomes: "Sequence[Outcome]", task: "Task") -> None:
        watcher.show_launches(outcomes, task)
        if outcomes:
            save_record(merge(outcomes, launches, loaded, **known), asked.out)

    with Watcher(stderr, "bench", "launches", launches) as watcher:
        outcomes = run_launches([Task(arguments)] * launches, on_progress)
    if not outcomes:
        raise KeyboardInterrupt
    return merge(outcomes, launches, loaded, **known)


Ran = tuple[Iterable["Part"], str, Sequence[str]]
"""What a benchmark with settings of its own gave: for people, as JSON, and what is wrong."""


def _serve(listen: str, overrides: Sequence[str]) -> None:
    """Be the prefill side of ``bench transfer``."""
    from dsv4kv.bench.transfer import run as transfer
    from dsv4kv.bench.transfer.prefill import serve
    from dsv4kv.config.experiments import TransferConfig
    from dsv4kv.config.load import load_config

    def ready(host: str, port: int) -> None:
        say(f"{transfer.LISTENING}{host}:{port} (Ctrl-C ends it)")

    config, token = load_config(None, overrides, TransferConfig).config, transfer.TOKEN
    serve(config, transfer.parse_address(listen), os.environ.get(token, ""), ready)


def _own(
    name: str, overrides: Sequence[str], connect: str | None, *, silent: bool
) -> tuple[type[Any], Callable[[Any], Ran]]:
    """The configuration of a benchmark with settings of its own, and what runs a point of it."""
    if name == "systems":
        from dsv4kv.bench.systems import workload as systems
        from dsv4kv.config.experiments import SystemsConfig
        from dsv4kv.view.systems import report_systems

        def run_systems(point: "Point[SystemsConfig]") -> Ran:
            with _watching("systems", silent=silent) as on_system:
                outcomes = systems.run_systems(point.config, on_system)
            document = systems.dumps(point.config, outcomes)
            wrong = [failure for outcome in outcomes for failure in outcome.failures]
            return report_systems(outcomes), document, wrong

        return SystemsConfig, run_systems
    if name == "tiers":
        from dsv4kv.bench.tiers import run as tiers
        from dsv4kv.config.experiments import TiersConfig
        from dsv4kv.view.tiers import report_tiers

        def run_tiers(point: "Point[TiersConfig]") -> Ran:
            with _watching("prefixes", silent=silent) as on_step:
                outcome = tiers.run_tiers(point.config, on_step)
            return report_tiers(outcome), tiers.dumps(point.config, outcome), outcome.failures

        return TiersConfig, run_tiers
    from dsv4kv.bench.transfer import run as transfer
    from dsv4kv.config.experiments import TransferConfig
    from dsv4kv.view.transfer import report_transfer

    def run_transfer(point: "Point[TransferConfig]") -> Ran:
        with ExitStack() as stack:
            on_run = stack.enter_context(_watching("transports", silent=silent))
            if connect:
                token = os.environ.get(transfer.TOKEN, "")
                there = transfer.parse_address(connect), token
            else:
                swept = [f"{key}={json.dumps(value)}" for key, value in point.axis.items()]
                sets = [word for each in (*overrides, *swept) for word in ("--set", each)]
                there = stack.enter_context(transfer.prefill_process(sets))
            outcome = transfer.run_transfer(point.config, *there, on_run)
        wrong = [failure for run in outcome.runs for failure in run.failures]
        report = report_transfer(point.config, outcome)
        return report, transfer.dumps(point.config, outcome), wrong

    return TransferConfig, run_transfer


@contextmanager
def _watching(what: str, *, silent: bool) -> Iterator[Callable[[str, int, int], None]]:
    from dsv4kv.cli.progress import Watcher

    with Watcher(open_console(stderr=True, quiet=silent), "bench", what) as watcher:

        def on_step(name: str, done: int, total: int) -> None:
            watcher.name(f"bench {name}")
            watcher.reach(done, total)

        yield on_step


def _run_points(
    root: type[Any],
    overrides: Sequence[str],
    axes: Sequence[str],
    run: Callable[[Any], Ran],
    json_: str | None,
    *,
    silent: bool,
) -> None:
    """Run every point, print each report when it is there, and write the documents.

    With axes the JSON is a list of documents, each with its values in ``axis``.
    """
    from dsv4kv.config.load import expand_axes, load_config
    from dsv4kv.view.render import show
    from dsv4kv.view.table import Text

    documents, wrong = list[str](), list[str]()
    for point in expand_axes(load_config(None, overrides, root), overrides, axes):
        report, document, failures = run(point)
        at = ", ".join(f"{key}={value}" for key, value in point.axis.items())
        if not silent:
            show([Text(at, "strong"), "", *report, ""] if at else report)
        with_axis = json.dumps({"axis": point.axis, **json.loads(document)})
        documents.append(with_axis if at else document)
        wrong += [f"{at}: {each}" if at else each for each in failures]
    if json_:
        opt.write_json(f"[{', '.join(documents)}]" if axes else documents[0], json_)
    if wrong:
        raise VerificationError("\n".join(wrong))
