"""``dsv4kv bench`` and its scenarios: a cache under a workload, operations, designs, verified."""

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4kv import __version__
from dsv4kv.choices import BACKENDS, PEERS, choose, listed
from dsv4kv.cli import COMMANDS, command
from dsv4kv.cli import options as opt
from dsv4kv.cli.runs import Request, close_sweep, end_run, keep_record, open_sweep
from dsv4kv.errors import ConfigError, VerificationError
from dsv4kv.files import shipped_names
from dsv4kv.units import counted, parse_count
from dsv4kv.view.console import open_console

if TYPE_CHECKING:
    from dsv4kv.bench.launches import Outcome, Task
    from dsv4kv.cli.progress import Watcher
    from dsv4kv.config.load import Point
    from dsv4kv.runs.schema import RunRecord
    from dsv4kv.view.table import Page

_BACKEND = f"Operations to run: {listed(BACKENDS | PEERS)}, or your own my_gather.py:gather_topk."
_DATA = "real: run the kernels on real tensors; none: block accounting only."
SHORTHANDS = {
    "model": opt.Row(
        opt.MODELS, "NAME|FILE", "v4-flash", key="model.preset", rare=True, values=opt.MODEL_NAMES
    ),
    "trace": opt.Row("Trace to replay: a file or builtin:chat.", key="workload.trace"),
    "data": opt.Row(_DATA, key="workload.data", rare=True),
    "seed": opt.Row("Seed of inputs and samples.", kind=int, key="measure.seed", rare=True),
    "device": opt.Row("auto, cpu or cuda.", key="device"),
    "backend": opt.Row(_BACKEND, key="backend"),
}
"""Options that stand for settings."""

_SHIPPED = shipped_names("bench")
_OWN = [name.removeprefix("bench ") for name in COMMANDS if name.startswith("bench ")]
_CONFIG = f"A YAML file, or a scenario: {listed(_SHIPPED)}; commands of their own: {listed(_OWN)}."
_LAUNCHES = "Fresh processes to run it in; tables then show medians over launches."


@command(
    "bench",
    "dsv4kv bench                                      the shipped default",
    "dsv4kv bench smoke --set cache.block_tokens=256   one setting changed",
    "dsv4kv bench --axis workload.concurrency=1,8      a sweep",
    "dsv4kv bench --axis workload.context=8K,128K,1M   where a decode step goes",
    "dsv4kv bench --launches 7                         medians over launches",
)
@opt.takes(SHORTHANDS)
def bench(
    given: dict[str, Any],
    config: opt.Text = opt.argument(_CONFIG),
    set_: opt.Texts = opt.SET,
    axis: opt.Texts = opt.AXIS,
    resume: opt.Text = opt.RESUME,
    launches: int = opt.option(_LAUNCHES, "N", min=1, default=1),
    out: Path = opt.OUT,
    json_: opt.Text = opt.JSON,
    verbose: bool = opt.VERBOSE,
    quiet: bool = opt.QUIET,
) -> None:
    """Serve a workload over a real cache; measure and verify every operation.

    Without arguments this replays a short chat trace over three layers of DeepSeek-V4-Flash.
    """
    if config and not Path(config).suffix and not Path(config).exists():
        choose(dict.fromkeys([*_SHIPPED, *_OWN]), config, "a scenario or a file")
    silent = quiet or json_ == "-"
    overrides, axes = [*(set_ or []), *opt.as_settings(SHORTHANDS, given)], axis or []
    request = Request("bench", config, overrides, axes, out, resume)
    if launches > 1 and resume is not None:
        raise ConfigError(f"--resume {resume}: launches are not resumed: leave --launches out.")
    if launches > 1:
        record, sweep = _run_launches(request, launches, quiet=silent), None
    else:
        from dsv4kv.bench.run import check_variants, run_bench
        from dsv4kv.config.bench import BenchConfig

        with opt.alone(wanted=json_ == "-"):
            invocation = open_sweep(
                request, BenchConfig, check_variants, lambda c: c.workload.source, timed=True
            )
            with opt.watch("bench", "tokens", quiet=silent) as watcher:
                record, sweep = run_bench(invocation, watcher), invocation.sweep
    keep_record(record, out, json_, silent=silent, verbose=verbose)
    if sweep:
        close_sweep(sweep)
    end_run(record)


def _run_launches(asked: Request, launches: int, *, quiet: bool) -> "RunRecord":
    from dsv4kv.bench.launches import Task, merge, run_launches
    from dsv4kv.config.load import expand_axes, load_config
    from dsv4kv.runs.points import as_options
    from dsv4kv.runs.store import new_run_id, save_record

    loaded = load_config(asked.config, asked.overrides)
    expand_axes(loaded, asked.overrides, asked.axes)  # refuses what every launch would refuse
    arguments = loaded.source, *as_options(asked.overrides, asked.axes)
    again = shlex.join(["dsv4kv", "bench", *arguments, "--launches", str(launches)])
    run_id = new_run_id(loaded.config.name, datetime.now(UTC))
    known = {"run_id": run_id, "argv": ["dsv4kv", *sys.argv[1:]], "reproduce": again}

    def on_progress(outcomes: "Sequence[Outcome]", task: "Task") -> None:
        watcher.show_launches(outcomes, task)
        if outcomes:
            save_record(merge(outcomes, launches, loaded, **known), asked.out)

    with opt.watch("bench", "launches", launches, quiet=quiet) as watcher:
        outcomes = run_launches([Task(arguments)] * launches, on_progress)
    if not outcomes:
        raise KeyboardInterrupt
    return merge(outcomes, launches, loaded, **known)


# ---- one operation

_OPERATION = "Operation of a decode step: gather_topk, attend, index_scores, step_write, …"
_OTHER = f"{listed(BACKENDS | PEERS)}, or your own my_gather.py:gather_topk."


@command(
    "bench op",
    "dsv4kv bench op gather_topk  8 requests of 8K tokens: seconds on a CPU",
    "dsv4kv bench op gather_topk --batch 64 --topk 1024 --context 128K    on a GPU",
    "dsv4kv bench op gather_topk --backend my_gather.py:gather_topk  and how much faster it is",
    "dsv4kv bench op attend --batch 1,8,64 --context 8K,128K          a table",
)
def op(
    name: str = opt.required(_OPERATION, "NAME"),
    batch: str = opt.option("Requests.", "N,…", default="8"),
    topk: opt.Text = opt.option("Entries that a token selects.", "N,…", shown="the model's"),
    context: str = opt.option("Tokens of every request.", "TOKENS,…", default="8K"),
    backend: opt.Text = opt.option(_OTHER, "NAME|FILE:FUNCTION", shown="our own"),
    model: str = opt.MODEL_RARE,
    device: opt.Text = opt.rare("auto, cpu or cuda."),
    seconds: float = opt.rare("Time per row.", min=1.5, max=600, default=5.0),
    set_: opt.Texts = opt.SET_RARE,
    as_json: bool = opt.AS_JSON,
) -> None:
    """Check one operation against the reference, then time it.

    With --backend its operation is timed alternately with ours. Ends with 6 if a case differs
    from the reference; nothing is timed then.
    """
    from dsv4kv.bench.device import describe_gpu
    from dsv4kv.bench.figures import OperationBench, Shape
    from dsv4kv.ops import reference
    from dsv4kv.ops.spec import OPERATIONS
    from dsv4kv.runs.environment import capture_environment
    from dsv4kv.view.bench import op_page, op_values

    keys = {"backend": "backend", "device": "device", "model": "model.preset"}
    given = {"backend": backend, "device": device, "model": model}
    counts = {"--batch": batch, "--topk": topk, "--context": context}
    axes = [[0] if each is None else _counts(name, each) for name, each in counts.items()]
    bench = OperationBench(name, [*opt.as_settings(keys, given), *(set_ or [])], seconds)
    console = open_console(stderr=True, quiet=as_json)
    with opt.alone(wanted=as_json), console.status("") as status:

        def report(what: str) -> None:
            status.update(f"{name}: {what}")
            if not console.is_terminal:  # a log has no line that is drawn again
                console.print(f"{name}: {what}", highlight=False, soft_wrap=True)

        report("checking against the reference")
        cases, timed = bench.check(), []
        for requests, chosen, tokens in product(*axes):
            report(f"timing {counted(requests, 'request')} of {tokens:,} tokens, {seconds:g} s")
            shape = Shape(requests, chosen or None, tokens)
            timed.append(bench.time(shape, capture_environment()["memory_bytes"]))
    page = op_page(name, bench.resolved.name, cases, timed, describe_gpu(device or "auto"))
    taken = ", ".join(OPERATIONS[bench.operation].signature.split())
    own = ["", f"A backend of your own: {bench.operation}({taken})"]
    code = getattr(reference, bench.operation).__code__
    own.append(f"Its meaning, in torch: {code.co_filename}:{code.co_firstlineno}")
    parts = [*page.answer, *([] if backend else own)]
    opt.tell(parts, op_values(name, cases, timed), as_json=as_json)


def _counts(option: str, text: str) -> list[int]:
    counts = [parse_count(each) for each in opt.split(text)]
    if not counts or min(counts) < 1:
        raise ConfigError(f"{option} {text}: give numbers above 0, commas between.")
    return counts


# ---- scenarios with settings of their own, and no record

_Ran = tuple["Page", dict[str, Any], Sequence[str]]
"""For people, for JSON, and what is wrong."""
_OnStep = Callable[[str, int, int], None]


def _systems(config: Any, on_step: _OnStep) -> _Ran:
    from dsv4kv.bench.systems import run_systems
    from dsv4kv.view.scenarios import systems_page

    outcomes = run_systems(config, on_step)
    wrong = [failure for outcome in outcomes for failure in outcome.failures]
    return systems_page(outcomes), {"systems": [*map(asdict, outcomes)]}, wrong


def _tiers(config: Any, on_step: _OnStep) -> _Ran:
    from dsv4kv.bench.tiers import document_of, run_tiers
    from dsv4kv.view.scenarios import tiers_page

    outcome = run_tiers(config, on_step)
    return tiers_page(outcome), document_of(outcome), outcome.failures


def _transfer(config: Any, on_step: _OnStep) -> _Ran:
    from dsv4kv.bench.transfer import document_of, run_transfer
    from dsv4kv.view.scenarios import transfer_page

    outcome = run_transfer(config, on_step)
    return transfer_page(config, outcome), document_of(outcome), outcome.failures


def _points(name: str, overrides: list[str], axes: list[str]) -> "list[Point[Any]]":
    """What is run one after the other; refused before anything is."""
    from dsv4kv.config import experiments
    from dsv4kv.config.load import expand_axes, load_config

    root = getattr(experiments, f"{name.title()}Config")
    points = expand_axes(load_config(None, overrides, root), overrides, axes)
    if name == "tiers":
        from dsv4kv.bench.tiers import check_tiers

        for point in points:
            check_tiers(point.config)
    return points


def _scenario(name: str, what: str, run: Callable[[Any, _OnStep], _Ran], example: str) -> None:
    def report(watcher: "Watcher", step: str, done: int, total: int) -> None:
        watcher.name(f"bench {name}, {step}")
        watcher.reach(done, total)

    @command(f"bench {name}", f"dsv4kv bench {name} {example}", help=COMMANDS[f"bench {name}"])
    def scenario(
        set_: opt.Texts = opt.SET,
        axis: opt.Texts = opt.rare("Sweep a setting; repeatable.", "KEY=A,B,…", "--axis"),
        json_: opt.Text = opt.rare("Print one JSON document.", "", "--json", callback=opt.to_file),
        verbose: bool = opt.flag("--verbose -v", "Print every row.", rare=True),
        quiet: bool = opt.QUIET,
    ) -> None:
        # with axes the JSON is a list of documents, each with its values in ``axis``
        from dsv4kv.view import render, table

        silent, documents, wrong = quiet or json_ == "-", list[dict[str, Any]](), list[str]()
        for point in _points(name, set_ or [], axis or []):
            with opt.watch("bench", what, quiet=silent) as watcher:
                page, found, failures = run(point.config, partial(report, watcher))
            at = ", ".join(f"{key}={value}" for key, value in point.axis.items())
            if not silent:
                render.show([table.Text(at, "strong"), ""] if at else [])
                opt.show_page(page, verbose=verbose)
                render.show([""] if at else [])
            config = point.config.model_dump(mode="json")
            document = {"dsv4kv": __version__, "config": config, **found}
            documents.append({"axis": point.axis, **document} if at else document)
            wrong += [f"{at}: {each}" if at else each for each in failures]
        if json_:
            opt.write_json(json.dumps(documents if axis else documents[0], indent=2), json_)
        if wrong:
            raise VerificationError("\n".join(wrong))


_scenario("systems", "systems", _systems, "--set run=blocks   one of the three")
_scenario("tiers", "prefixes", _tiers, "--axis threads=1,4,16   one after the other")
_scenario(
    "transfer", "steps", _transfer, "--axis decode.block_tokens=256,1024   one after the other"
)
